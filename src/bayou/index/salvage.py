"""What a head that is no head any more still says: enough, often, to find the tree that it named.

Nothing here is believed: a root is proved by the digests of its nodes, and the rest only keeps ids and numbers from
being used twice.
"""

from __future__ import annotations

import re

from msgspec import Struct

from bayou.core import limits
from bayou.core.structs import Malformed, convert, parse
from bayou.index.head import FORMAT, unknown_format
from bayou.index.log import LogRow
from bayou.index.node import MAX_LEVEL, Pointer, is_name

_FORMAT = re.compile(r'"format"\s*:\s*(-?\d+)')
_STORE = re.compile(r'"store"\s*:\s*"([0-9A-Za-z-]{1,64})"')
_SEQ = re.compile(r'"seq"\s*:\s*(\d{1,15})(?!\d)')
_ROOT = re.compile(r'"root"\s*:\s*(\{[^{}]{1,1000}\})')
_TRASH = re.compile(r'"trash"\s*:\s*(\{[^{}]{1,1000}\})')
_FLAT = re.compile(r"\{[^{}]{40,4000}\}")
"""As large as a row of the log can be, and no smaller: a head may hold a million braces (V25)."""


class Salvage(Struct, frozen=True):
    """Parts of a head that can be read. `rows` are of its log, oldest first, and may have gaps."""

    store: str | None = None
    seq: int = 0
    root: Pointer | None = None
    trash: Pointer | None = None
    rows: tuple[LogRow, ...] = ()


def salvage(data: bytes, where: str) -> Salvage:
    """Read what can be read; `UnknownFormat` if it says that a newer Bayou wrote it (V10)."""
    text = data.decode(errors="replace")
    found = _FORMAT.search(text)
    if found is not None and found[1] != str(FORMAT):
        raise unknown_format(where, found[1])
    store, root, trash = _STORE.search(text), _ROOT.search(text), _TRASH.search(text)
    return Salvage(
        store=store[1] if store else None,
        seq=max((seq for number in _SEQ.findall(text) if (seq := int(number)) < limits.SEQ_MAX // 2), default=0),
        root=_pointer(root[1]) if root else None,
        trash=_pointer(trash[1]) if trash else None,
        rows=tuple(row for flat in _FLAT.findall(text) if (row := _row(flat)) is not None),
    )


def _pointer(text: str) -> Pointer | None:
    try:
        root = parse(text.encode(), limits.HEAD_BYTES)
        pointer = convert(root, Pointer)
    except Malformed:
        return None
    return pointer if is_name(pointer.node) and pointer.level <= MAX_LEVEL else None


def _row(text: str) -> LogRow | None:
    try:
        return LogRow.parse(parse(text.encode(), limits.HEAD_BYTES))
    except Malformed:
        return None
