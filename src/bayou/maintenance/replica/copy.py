"""Copy objects from store to store in bounded memory. An object that does not have its entry's hash is not copied.

`Pair` compares the entries of a path in the source and in the target, and says what to do about it.

The key of a copy is derived from its content and from the target's *age*: the id of the store and its number of garbage
collections. Two processes that copy an object, at the same time or one after the other, so write the same bytes to the
same key (V11), and an object at that key proves that it was copied. Each garbage collection changes the age and so the
keys of later copies: a DELETE of an earlier collection that arrives late removes nothing that is in use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from io import BytesIO
from typing import BinaryIO, Literal, cast

from msgspec import Struct
from msgspec.structs import replace

from bayou.core.errors import BadAnswer, BayouError, ContentChanged, NotFound, PathRefused, PreconditionFailed, Rejected
from bayou.core.ids import ulid, ulid_of
from bayou.index.entry import Entry
from bayou.objectstore.multipart import THRESHOLD, NullSink
from bayou.objectstore.store import Store
from bayou.sync.report import Failure

_IDENTITY = slice(10, 20)
"""The characters of a copy's push id that are derived from the content; a time precedes them, the age follows."""

_TIME_BITS, _IDENTITY_BITS, _AGE_BITS = 48, 50, 30


class Pair(Struct, frozen=True):
    """The entries of one path in the source and in the target; None where a store has no such path."""

    path: str
    source: Entry | None
    target: Entry | None

    @property
    def action(self) -> Literal["copy", "record", "delete", "keep"]:
        """What makes the target equal to the source: `record` changes only the entry, and not the object."""
        if self.source is None:
            return "delete" if self.target is not None else "keep"
        if self.target is None or not is_copy(self.target, self.source):
            return "copy"
        return "keep" if self.target.modified == self.source.modified else "record"

    @property
    def settled(self) -> Entry | None:
        """The target's entry after an action that copies nothing."""
        if self.source is None or self.target is None:
            return None
        return replace(self.target, modified=self.source.modified)


def is_copy(there: Entry, source: Entry) -> bool:
    """Return whether a target's entry has the content of the source's entry."""
    if there.size != source.size:
        return False
    if source.sha256 is not None:
        return there.sha256 == source.sha256
    # The source was discovered by a listing, without hashes: only the key of a copy says from which object it was made.
    known = _identity(source)
    return known is not None and there.push is not None and there.push[_IDENTITY] == ulid_of(known)[_IDENTITY]


def copy_push(source: Entry, store: str, collections: int) -> str:
    """Return the push id of a copy of an entry, in the store with the id `store` after so many `collections`."""
    known = _identity(source)
    if known is None:
        return ulid()  # the object may change without a trace, so no key can be derived from its content
    age = _number(f"{store} {collections}".encode(), _AGE_BITS)
    return ulid_of(known | age)


def _identity(source: Entry) -> int | None:
    """Return the bits of a push id that are derived from an entry's content; None if nothing identifies the content."""
    if source.sha256 is not None:
        content = b"sha256\0" + source.sha256
    elif source.etag is not None or source.version is not None:
        content = f"object\0{source.path}\0{source.size}\0{source.etag}\0{source.version}".encode()
    else:
        return None
    time = source.modified & ((1 << _TIME_BITS) - 1)
    return (time << _IDENTITY_BITS | _number(content, _IDENTITY_BITS)) << _AGE_BITS


def _number(data: bytes, bits: int) -> int:
    return int.from_bytes(sha256(data).digest()[:8], "big") >> (64 - bits)


_LANES = ((1 << 20, None), (THRESHOLD, 8), (None, 2))
"""Sizes, and how many objects up to that size are copied at once (None: as many as the store allows).

Together that takes some 200 MB of memory at most."""

_SPAN = 8 << 20
_AHEAD = 4
"""Spans of one large object that are read at once."""


class Age(Struct, frozen=True):
    """The store id and the number of garbage collections of the target, from which the keys of copies are derived.

    `doubt`: an earlier run may have copied some objects already, so a HEAD request checks each key before a copy.
    """

    store: str
    collections: int
    doubt: bool


class Copied(Struct, frozen=True):
    """An entry for the target, whose object is in the target; `sent`: this run copied it."""

    entry: Entry
    sent: bool


class _Unreadable(BayouError):
    """The source does not have the bytes that its index names."""

    code = "unreadable"


