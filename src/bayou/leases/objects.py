"""The objects of leases in a store: their keys, their records, and how to read, swap and list them.

A lease's key is text for people: `model/<type>/<id>`, `store`, `commit`. Types have slashes, and a key may be longer
than a file's name, so `object_key` computes the object's name, and the name is never parsed: the record has the key.

No two writes of one key ever have the same bytes: a nonce belongs to one acquisition, each renewal counts up, and a
nonce is freed once. So an ETag that is computed from content identifies a version too, and the condition of a write
that arrives late never holds (F083). A directory datastore works the same way: `file://` swaps under a file lock, on
every host that mounts the directory.
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
_LONGEST_NAME = 200

RENEW = 1 / 3
"""The part of its TTL after which a holder renews a lease."""

STORE = "store"
"""The key of the lease that excludes every writer of a model; its holder waits for active writers."""

COMMIT = "commit"
"""The key of the lease that lets a committer go first that loses one race after the other; only committers wait."""

_MODEL = "model/"


class HeldLease(Struct, frozen=True):
    """The record of a lease that a process holds, for at most `limits.TTL_MAX` at a time, whatever `ttl_s` is (V25).

    `acquired_at` is by the holder's own clock, and only for people; `renewed` counts renewals.
    """

    key: Annotated[str, Meta(max_length=_LONGEST_KEY)]
    holder: Label
    host: Label
    pid: Count
    nonce: Identifier
    acquired_at: Time
    ttl_s: Annotated[float, Meta(gt=0)]
    renewed: Count = 0

    def renewal(self) -> HeldLease:
        """Return the record that its holder writes next."""
        return replace(self, renewed=self.renewed + 1)

    @property
    def age_s(self) -> float:
        """The least time for which the lease was held, from the number of renewals, so that no clock is compared."""
        return self.renewed * self.ttl_s * RENEW

    def __str__(self) -> str:
        return f"{self.holder} on {self.host} (pid {self.pid})"


class FreeLease(Struct, frozen=True):
    """The record of a free lease, with the nonce of its last holder."""

    nonce: Identifier


class CorruptLease(Struct, frozen=True):
    """An object that is no lease. Its nonce is computed from its bytes, so that it can be released like any other."""

    nonce: str
    why: str


Record = HeldLease | FreeLease | CorruptLease


def encode(record: HeldLease | FreeLease) -> bytes:
    """Encode a record. Only a free record is `FREE_SIZE` long, so a listing shows which leases need no read."""
    if isinstance(record, FreeLease):
        return dump_json({"free": True, "nonce": record.nonce})
    return dump_json(asdict(record))


def decode(data: bytes) -> Record:
    """Decode a record; an object that is none gives `CorruptLease`, never an error."""
    try:
        fields = parse(data, limits.LEASE_BYTES)
        if fields.get("free", False) is True:
            return convert(fields, FreeLease)
        if fields.get("free", False) is not False:
            raise Malformed("free is not true or false")
        if isinstance(ttl := fields.get("ttl_s"), int | float) and not isinstance(ttl, bool):
            fields["ttl_s"] = min(ttl, limits.TTL_MAX)  # V25: also if it is too large for a float
        held = convert(fields, HeldLease)
        check_time(held.acquired_at, "acquired_at")
        return held
    except Malformed as error:
        return corrupt(data, str(error))


def corrupt(data: bytes, why: str) -> CorruptLease:
    """Return the record of an object that is no lease."""
    return CorruptLease(f"corrupt-{hashlib.sha256(data).hexdigest()[:16]}", why)


def too_large(version: str, why: str) -> CorruptLease:
    """Return the record of an object that is too large to read, with a nonce from its version."""
    return corrupt(version.encode(errors="replace"), why)


FREE_SIZE = len(encode(FreeLease("0" * 26)))


def model_key(model_type: str, model_id: str) -> str:
    """Return the key of the lease for writers of one model."""
    return f"{_MODEL}{model_type}/{model_id}"


def excluded_by_store(key: str) -> bool:
    """Return whether the lease `store` excludes this lease: all but `store` itself and `commit`."""
    return key not in (STORE, COMMIT)


def check_key(key: str) -> str:
    """Return `key`, or raise `UsageError` if it is empty."""
    if not key:
        raise UsageError("a lease has no empty key", hint="list them with `bayou datastore lock status`")
    return key


def object_key(key: str) -> Key:
    """Return the key of a lease's object; it contains a hash if the lease's key is too long for a file's name."""
    whole = keys.lease(key)
    if len(whole) <= _LONGEST_NAME:
        return whole
    return keys.lease(f"long-{hashlib.sha256(key.encode(errors='surrogateescape')).hexdigest()}")


