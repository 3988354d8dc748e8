"""The bytes of a pack: a plain ZIP file of small files, with a list of them as its last member.

Any ZIP tool opens a pack. Each member is named by its path, and is stored or deflated by itself, so that one range of
the pack has one file. The last member, `.bayou-pack.json`, lists the others; it is for a rebuild after the index was
lost (P9). The archive's comment says where that list begins, so that a reader finds it with the last bytes of the pack.

Readers use neither the ZIP directory nor the list: the index entry has offset, length and method, and the hash proves
the bytes (`packs.read`). The headers are written here because `zipfile` takes several times as long for each member,
and does not say where a member's bytes begin.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Sequence
from struct import Struct as Packed
from typing import TYPE_CHECKING

from msgspec import Struct

from bayou.core.ids import ulid
from bayou.index.entry import DEFLATED, STORED

if TYPE_CHECKING:
    from typing_extensions import Buffer

LIST_NAME = ".bayou-pack.json"
"""The name of the last member. No payload path can have it."""

LIST_FIELDS = ("path", "push", "offset", "stored", "method", "size", "sha256", "modified")
LIST_FORMAT = 2

MOST_MEMBERS = 32_000
"""Members of one pack: a ZIP file without extensions counts them in 16 bits."""

COMMENT = "bayou-pack-2 {offset:012d} {stored:012d} {method:d}"
COMMENT_BYTES = len(COMMENT.format(offset=0, stored=0, method=0))
END_BYTES = 22 + COMMENT_BYTES
"""The last bytes of a pack: the end of the ZIP directory, with the comment."""

_LOCAL = Packed("<4s5H3I2H")
_CENTRAL = Packed("<4s6H3I5H2I")
_END = Packed("<4s4H2IH")
_LOCAL_MARK, _CENTRAL_MARK, _END_MARK = b"PK\3\4", b"PK\1\2", b"PK\5\6"
HEADER_BYTES, DIRECTORY_BYTES = _LOCAL.size, _CENTRAL.size
"""Bytes before a member and in the directory, for each member; its name comes on top in both places."""
_VERSION, _UTF8 = 20, 1 << 11
_UNIX, _REGULAR = 3 << 8, 0o100644 << 16

_LEVEL = 1
"""Deflate's fastest level: higher ones save few bytes of small files, and cost several times the CPU."""
_LEAST = 64
"""Bytes below which deflating saves nothing."""
_WORTH = 0.9
"""The share of the bytes to which deflating must shrink a file to be worth a later inflation."""
_DENSE_RUN, _PROBE_EVERY = 4, 16
"""After so many files in a row that do not shrink, only every so many-th file is tried."""


class Member(Struct, frozen=True):
    """A file in a pack: what it is, and where its bytes lie."""

    path: str
    push: str
    offset: int
    stored: int
    method: int
    size: int
    sha256: bytes
    modified: int


class Pack(Struct, frozen=True):
    """A finished pack: its name (a new one each time, P1), its bytes, and its files."""

    name: str
    data: bytes
    members: Sequence[Member]


class PackBuilder:
    """Collects files, and makes a pack of them. Use it once; the caller decides when the pack is large enough."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._directory: list[bytes] = []
        self._members: list[Member] = []
        self._dense = 0
        self.size = 0
        """The bytes of the pack so far."""

    def __len__(self) -> int:
        return len(self._members)

    def add(self, path: str, push: str, data: bytes, sha256: bytes, modified: int) -> None:
        """Add a file. The caller has computed the hash of exactly these bytes (P3)."""
        method, stored = self._deflated(data)
        offset = self._append(path.encode(), data, stored, method, modified)
        self._members.append(Member(path, push, offset, len(stored), method, len(data), sha256, modified))

    def finish(self) -> Pack:
        """Return the pack, under a name that no other attempt has (P1)."""
        listed = encode_list(self._members)
        deflated = _deflate(listed)
        offset = self._append(LIST_NAME.encode(), listed, deflated, DEFLATED, int(time.time() * 1000))
        comment = COMMENT.format(offset=offset, stored=len(deflated), method=DEFLATED).encode()
        directory = b"".join(self._directory)
        count = len(self._directory)
        end = _END.pack(_END_MARK, 0, 0, count, count, len(directory), self.size, len(comment))
        data = b"".join((*self._parts, directory, end, comment))
        return Pack(f"{ulid()}-{len(data)}", data, self._members)

    def _append(self, name: bytes, data: bytes, stored: bytes, method: int, modified: int) -> int:
        """Append a member with its header; return the offset of its bytes."""
        moment, crc, start = _dos_time(modified), zlib.crc32(data), self.size
        common = (_VERSION, _UTF8, method, *moment, crc, len(stored), len(data), len(name), 0)
        local = _LOCAL.pack(_LOCAL_MARK, *common)
        self._directory.append(_CENTRAL.pack(_CENTRAL_MARK, _UNIX | _VERSION, *common, 0, 0, 0, _REGULAR, start) + name)
        self._parts += (local, name, stored)
        offset = start + len(local) + len(name)
        self.size = offset + len(stored)
        return offset

    def _deflated(self, data: bytes) -> tuple[int, bytes]:
        """Return a file's method and its bytes in the pack.

        Files that are pushed together are mostly of one kind. Deflating bytes that do not shrink takes more time than
        everything else here, so after some such files only a few are tried.
        """
        if len(data) < _LEAST:
            return STORED, data
        if self._dense >= _DENSE_RUN and len(self._members) % _PROBE_EVERY:
            return STORED, data
        small = _deflate(data)
        if len(small) <= len(data) * _WORTH:
            self._dense = 0
            return DEFLATED, small
        self._dense += 1
        return STORED, data


def member_bytes(path: str, stored: int) -> int:
    """Return the bytes that a member adds to `PackBuilder.size`."""
    return HEADER_BYTES + len(path.encode()) + stored


def encode_list(members: Sequence[Member]) -> bytes:
    """Return the content of the last member: the fields' names, and a row for each file."""
    rows = [
        (row.path, row.push, row.offset, row.stored, row.method, row.size, row.sha256.hex(), row.modified)
        for row in members
    ]
    document = {"format": LIST_FORMAT, "fields": LIST_FIELDS, "members": rows}
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def count_members(end: Buffer) -> int | None:
    """Return how many files a pack says it has, from its last `END_BYTES`; None if these are not the end of a pack.

    The count is a hint, and never a reason to trust anything else of the archive.
    """
    if len(memoryview(end)) != END_BYTES:
        return None
    mark, _, _, _, count, *_ = _END.unpack_from(end)
    return count - 1 if mark == _END_MARK and count > 0 else None


def _deflate(data: bytes) -> bytes:
    return zlib.compress(data, _LEVEL, -zlib.MAX_WBITS)


_known_times: dict[int, tuple[int, int]] = {}
"""The last computed times: files that a program writes together have few different ones."""


def _dos_time(modified: int) -> tuple[int, int]:
    """Return a time in ms since 1970 as ZIP's time and date, in UTC; ZIP knows the years 1980 to 2107."""
    second = modified // 1000
    known = _known_times.get(second)
    if known is None:
        year, month, day, hour, minute, sec, *_ = time.gmtime(min(max(second, 315_532_800), 4_354_819_198))
        known = hour << 11 | minute << 5 | sec // 2, (year - 1980) << 9 | month << 5 | day
        _known_times.clear()
        _known_times[second] = known
    return known
