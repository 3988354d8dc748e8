"""What a replica has of a path against what its source has, and which key a copy gets.

A copy's key stands for one content and one age of the target (its count of collections): whoever copies it, again or at
the same time, writes the same bytes to the same key (V11), and what lies there is proof that it was copied. After a
collection every key is another, so a late DELETE hits nothing that anybody still needs.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from bayou.core.ids import ulid, ulid_of
from bayou.index.entry import Entry

_IDENTITY = slice(10, 20)
"""The characters of a copy's push id that stand for the content; those before are a time, those after an age."""

_TIME_BITS, _IDENTITY_BITS, _AGE_BITS = 48, 50, 30


class Pair(Struct, frozen=True):
    """The entries of one path, in the source and in the target; None where there is none."""

    path: str
    source: Entry | None
    target: Entry | None

    @property
    def action(self) -> Literal["copy", "record", "delete", "keep"]:
        """What makes the target what the source is."""
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
    """Say whether a target's entry has the content of the source's."""
    if there.size != source.size:
        return False
    if source.sha256 is not None:
        return there.sha256 == source.sha256
    # Nobody has read the source's object yet: only the key of a copy says which object it was made of.
    known = _identity(source)
    return known is not None and there.push is not None and there.push[_IDENTITY] == ulid_of(known)[_IDENTITY]


def copy_push(source: Entry, store: str, collections: int) -> str:
    """Return the push id of a copy of this entry in the store of that id, after so many collections."""
    known = _identity(source)
    if known is None:
        return ulid()  # the object may change, and nothing would tell: no key can stand for its content
    age = _number(f"{store} {collections}".encode(), _AGE_BITS)
    return ulid_of(known | age)


def _identity(source: Entry) -> int | None:
    """Return the part of a push id that stands for an entry's content; None if nothing tells it from another."""
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
