"""The objects of leases in a store: read one, swap one, list those that somebody holds.

A directory datastore is a store here too: `file://` swaps under the lock of a file, on every host that mounts it.

What a lease's object says.

No two writes of one key ever have the same bytes: a nonce belongs to one acquisition, is renewed by counting, and is
freed once. So an ETag that is made of content is a version too, and a write that arrives late never fits (F083).

What leases are called, and what their objects are called.

A key is text for people: `model/<type>/<id>`, `store`, `commit`. Types have slashes, and a key may be longer than a
file's name, so the object's name is made of it here and is never taken apart: the key is also in the record.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import asdict, replace

from bayou.core import limits
from bayou.core.deadline import Deadline
from bayou.core.errors import (
    AlreadyExists,
    NoConditionalWrites,
    NotFound,
    PreconditionFailed,
    StoreError,
    TooLarge,
    UsageError,
)
from bayou.core.ids import ulid
from bayou.core.structs import Count, Identifier, Label, Malformed, Time, check_time, convert, dump_json, parse
from bayou.objectstore import keys
from bayou.objectstore.keys import Key
from bayou.objectstore.store import Store
from bayou.objectstore.transport import Create, Match

_LONGEST_KEY = 4096

RENEW = 1 / 3
"""The part of its TTL after which a holder renews a lease."""


class HeldLease(Struct, frozen=True):
    """Somebody has it, for at most `limits.TTL_MAX` at a time, whatever it says (V25).

    `acquired_at` is the holder's own clock, and for people only; `renewed` counts renewals.
    """

    key: Annotated[str, Meta(max_length=_LONGEST_KEY)]
    holder: Label
    host: Label
    pid: Count
    nonce: Identifier
    acquired_at: Time
    ttl_s: Annotated[float, Meta(gt=0)]
    renewed: Count = 0

    def again(self) -> HeldLease:
        """Return what its holder writes next."""
        return replace(self, renewed=self.renewed + 1)

    @property
    def age_s(self) -> float:
        """How long it is held, at least: renewals come every third of the TTL, and need no clock that we trust."""
        return self.renewed * self.ttl_s * RENEW

    def __str__(self) -> str:
        return f"{self.holder} on {self.host} (pid {self.pid})"


class Free(Struct, frozen=True):
    """Nobody has it; the one with this nonce was the last."""

    nonce: Identifier


class Corrupt(Struct, frozen=True):
    """Something that is no lease. Its nonce is made of its bytes, so that it can be released like any other."""

    nonce: str
    why: str


Record = HeldLease | Free | Corrupt


def encode(record: HeldLease | Free) -> bytes:
    """Write a record. A free one is always `FREE_SIZE` long, and no other is: a listing shows which need no look."""
    if isinstance(record, Free):
        return dump_json({"free": True, "nonce": record.nonce})
    return dump_json(asdict(record))


def decode(data: bytes) -> Record:
    """Read a record; what is none is `Corrupt`, never an error."""
    try:
        fields = parse(data, limits.LEASE_BYTES)
        if fields.get("free", False) is True:
            return convert(fields, Free)
        if fields.get("free", False) is not False:
            raise Malformed("free is not true or false")
        if isinstance(ttl := fields.get("ttl_s"), int | float) and not isinstance(ttl, bool):
            fields["ttl_s"] = min(ttl, limits.TTL_MAX)  # V25: also where it is too large for a float
        held = convert(fields, HeldLease)
        check_time(held.acquired_at, "acquired_at")
        return held
    except Malformed as error:
        return corrupt(data, str(error))


def corrupt(data: bytes, why: str) -> Corrupt:
    return Corrupt(f"corrupt-{hashlib.sha256(data).hexdigest()[:16]}", why)


def too_large(version: str, why: str) -> Corrupt:
    """Return the record of an object that is too large to be read; its version makes its nonce."""
    return corrupt(version.encode(errors="replace"), why)


FREE_SIZE = len(encode(Free("0" * 26)))


STORE = "store"
"""Keeps every writer of a model out, and waits for those that are at work."""

COMMIT = "commit"
"""Lets a committer that loses one race after the other go first. Nobody waits for it but committers."""

_MODEL = "model/"
_LONGEST = 200


def model_key(model_type: str, model_id: str) -> str:
    """Name the lease for writers of one model."""
    return f"{_MODEL}{model_type}/{model_id}"


def is_work(key: str) -> bool:
    """Whether this is a lease that `store` excludes: all but `store` itself and `commit`."""
    return key not in (STORE, COMMIT)


def check_key(key: str) -> str:
    """Return a key that can be one."""
    if not key:
        raise UsageError("a lease has no empty key", hint="list them with `bayou datastore lock status`")
    return key


def object_key(key: str) -> Key:
    """Name the object of a lease; one whose key is too long for a file's name is named by its hash."""
    whole = keys.lease(key)
    if len(whole) <= _LONGEST:
        return whole
    return keys.lease(f"long-{hashlib.sha256(key.encode(errors='surrogateescape')).hexdigest()}")


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

    def swap(self, key: str, record: HeldLease | Free, over: Seen | None) -> Seen | None:
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
                case Seen(HeldLease(key=key)):
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
            if isinstance(record, HeldLease) and object_key(record.key) != name:
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
