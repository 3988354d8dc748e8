"""Read a damaged index as far as possible, and report everything that is wrong instead of stopping at the first error.

`survey` and `outline` read a tree and list its damage. `salvage` reads the parts of a corrupt head that are still
legible, often enough to find the tree that it named. None of these parts is trusted: a root is verified by the digests
of its nodes, and the rest only prevents ids and numbers from being used twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial

from msgspec import Struct, field

from bayou.core import limits
from bayou.core.errors import NodeDamaged, NodeMissing
from bayou.core.structs import Malformed, convert, parse
from bayou.index.entry import Entry
from bayou.index.head import FORMAT, check_features, unknown_format
from bayou.index.key_range import EVERYTHING, KeyRange
from bayou.index.log import LogRow
from bayou.index.node import MAX_LEVEL, Branch, Child, Digest, Leaf, Node, Pointer, Ref, Root, is_name
from bayou.index.tree import IndexTree, NodeSource


class Damage(Struct, frozen=True):
    """A node that cannot be used, and the paths that are hidden with it (`first` is None: the whole tree)."""

    node: str
    level: int
    first: str | None
    last: str | None
    error: NodeMissing | NodeDamaged
    entries: int | None = None
    """How many entries the node held, if the reference to it has a count."""

    @property
    def span(self) -> KeyRange:
        return EVERYTHING if self.first is None or self.last is None else KeyRange(self.first, f"{self.last}\0")


class IndexSurvey(Struct):
    """The entries that can be read, in order of their paths, and the damage that hides the others."""

    rows: list[Entry] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)

    def hidden(self, within: Sequence[KeyRange]) -> list[KeyRange]:
        """Return the parts of these ranges that damage hides."""
        parts = [damage.span & span for damage in self.damage for span in within]
        return [part for part in parts if part.end is None or part.start < part.end]


class Outline(Struct, frozen=True):
    """The references to the leaves of a tree that can be reached, in order, and the damage that hides the others."""

    leaves: Sequence[Ref]
    damage: list[Damage]


def check(tree: IndexTree) -> Iterator[Damage]:
    """Load every node that can be reached and yield the damage. Failures of the store itself are raised (V4)."""
    yield from survey(tree.source, tree.root).damage


def survey(
    source: NodeSource,
    root: Root | Pointer | None,
    within: Sequence[KeyRange] = (EVERYTHING,),
    skip: set[Digest] | None = None,
) -> IndexSurvey:
    """Read the entries of some ranges of a tree, as far as possible. Failures of the store itself are raised (V4).

    `skip` holds the digests of nodes that were visited before, in any version of the index: they are left out, and the
    nodes that are visited now are added.
    """
    seen = outline(source, root, within, skip)
    found = IndexSurvey(damage=seen.damage)
    for ref, node in zip(seen.leaves, source.map(partial(try_load, source, 0), seen.leaves), strict=True):
        if isinstance(node, NodeMissing | NodeDamaged):
            found.damage.append(damage_of(ref, 0, node))
        elif isinstance(node, Leaf):
            found.rows += [row for row in node.rows if any(span.holds(row.path) for span in within)]
    return found


def outline(
    source: NodeSource,
    root: Root | Pointer | None,
    within: Sequence[KeyRange] = (EVERYTHING,),
    skip: set[Digest] | None = None,
) -> Outline:
    """Read the branches of a tree, as far as possible, and return references to its leaves; else like `survey`."""
    damage: list[Damage] = []
    refs: list[Ref] = [root] if root is not None and within else []
    for level in range(root.level if root is not None else 0, -1, -1):
        if skip is not None:
            refs = [ref for ref in refs if ref.digest not in skip]
            skip.update(ref.digest for ref in refs)
        if level == 0:
            break
        below: list[Ref] = []
        for ref, node in zip(refs, source.map(partial(try_load, source, level), refs), strict=True):
            if isinstance(node, NodeMissing | NodeDamaged):
                damage.append(damage_of(ref, level, node))
            elif isinstance(node, Branch):
                below += [row for row in node.rows if any(span.touches(row) for span in within)]
        refs = below
    return Outline(refs, damage)


def damage_of(ref: Ref, level: int, error: NodeMissing | NodeDamaged) -> Damage:
    """Return the record of a node that cannot be used."""
    first, last = (ref.first, ref.last) if isinstance(ref, Child) else (None, None)
    return Damage(ref.node, level, first, last, error, None if isinstance(ref, Pointer) else ref.entries)


def try_load(source: NodeSource, level: int, ref: Ref) -> Node | NodeMissing | NodeDamaged:
    """Return a node, or the error that says what is wrong with it; a failure of the store itself is raised (V4)."""
    try:
        return source.load(level, ref)
    except (NodeMissing, NodeDamaged) as error:
        return error


_FORMAT = re.compile(r'"format"\s*:\s*(-?\d+)')
_FEATURES = re.compile(r'"features"\s*:\s*\[([^\[\]]{0,4000})')
_NAME = re.compile(r'"([^"\\]{1,64})"')
_STORE = re.compile(r'"store"\s*:\s*"([0-9A-Za-z-]{1,64})"')
_SEQ = re.compile(r'"seq"\s*:\s*(\d{1,15})(?!\d)')
_ROOT = re.compile(r'"root"\s*:\s*(\{[^{}]{1,1000}\})')
_TRASH = re.compile(r'"trash"\s*:\s*(\{[^{}]{1,1000}\})')
_FLAT = re.compile(r"\{[^{}]{40,4000}\}")
"""An object of the size of a log row: a hostile head may hold a million braces (V25)."""


class Salvage(Struct, frozen=True):
    """The legible parts of a corrupt head. `rows` are of its log, oldest first, and may have gaps."""

    store: str | None = None
    seq: int = 0
    root: Pointer | None = None
    trash: Pointer | None = None
    rows: tuple[LogRow, ...] = ()


def salvage(data: bytes, where: str) -> Salvage:
    """Read the legible parts of a head; `UnknownFormat` if the head claims another format or feature (V10)."""
    text = data.decode(errors="replace")
    found = _FORMAT.search(text)
    if found is not None and found[1] != str(FORMAT):
        raise unknown_format(where, found[1])
    features = _FEATURES.search(text)
    check_features(_NAME.findall(features[1]) if features else None, where)
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
