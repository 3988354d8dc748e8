"""The objects of leases in a store: read one, swap one, list those that somebody holds.

A directory datastore is a store here too: `file://` swaps under the lock of a file, on every host that mounts it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from msgspec import Struct

from bayou.core import limits
from bayou.core.deadline import Deadline
from bayou.core.errors import AlreadyExists, NoConditionalWrites, NotFound, PreconditionFailed, StoreError, TooLarge
from bayou.core.ids import ulid
from bayou.lease.keys import object_key
from bayou.lease.record import FREE_SIZE, Corrupt, Free, Held, Record, corrupt, decode, encode, too_large
from bayou.objectstore import keys
from bayou.objectstore.keys import Key
from bayou.objectstore.store import Store
from bayou.objectstore.transport import Create, Match


class Seen(Struct, frozen=True):
    """A record, and the version that came in the same answer (V2). `modified` is the store's clock, in ms."""

    record: Record
    match: Match
    modified: int


class LeaseObjects:
    """Leases as the store has them, one request or two at a time. Safe to use from many threads."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def url(self) -> str:
        return self._store.url

    def now(self) -> int | None:
        """Return the store's time in ms, if it tells."""
        return self._store.now()

    def within(self, deadline: Deadline) -> LeaseObjects:
        return LeaseObjects(self._store.within(deadline))

    def within_seconds(self, seconds: float) -> LeaseObjects:
        return LeaseObjects(self._store.within_seconds(seconds))

    def read(self, key: str) -> Seen | None:
        """Return what a lease says, or None if nobody ever took it."""
        return self._read(object_key(key))

    def swap(self, key: str, record: Held | Free, over: Seen | None) -> Seen | None:
        """Write a record over exactly the version `over`, or where there is none.

        None: it is not known to be in. Somebody else was faster, or the answer was lost and the object shows
        something else; then it may still arrive, and whoever wrote it looks for its nonce before it writes again.
        """
        data = encode(record)
        condition = Create() if over is None else over.match
        if isinstance(condition, Match) and condition.etag is None and condition.version is None:
            raise NoConditionalWrites(f"{self.url} gave no ETag for a lease, so it cannot be replaced safely")
        try:
            stored = self._store.put(object_key(key), data, condition=condition)
        except (AlreadyExists, PreconditionFailed):
            return None
        except StoreError as error:
            if not error.ambiguous:
                raise
            found = self.read(key)
            return found if found is not None and found.record == record else None
        return Seen(record, Match(stored.etag, stored.version), 0)

    def held(self) -> Iterator[tuple[str, Seen]]:
        """Yield the leases that are not free, with their keys; of corrupt ones as far as the object's name tells."""
        found = [
            keys.as_listed(meta.key)
            for page in self._store.list(keys.LEASES)
            for meta in page
            if meta.size != FREE_SIZE and _is_lease(meta.key)
        ]
        for name, seen in zip(found, self._store.map(self._read, found), strict=True):
            match seen:
                case Seen(Held(key=key)):
                    yield key, seen
                case Seen(Corrupt()):
                    yield str(keys.parse_lease(name)), seen

    def _read(self, name: Key) -> Seen | None:
        record: Record
        try:
            fetched = self._store.get(name, most=limits.LEASE_BYTES)
            if fetched is None:
                return None
            data, meta = bytes(fetched.data), fetched.meta
            record = decode(data)
            if isinstance(record, Held) and object_key(record.key) != name:
                record = corrupt(data, f"it says that it is {record.key[:100]}")
        except NotFound:
            return None
        except TooLarge as error:
            try:
                meta = self._store.head(name)
            except NotFound:
                return None
            record = too_large(f"{meta.etag} {meta.version} {meta.size}", error.message)
        return Seen(record, Match(meta.etag, meta.version), meta.modified)

    def outlived(self, seen: Seen) -> bool:
        """Whether a lease was not renewed for longer than any may be held: then it keeps nobody out, whatever it says.

        A holder that lives would have renewed it, and a corrupt one needs no person to remove it (V25). Our own clock
        only says whether it is worth a request; the store's decides, by which the lease was written too.
        """
        most = limits.TTL_MAX * 1000
        if not seen.modified or time.time() * 1000 - seen.modified <= most:  # 0: nobody knows when
            return False
        now = self.now()
        if now is None:
            probe = keys.probe(ulid())
            self._store.put(probe, b"clock")
            try:
                now = self._store.head(probe).modified
            except NotFound:
                return False  # a collection has taken it; whoever waits asks again
            finally:
                self._store.delete([probe])
        return now - seen.modified > most


def _is_lease(name: str) -> bool:
    """Whether a lease can have this object: one of a name that no key makes keeps nobody out, and is no lease."""
    key = keys.parse_lease(name)
    return key is not None and object_key(key) == name
