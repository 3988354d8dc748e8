"""The objects of leases in a store: read one, swap one, list those that somebody holds.

A directory datastore is a store here too: `file://` swaps under the lock of a file, on every host that mounts it.
"""

from __future__ import annotations

from collections.abc import Iterator

from bayou.deadline import Deadline
from bayou.errors import AlreadyExists, NoConditionalWrites, NotFound, PreconditionFailed, StoreError
from bayou.lease.keys import object_key
from bayou.lease.record import FREE_SIZE, Corrupt, Free, Held, Record, corrupt, decode, encode
from bayou.quick import dataclass
from bayou.store import keys
from bayou.store.keys import Key
from bayou.store.store import Store
from bayou.store.transport import Create, Match


@dataclass(frozen=True, slots=True)
class Seen:
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
            if meta.size != FREE_SIZE and keys.parse_lease(meta.key) is not None
        ]
        for name, seen in zip(found, self._store.map(self._read, found), strict=True):
            match seen:
                case Seen(Held(key=key)):
                    yield key, seen
                case Seen(Corrupt()):
                    yield str(keys.parse_lease(name)), seen

    def _read(self, name: Key) -> Seen | None:
        try:
            fetched = self._store.get(name)
        except NotFound:
            return None
        if fetched is None:
            return None
        data, meta = bytes(fetched.data), fetched.meta
        record = decode(data)
        if isinstance(record, Held) and object_key(record.key) != name:
            record = corrupt(data, f"it says that it is {record.key}")
        return Seen(record, Match(meta.etag, meta.version), meta.modified)
