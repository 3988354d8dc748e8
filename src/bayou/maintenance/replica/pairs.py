"""Compare the entries of a path in the source and in the target of a replication, and say how a copy is made.

The push id of a copy is derived from its content and from the target's *age*: the id of the store and its number of
garbage collections. Two processes that copy a large object, at the same time or one after the other, so write the same
bytes to the same key (V11), and an object at that key proves that it was copied. Each garbage collection changes the
age and so the keys of later copies: a DELETE of an earlier collection that arrives late removes nothing that is in use.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from bayou.core.ids import ulid, ulid_of
from bayou.index.entry import Entry

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
    def uncopied_entry(self) -> Entry | None:
        """The target's entry after an action that copies nothing."""
        if self.source is None or self.target is None:
            return None
        return replace(self.target, modified=self.source.modified)


def is_copy(there: Entry, source: Entry) -> bool:
    """Return whether a target's entry has the content of the source's entry, wherever the bytes are in either store.

    So a compaction, of the source or of the target, causes no copies (P4).
    """
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


class CopyRules(Struct, frozen=True):
    """How a run writes copies to the target.

    `store` and `collections` are the target's id and its number of garbage collections: its age, from which push ids
    are derived. `doubt`: an earlier run may have copied some objects already, so a HEAD request checks the key of each
    object of its own before a copy; a pack is never taken up again (P1). Files of less than `pack_below` bytes travel
    in packs of about `pack_size` bytes.
    """

    store: str
    collections: int
    doubt: bool
    pack_below: int
    pack_size: int

    def push(self, source: Entry) -> str:
        """Return the push id of the copy of an entry."""
        return copy_push(source, self.store, self.collections)

    def is_packed(self, source: Entry) -> bool:
        """Whether the copy of an entry travels in a pack."""
        return source.size < self.pack_below


class CopiedEntry(Struct, frozen=True):
    """An entry for the target, whose bytes are in the target. `sent`: this run copied it.

    `repeated`: more than one request has written the pack, so a collection may yet delete it (P6, K13).
    """

    entry: Entry
    sent: bool
    repeated: bool = False
