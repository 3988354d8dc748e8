"""How `store` and the leases of models keep each other out, with nothing but one object each.

A writer of a model takes its lease, and then looks at `store`; if somebody has that, it gives its own up again and
waits. Who wants `store` takes it, and then looks at the others, until none is held. Each writes before it looks, so
of two that come at once at least one sees the other, and only the writer of a model ever gives way: neither can both
go on, nor wait for each other. New writers stay out as soon as `store` is taken, so its turn comes when those that
were at work are done.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

from bayou.lease.keys import STORE, is_work
from bayou.lease.objects import LeaseObjects, Seen
from bayou.lease.record import Corrupt, Held
from bayou.lease.take import reap
from bayou.lease.wait import Obstacle, corrupt_lease
from bayou.lease.watch import Clock, Watch


def store_is_open(objects: LeaseObjects, watch: Watch, clock: Clock, family: Mapping[str, str]) -> Obstacle | None:
    """Say who has `store`, unless that is the process above us; a holder that is proved dead loses it here (F082)."""
    asked = clock()
    match objects.read(STORE):
        case Seen(Corrupt() as broken) as seen:
            if not objects.outlived(seen):
                raise corrupt_lease(STORE, broken)
        case Seen(Held() as held) as seen if family.get(STORE) != held.nonce:
            return reap(objects, STORE, seen, held, watch, asked)
    return None


def nobody_works(
    objects: LeaseObjects, watches: MutableMapping[str, Watch], clock: Clock, family: Mapping[str, str]
) -> Obstacle | None:
    """Say who is at work on a model, other than the process above us; dead ones lose their leases here."""
    asked = clock()
    first: Obstacle | None = None
    for key, seen in objects.held():
        if not is_work(key):
            continue
        match seen.record:
            case Corrupt() as broken:
                if not objects.outlived(seen):
                    raise corrupt_lease(key, broken)
            case Held() as held if family.get(key) != held.nonce:
                watch = watches.setdefault(key, Watch(clock))
                first = _sooner(first, reap(objects, key, seen, held, watch, asked))
    return first


def _sooner(one: Obstacle | None, other: Obstacle | None) -> Obstacle | None:
    """Return the obstacle that may be over first, so that nobody sleeps past that moment."""
    if one is None or other is None:
        return one or other
    return min(one, other, key=lambda each: each.stale_in if each.stale_in is not None else 0.0)