def copy_all(
    source: Store, target: Store, entries: Sequence[Entry], age: Age
) -> Iterator[tuple[Entry, Copied | Failure]]:
    """Copy many objects at once, in bounded memory; yield each entry with its result, small objects first."""
    for entry in entries:
        why = entry.refusal()
        if why is not None:
            yield entry, Failure(entry.path, PathRefused.code, f"{entry.path}: {why}")  # V25
    entries = [entry for entry in entries if entry.refusal() is None]
    least = -1
    for most, threads in _LANES:
        lane = [entry for entry in entries if least < entry.size and (most is None or entry.size <= most)]
        yield from zip(
            lane, target.map(lambda entry: copy(source, target, entry, age), lane, threads=threads), strict=True
        )
        least = most if most is not None else least


def copy(source: Store, target: Store, entry: Entry, age: Age) -> Copied | Failure:
    """Copy the object of an entry of the source to the target, and return the target's entry.

    A fault of this object is returned as a `Failure`; a fault of a store is raised. A task may run this twice.
    """
    push = copy_push(entry, age.store, age.collections)
    there = replace(entry, push=push, etag=None, version=None)
    if age.doubt and entry.sha256 is not None:
        found = _find_copy(target, there)
        if found is not None:
            return Copied(found, sent=False)
    try:
        if entry.size <= THRESHOLD:
            return _small(source, target, entry, there)
        return _large(source, target, entry, there)
    except (_Unreadable, Rejected) as error:  # `Rejected`: the target does not allow the name
        return Failure(entry.path, error.code, error.message)


def _find_copy(target: Store, there: Entry) -> Entry | None:
    """Return the entry of a copy that an earlier run made, or None; its key identifies its content."""
    try:
        meta = target.head(there.key)
    except NotFound:
        return None
    return replace(there, etag=meta.etag, version=meta.version) if meta.size == there.size else None


def _small(source: Store, target: Store, entry: Entry, there: Entry) -> Copied:
    received = BytesIO()
    with _reading(entry):
        digest = source.download(entry.key, received, entry.size, if_match=_condition(entry)).sha256
    _check_hash(entry, digest)
    stored = target.put(there.key, received.getbuffer())
    return Copied(replace(there, sha256=digest, etag=stored.etag, version=stored.version), sent=True)


def _large(source: Store, target: Store, entry: Entry, there: Entry) -> Copied:
    digest = entry.sha256
    if digest is None:  # an upload needs the hash before its first byte, so the object is read once more for it
        with _reading(entry):
            digest = source.download(entry.key, NullSink(), entry.size, if_match=_condition(entry)).sha256
    remote = RemoteFile(source, entry)
    try:
        stored = target.upload(there.key, cast("BinaryIO", remote), entry.size, digest)
    except ContentChanged:
        raise _other_bytes(entry) from None
    return Copied(replace(there, sha256=digest, etag=stored.etag, version=stored.version), sent=True)


class RemoteFile:
    """An object of a store as a file to read from its start; all parts are of one version of the object (V2)."""

    def __init__(self, store: Store, entry: Entry) -> None:
        self._store = store
        self._entry = entry
        self._etag = _condition(entry)
        self._at = 0
        self.name = entry.path

    def seek(self, at: int) -> int:
        self._at = at
        return at

    def read(self, size: int) -> bytes:
        end = min(self._at + size, self._entry.size)
        spans = [(at, min(at + _SPAN, end)) for at in range(self._at, end, _SPAN)]
        with _reading(self._entry):
            data = b"".join(self._store.map(self._fetch, spans, threads=_AHEAD))
        self._at = end
        return data

    def _fetch(self, span: tuple[int, int]) -> bytes:
        found = self._store.get(self._entry.key, span=span, if_match=self._etag)
        if found is None or found.meta.size != self._entry.size:
            raise BadAnswer(f"{self._entry.key}: {self._entry.size} bytes expected, the store has another object")
        return bytes(found.data)


@contextmanager
def _reading(entry: Entry) -> Iterator[None]:
    """Turn an error about one object of the source into `_Unreadable`, so that it is not taken for the target's."""
    try:
        yield
    except NotFound:
        raise _Unreadable(f"the object of {entry.path} is missing in the source") from None
    except PreconditionFailed:
        raise _Unreadable(f"the object of {entry.path} is another one than the source's index names") from None
    except BadAnswer as error:
        raise _Unreadable(error.message) from None


def _condition(entry: Entry) -> str | None:
    """Return the ETag that a discovered object must still have; None for an object that Bayou wrote."""
    return entry.etag if entry.push is None else None


def _check_hash(entry: Entry, digest: bytes) -> None:
    if entry.sha256 is not None and digest != entry.sha256:
        raise _other_bytes(entry)


def _other_bytes(entry: Entry) -> _Unreadable:
    return _Unreadable(f"the object of {entry.path} does not have the bytes that were pushed")
