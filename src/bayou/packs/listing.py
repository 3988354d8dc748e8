"""Read the list that a pack carries as its last member, for a rebuild after the index was lost (P9).

The list is data from a store like any other: a hostile one may claim any path, any hash and any location (V25). So the
reader bounds everything before it reads or inflates, checks each row as an index row is checked, and leaves out the bad
rows. The caller proves what it takes by reading the file's bytes and their hash.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import Any

from msgspec import Struct, ValidationError, convert

from bayou.core import limits
from bayou.core.structs import Malformed, parse, require_field
from bayou.index.entry import DEFLATED, STORED, Entry
from bayou.objectstore import keys
from bayou.objectstore.store import Store
from bayou.packs.archive import END_BYTES, LIST_FIELDS, LIST_FORMAT, MOST_MEMBERS

_END = re.compile(rb"PK\x05\x06.{16}\x28\x00bayou-pack-2 ([0-9]{12}) ([0-9]{12}) ([0-9])", re.DOTALL)
"""The end of the ZIP directory, whose comment says where the list begins, how long it is, and how it is stored."""

_TAIL = 256 << 10
"""Bytes that are read at once from the end of a pack: mostly the whole list, so that one request is enough."""

_Row = tuple[str, str, int, int, int, int, str, int]


class PackList(Struct, frozen=True):
    """The files that a pack lists, as entries in that pack; `refused` is the number of rows that no client wrote."""

    members: Sequence[Entry]
    refused: int


def read_list(store: Store, name: str) -> PackList:
    """Return the files that a pack says it has; the caller has checked that the pack has the size in its name.

    `Malformed` if the pack has no list that can be read; `NotFound` if the pack is gone.
    """
    size = keys.pack_bytes(name)
    if size is None or size < END_BYTES or size > limits.PACK_BYTES:
        raise Malformed("it does not have the size of a pack")
    key, begin = keys.pack(name), max(0, size - _TAIL)
    tail = bytes(store.read_range(key, begin, size))
    end = _END.fullmatch(tail, len(tail) - END_BYTES)
    if end is None:
        raise Malformed("it does not end as a pack")
    offset, stored, method = (int(number) for number in end.groups())
    if stored > limits.PACK_LIST_BYTES or offset + stored > size - END_BYTES:
        raise Malformed("its list lies outside of it")
    if offset >= begin:
        data = tail[offset - begin : offset - begin + stored]
    else:
        data = bytes(store.read_range(key, offset, offset + stored)) if stored else b""
    return parse_list(name, _content(data, method))


def parse_list(name: str, data: bytes) -> PackList:
    """Parse the list of a pack; a row that no client can have written is left out and counted (V25)."""
    found = parse(data, limits.PACK_LIST_BYTES)
    if require_field(found, "format") != LIST_FORMAT:
        raise Malformed("its list has another format")
    fields, rows = require_field(found, "fields"), require_field(found, "members")
    if not isinstance(fields, list) or tuple(fields[: len(LIST_FIELDS)]) != LIST_FIELDS or not isinstance(rows, list):
        raise Malformed("its list has other fields")
    if len(rows) > MOST_MEMBERS:
        raise Malformed(f"its list has {len(rows)} files")
    members = [entry for row in rows if (entry := _entry(name, row)) is not None]
    return PackList(members, len(rows) - len(members))


def _content(data: bytes, method: int) -> bytes:
    """Return the bytes of the list, inflated to no more than the limit (V25)."""
    if method == STORED:
        return data
    if method != DEFLATED:
        raise Malformed("its list is of an unknown kind")
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        content = stream.decompress(data, limits.PACK_LIST_BYTES + 1)
    except zlib.error:
        raise Malformed("its list cannot be inflated") from None
    if not stream.eof:
        raise Malformed("its list is too large, or cut off")
    return content


def _entry(name: str, row: Any) -> Entry | None:
    """Return the entry of a row; None if the row is none that a client writes."""
    if not isinstance(row, list):
        return None
    try:
        path, push, offset, stored, method, size, digest, modified = convert(row[: len(LIST_FIELDS)], _Row)
        sha256 = bytes.fromhex(digest)
    except (ValidationError, ValueError):
        return None
    if len(sha256) != 32 or len(path) > limits.TEXT_LENGTH:
        return None
    entry = Entry(path, push, size, sha256, None, None, modified, None, name, offset, stored, method)
    return entry if entry.refusal() is None else None