class LeaseVersion(Struct, frozen=True):
    """A record, and the version that came in the same response (V2). `modified` is by the store's clock, in ms."""

    record: Record
    match: Match
    modified: int


class LeaseObjects:
    """The lease objects of a store; each method sends one or two requests. Safe to use from many threads."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def url(self) -> str:
        return self._store.url

    def now(self) -> int | None:
        """Return the store's time in ms, or None if the store does not supply it."""
        return self._store.now()

    def within(self, deadline: Deadline) -> LeaseObjects:
        return LeaseObjects(self._store.within(deadline))

    def within_seconds(self, seconds: float) -> LeaseObjects:
        return LeaseObjects(self._store.within_seconds(seconds))

    def read(self, key: str) -> LeaseVersion | None:
        """Return a lease's record, or None if no process ever acquired it."""
        return self._read(object_key(key))

    def swap(self, key: str, record: HeldLease | FreeLease, over: LeaseVersion | None) -> LeaseVersion | None:
        """Replace exactly the version `over` by a record, or create the object if `over` is None.

        None: the record is not known to be stored. Another process was faster, or the response was lost and the object
        has another record. Then the write may still arrive, so the caller looks for its nonce before it writes again.
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
        return LeaseVersion(record, Match(stored.etag, stored.version), 0)

    def held(self) -> Iterator[tuple[str, LeaseVersion]]:
        """Yield the leases that are not free, with their keys; that of a corrupt lease is from the object's name."""
        found = [
            keys.as_listed(meta.key)
            for page in self._store.list(keys.LEASES)
            for meta in page
            if meta.size != FREE_SIZE and _is_lease(meta.key)
        ]
        for name, seen in zip(found, self._store.map(self._read, found), strict=True):
            match seen:
                case LeaseVersion(HeldLease(key=key)):
                    yield key, seen
                case LeaseVersion(CorruptLease()):
                    yield str(keys.parse_lease(name)), seen

    def _read(self, name: Key) -> LeaseVersion | None:
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
        return LeaseVersion(record, Match(meta.etag, meta.version), meta.modified)

    def past_longest_ttl(self, seen: LeaseVersion) -> bool:
        """Return whether a lease was not renewed for longer than the longest TTL: then it excludes no process.

        A living holder would have renewed it, and a corrupt lease needs no person to release it (V25). Our own clock
        only decides whether to send a request; the store's clock, which also stamped the lease, decides the rest.
        """
        most = limits.TTL_MAX * 1000
        if not seen.modified or time.time() * 1000 - seen.modified <= most:  # 0: the time is unknown
            return False
        now = self.now()
        if now is None:
            probe = keys.probe(ulid())
            self._store.put(probe, b"clock")
            try:
                now = self._store.head(probe).modified
            except NotFound:
                return False  # a collection has deleted the probe; the next attempt asks again
            finally:
                self._store.delete([probe])
        return now - seen.modified > most


def _is_lease(name: str) -> bool:
    """Return whether an object has the name of a lease; any other object excludes no process."""
    key = keys.parse_lease(name)
    return key is not None and object_key(key) == name
