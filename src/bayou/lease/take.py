"""One try each: to take a lease, to free one. What repeats them is elsewhere."""

from __future__ import annotations

from collections.abc import Container

from msgspec import Struct, field
from msgspec.structs import replace

from bayou.core.errors import BayouError, TimedOut
from bayou.core.ids import ulid
from bayou.lease.objects import LeaseObjects, Seen
from bayou.lease.record import RENEW, Corrupt, Free, Held
from bayou.lease.wait import Obstacle, corrupt_lease
from bayou.lease.watch import Clock, Watch

_TRIES = 5


class Taken(Struct, frozen=True):
    """A lease that is ours since `asked`, when the write was sent that made it so: nobody saw it before."""

    seen: Seen
    held: Held
    asked: float


class Bid(Struct):
    """One acquisition. Each of its writes has a nonce of its own.

    Else, after a write that took the lease unnoticed and lost it again, the next one would bring back a version that
    somebody has watched for long and believes dead.
    """

    wanted: Held
    nonces: set[str] = field(default_factory=set)

    def next(self) -> Held:
        held = replace(self.wanted, nonce=ulid())
        self.nonces.add(held.nonce)
        return held


def take(objects: LeaseObjects, bid: Bid, watch: Watch, clock: Clock) -> Taken | Obstacle:
    """Try once to take a lease that nobody has, or that is proved stale, or that no lease can be held for so long.

    One that has a nonce of ours is an earlier write whose answer was lost; it is written over, so that the time of
    this write counts. So is one whose answer came when it was due for renewal already: peers count its TTL from the
    write, so its holder would lose it at once.
    """
    key = bid.wanted.key
    asked = clock()
    seen = objects.read(key)
    record: Held | None = None
    match seen:
        case Seen(Corrupt() as broken):
            if not objects.outlived(seen):
                raise corrupt_lease(key, broken)
        case Seen(Held(nonce=nonce) as held) if nonce in bid.nonces:
            record = held.again()
        case Seen(Held() as held):
            stale_in = watch.stale_in(seen, held, asked)
            if stale_in > 0 and not objects.outlived(seen):
                return Obstacle(key, held, stale_in=stale_in)
    record = record or bid.next()
    asked = clock()
    taken = objects.swap(key, record, seen)
    if taken is None:
        return Obstacle(key)
    if clock() - asked > record.ttl_s * RENEW:
        return Obstacle(key, cause=TimedOut("the store answered too late"))
    return Taken(taken, record, asked)


def reap(objects: LeaseObjects, key: str, seen: Seen, held: Held, watch: Watch, asked: float) -> Obstacle | None:
    """Free another's lease if it is proved stale; else say that it is in the way. None: it is free now."""
    stale_in = watch.stale_in(seen, held, asked)
    if stale_in > 0 and not objects.outlived(seen):
        return Obstacle(key, held, stale_in=stale_in)
    return None if objects.swap(key, Free(held.nonce), seen) is not None else Obstacle(key)


def free(objects: LeaseObjects, key: str, nonces: Container[str], seen: Seen | None = None) -> bool:
    """Free a lease that has one of these nonces, whoever holds it; return whether this call did (V13: by a swap).

    `seen` is where to begin, to save a look. A renewal that arrives in between makes us look again; it can arrive no
    more once the lease is free, since its version is gone.
    """
    for _ in range(_TRIES):
        seen = seen or objects.read(key)
        if seen is None or isinstance(seen.record, Free) or seen.record.nonce not in nonces:
            return False
        if objects.swap(key, Free(_plain(seen.record.nonce)), seen) is not None:
            return True
        seen = None
    return False


def forsake(objects: LeaseObjects, bid: Bid) -> None:
    """Free what a write of ours may have taken although nobody will use it (V14); if that fails it is stale in time.

    A write that is still on its way must not arrive afterwards, so what is free is freed once more: then its version,
    too, is gone.
    """
    if not bid.nonces:
        return
    try:
        for _ in range(_TRIES):
            match objects.read(bid.wanted.key):
                case None | Seen(Free()) as seen:
                    freed = objects.swap(bid.wanted.key, Free(ulid()), seen)
                    if freed is not None:
                        return
                case _ as seen:
                    free(objects, bid.wanted.key, bid.nonces, seen)
                    return
    except BayouError:
        return


def _plain(nonce: str) -> str:
    """Return a nonce of the length that free leases have: that of a corrupt one is its own."""
    return nonce[:26].ljust(26, "0")
