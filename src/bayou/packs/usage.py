"""How much of each pack the index still names, computed from entries alone: no pack is read.

Members lie one after the other in a pack, each after a header with its name. So bytes between the members that the
index names belong to files that it does not name any more. Only for the end of a pack this is an estimate, since the
length of the list there (`packs.archive`) is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from msgspec import Struct

from bayou.index.entry import Entry
from bayou.objectstore import keys
from bayou.packs.archive import DIRECTORY_BYTES, END_BYTES, HEADER_BYTES, LIST_NAME

_LIST_BYTES, _LIST_ROW_BYTES = 200, 80
"""The list of a pack, deflated: at most so many bytes, and so many for each file besides half of its name."""

_FIXED_BYTES = END_BYTES + HEADER_BYTES + DIRECTORY_BYTES + 2 * len(LIST_NAME) + _LIST_BYTES
"""The bytes of a pack without files."""

SMALL_SHARE = 4
"""A pack of less than this part of the usual size is small."""


class NamedMember(NamedTuple):
    """A file in a pack as an index entry describes it. `name` is the length of its path; `live`: the index names it.

    Otherwise only an earlier root, which readers may still use, names it.
    """

    pack: str
    offset: int
    stored: int
    name: int
    live: bool = True


class PackUse(Struct, frozen=True):
    """How much of one pack is in use."""

    name: str
    size: int
    files: int
    """Files that the index names."""
    stored: int
    """The bytes of these files as they lie in the pack."""
    live: int
    """The same with their headers and their part of the list."""
    named: int
    """Files that the index or an earlier root names."""
    dead: int
    """Bytes of files that none of them names; about so many, if they are at the end of the pack."""

    @property
    def sparse(self) -> bool:
        """Whether the index names less than half of the pack."""
        return 2 * self.live < self.size - _FIXED_BYTES


def is_small(size: int, pack_size: int) -> bool:
    """Whether a pack is so small, compared with the configured size, that it is better joined with others."""
    return size < pack_size // SMALL_SHARE


def named_member(entry: Entry, *, live: bool = True) -> NamedMember | None:
    """Return the place of an entry in its pack; None if it is in none, or its place can be none of a pack (V25)."""
    if entry.pack is None or entry.location_refusal() is not None:
        return None
    assert entry.offset is not None
    assert entry.stored is not None
    return NamedMember(entry.pack, entry.offset, entry.stored, len(entry.path.encode()), live)


def pack_uses(members: Iterable[NamedMember]) -> Iterator[PackUse]:
    """Yield the use of each pack; `members` are in order of pack and offset, of equal ones the live one first."""
    for pack, group in groupby(members, key=itemgetter(0)):
        size = keys.pack_bytes(pack)
        assert size is not None  # `Entry.location_refusal` has checked it
        files = stored = live = named = dead = end = 0
        rest = size - _FIXED_BYTES
        last = -1
        for member in group:
            if member.offset == last:
                continue  # another root names the same file
            last = member.offset
            listed = DIRECTORY_BYTES + member.name + _list_row(member.name)
            dead += max(0, member.offset - HEADER_BYTES - member.name - end)
            end = max(end, member.offset + member.stored)
            rest -= listed
            named += 1
            if member.live:
                files, stored = files + 1, stored + member.stored
                live += HEADER_BYTES + member.name + member.stored + listed
        yield PackUse(pack, size, files, stored, live, named, dead + max(0, rest - end))


def _list_row(name: int) -> int:
    return _LIST_ROW_BYTES + name // 2
