"""Copy single objects from store to store in bounded memory. An object without its entry's hash is not copied.

The key of a copy is computed (`replica.pairs`), so that a repeated copy writes the same bytes to the same key.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import BinaryIO, cast

from msgspec.structs import replace

from bayou.core import activity
from bayou.core.errors import BadAnswer, BayouError, ContentChanged, NotFound, PreconditionFailed, Rejected, StoreError
from bayou.index.entry import Entry
from bayou.maintenance.replica.pairs import CopiedEntry, CopyRules
from bayou.objectstore.multipart import THRESHOLD, NullSink
from bayou.objectstore.store import Store
from bayou.sync.report import Failure

_SPAN = 8 << 20
_AHEAD = 4
"""Spans of one large object that are read at once."""


class UnreadableSource(BayouError):
    """The source does not have the bytes that its index names."""

    code = "unreadable"


def copy_object(source: Store, target: Store, entry: Entry, rules: CopyRules) -> CopiedEntry | Failure:
    """Copy the object of an entry of the source to an object of the target, and return the target's entry.

    A fault of this object is returned as a `Failure`; a fault of a store is raised. A task may run this twice.
    """
    found = find_copy(target, entry, rules)
    if found is not None:
        return found
    try:
        if entry.size <= THRESHOLD:
            return send(target, entry, *read_object(source, entry), rules)
        return _copy_large(source, target, entry, rules)
    except (UnreadableSource, Rejected) as error:  # `Rejected`: the target does not allow the name
        return Failure(entry.path, error.code, error.message)


def find_copy(target: Store, entry: Entry, rules: CopyRules) -> CopiedEntry | None:
    """Return the copy that an earlier run may have made, or None; its key identifies its content."""
    if not rules.doubt or entry.sha256 is None:
        return None
    there = _entry_of_copy(entry, entry.sha256, rules)
    try:
        meta = target.head(there.key)
    except NotFound:
        return None
    return (
        CopiedEntry(replace(there, etag=meta.etag, version=meta.version), sent=False)
        if meta.size == there.size
        else None
    )


def read_object(source: Store, entry: Entry) -> tuple[bytes, bytes]:
    """Return the bytes of a small object and their hash; `UnreadableSource` if they are not those of the entry."""
    received = BytesIO()
    with _reading(entry):
        digest = source.download(entry.key, received, entry.size, if_match=_condition(entry)).sha256
    if entry.sha256 is not None and digest != entry.sha256:
        raise other_bytes(entry)
    return received.getvalue(), digest


def send(target: Store, entry: Entry, data: bytes, sha256: bytes, rules: CopyRules) -> CopiedEntry:
    """Write the bytes of an entry, which have that hash, to an object of the target."""
    there = _entry_of_copy(entry, sha256, rules)
    stored = target.put(there.key, data)
    return CopiedEntry(replace(there, etag=stored.etag, version=stored.version), sent=True)


def _copy_large(source: Store, target: Store, entry: Entry, rules: CopyRules) -> CopiedEntry:
    digest = entry.sha256
    if digest is None:  # an upload needs the hash before its first byte, so the object is read once more for it
        with _reading(entry):
            digest = source.download(entry.key, NullSink(), entry.size, if_match=_condition(entry)).sha256
    there = _entry_of_copy(entry, digest, rules)
    try:
        stored = target.upload(
            there.key, cast("BinaryIO", RemoteFile(source, entry)), entry.size, digest, moved=activity.moved
        )
    except ContentChanged:
        raise other_bytes(entry) from None
    return CopiedEntry(replace(there, etag=stored.etag, version=stored.version), sent=True)


def _entry_of_copy(entry: Entry, sha256: bytes, rules: CopyRules) -> Entry:
    return Entry(entry.path, rules.push(entry), entry.size, sha256, None, None, entry.modified)


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
    """Turn an error about one object of the source into `UnreadableSource`: it is not taken for the target's."""
    try:
        yield
    except (NotFound, PreconditionFailed, BadAnswer) as error:
        raise unreadable(entry, error) from None


def unreadable(entry: Entry, error: StoreError) -> UnreadableSource:
    """Return the error of an entry for that of a request for its object, or its pack, in the source."""
    if isinstance(error, NotFound):
        return UnreadableSource(f"the object of {entry.path} is missing in the source")
    if isinstance(error, PreconditionFailed):
        return UnreadableSource(f"the object of {entry.path} is another one than the source's index names")
    return UnreadableSource(error.message)


def _condition(entry: Entry) -> str | None:
    """Return the ETag that a discovered object must still have; None for an object that Bayou wrote."""
    return entry.etag if entry.push is None else None


def other_bytes(entry: Entry) -> UnreadableSource:
    return UnreadableSource(f"the object of {entry.path} does not have the bytes that were pushed")
