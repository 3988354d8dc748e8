"""What a compaction rewrites: the index shows how much of each pack is in use.

A job reads the leaves of the index. The driver sorts what they name by pack, in a file, and decides pack by pack. It
reads leaves of earlier roots only if some pack holds files that the index does not name: it is rewritten once no
retained root names them either, so that deleted bytes are really removed, and not earlier, since the old pack has to
stay until then anyway.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

from msgspec import Struct

from bayou.config import SyncConfig
from bayou.core.errors import BadAnswer, NotFound, Rejected
from bayou.core.iterators import batched
from bayou.core.progress import Stage
from bayou.engine.handle import StoreHandle
from bayou.engine.job import Executor, Needs
from bayou.engine.parts import groups
from bayou.engine.spool import SortedSpool
from bayou.index.check import try_load
from bayou.index.entry import Entry
from bayou.index.head import Head, HeadSeen
from bayou.index.node import Leaf, Pointer, Ref
from bayou.index.node_store import StoreNodes
from bayou.maintenance.gc_jobs import current_leaves, recent_leaves
from bayou.objectstore import keys
from bayou.packs.archive import END_BYTES, count_members
from bayou.packs.usage import NamedMember, PackUse, is_small, named_member, pack_uses

LEAVES_PER_PART = 8
"""Leaves that a part of the survey has at least: they are read at once."""

_COMPANY = 2
"""Small packs and objects from which on it is worth joining them."""

_CHECKED_AT_ONCE = 1000
"""Packs whose files are counted before the next ones are looked at."""


class MoveScope(Struct, frozen=True):
    """What to move: the files in these packs, and the objects of less than `pack_below` bytes; how many, and bytes."""

    leaves: Sequence[Ref]
    packs: frozenset[str]
    pack_below: int
    pack_size: int
    files: int
    size: int


class CompactionPlan(Struct, frozen=True):
    """What to rewrite: `chosen` packs, with the number of files that the index names in each, and small objects."""

    seen: HeadSeen
    packs: int
    chosen: Mapping[str, int]
    objects: int
    freed: int
    moving: MoveScope | None

    @property
    def packs_after(self) -> int:
        """About how many packs there will be."""
        if self.moving is None:
            return self.packs
        return self.packs - len(self.chosen) + max(1, -(-self.moving.size // self.moving.pack_size))


class Planner:
    """Decides what to rewrite. Roots that were current since `before` (ms) are not history yet."""

    def __init__(self, store: StoreHandle, config: SyncConfig, before: int) -> None:
        self._handle = store
        self._store = store.open()
        self._config = config
        self._before = before

    def plan(self, executor: Executor, seen: HeadSeen) -> CompactionPlan:
        """Read the index of a head, and decide; nothing is written."""
        nodes: set[str] = set()
        with closing(PackSurvey(current_leaves(self._store, seen.head, nodes))) as survey:
            executor.run(SurveyJob(self._handle, survey.leaves, SurveyScope(self._config.pack_below), survey))
            return self._choose(executor, seen, survey, nodes)

    def _choose(self, executor: Executor, seen: HeadSeen, survey: PackSurvey, nodes: set[str]) -> CompactionPlan:
        """Decide which packs to rewrite, and whether small ones and small objects have company."""
        chosen: dict[str, PackUse] = {}
        small: dict[str, PackUse] = {}
        doubtful: dict[str, int] = {}
        packs = 0
        for batch in batched(pack_uses(survey.members()), _CHECKED_AT_ONCE):
            packs += len(batch)
            rest: list[PackUse] = []
            for use in batch:
                if use.sparse:
                    chosen[use.name] = use
                elif is_small(use.size, self._config.pack_size):
                    small[use.name] = use
                else:
                    rest.append(use)
            doubtful |= self._with_unnamed_files(rest)
        objects = sum(found.count for found in survey.objects.values())
        joined = len(small) + objects >= _COMPANY
        if not joined:
            doubtful |= self._with_unnamed_files(list(small.values()))
        if doubtful:
            self._add_earlier(executor, seen.head, survey, nodes, frozenset(doubtful))
            chosen |= {
                use.name: use
                for use in pack_uses(survey.members(doubtful))
                if use.dead or (doubtful[use.name] or self._count(use.name)) > use.named
            }
        joined = joined or (bool(chosen) and bool(small or objects))
        if joined:
            chosen |= small
        return self._plan_of(seen, survey, packs, chosen, objects if joined else 0)

    def _plan_of(
        self, seen: HeadSeen, survey: PackSurvey, packs: int, chosen: Mapping[str, PackUse], objects: int
    ) -> CompactionPlan:
        loose = sum(found.size for found in survey.objects.values()) if objects else 0
        numbers = survey.leaves_with(chosen) if chosen else set()
        numbers.update(survey.objects if objects else ())
        moving = MoveScope(
            leaves=[survey.leaves[number] for number in sorted(numbers)],
            packs=frozenset(chosen),
            pack_below=self._config.pack_below if objects else 0,
            pack_size=self._config.pack_size,
            files=sum(use.files for use in chosen.values()) + objects,
            size=sum(use.stored for use in chosen.values()) + loose,
        )
        return CompactionPlan(
            seen=seen,
            packs=packs,
            chosen={name: use.files for name, use in chosen.items()},
            objects=objects,
            freed=sum(use.size for use in chosen.values()) + loose,
            moving=moving if moving.files else None,
        )

    def _with_unnamed_files(self, uses: Sequence[PackUse]) -> dict[str, int]:
        """Return the packs that have more files than the index names, each with the number of its files (0: not known).

        The index shows unnamed files between others. One small request shows those at the end of a pack.
        """
        found = {use.name: 0 for use in uses if use.dead}
        rest = [use for use in uses if use.name not in found]
        counts = self._store.map(self._count, [use.name for use in rest])
        return found | {use.name: count for use, count in zip(rest, counts, strict=True) if count > use.named}

    def _add_earlier(
        self, executor: Executor, head: Head, survey: PackSurvey, nodes: set[str], packs: frozenset[str]
    ) -> None:
        """Add to the survey what earlier roots, which readers may still use, name in these packs.

        Whether a root is history by now decides only what is worth a rewrite, so this machine's clock is good enough.
        """
        earlier = recent_leaves(self._store, head, self._before, nodes)
        if earlier:
            executor.run(SurveyJob(self._handle, earlier, SurveyScope(earlier=packs), survey))

    def _count(self, name: str) -> int:
        """Return how many files a pack says it has; 0 if it cannot be read, which `verify` reports."""
        size = keys.pack_bytes(name)
        assert size is not None
        if size < END_BYTES:
            return 0
        try:
            return count_members(self._store.read_range(keys.pack(name), size - END_BYTES, size)) or 0
        except (NotFound, BadAnswer, Rejected):
            return 0


class Objects(Struct, frozen=True):
    """How many small objects of their own a leaf names, and their bytes."""

    count: int
    size: int


class PackSurvey:
    """What the index names in packs, and the small objects of each leaf. Close it."""

    def __init__(self, leaves: Sequence[Ref]) -> None:
        self.leaves = leaves
        """The leaves of the current index, in order."""
        self.objects: dict[int, Objects] = {}
        """The small objects, by the number of the leaf."""
        self._spool = SortedSpool(3)

    def add(self, rows: Iterable[SurveyRow]) -> None:
        self._spool.add(self._members(rows))

    def members(self, packs: Container[str] | None = None) -> Iterator[NamedMember]:
        """Yield the members of these packs in order of pack and offset, of equal ones the live one first."""
        for pack, offset, outdated, stored, name, _ in self._spool:
            if packs is None or pack in packs:
                yield NamedMember(pack, offset, stored, name, not outdated)

    def leaves_with(self, packs: Container[str]) -> set[int]:
        """Return the numbers of the leaves that name a file in one of these packs."""
        return {leaf for pack, _, outdated, _, _, leaf in self._spool if not outdated and pack in packs}

    def close(self) -> None:
        self._spool.close()

    def _members(self, rows: Iterable[SurveyRow]) -> Iterator[tuple[Any, ...]]:
        for row in rows:
            if row.pack is None:
                self.objects[row.leaf] = Objects(row.offset, row.stored)
            else:
                yield row.pack, row.offset, not row.live, row.stored, row.name, row.leaf


class SurveyRow(NamedTuple):
    """A row of `SurveyJob`: a file in a pack that a leaf names.

    Without a pack, the small objects that the leaf names: `offset` is their number, and `stored` their bytes.
    """

    leaf: int
    pack: str | None
    offset: int
    stored: int
    name: int = 0
    live: bool = True


class NumberedLeaves(Struct, frozen=True):
    """Some leaves with consecutive numbers from `first` on."""

    first: int
    refs: Sequence[Ref]


class SurveyScope(Struct, frozen=True):
    """What a survey counts in leaves.

    In those of the current index: the files in packs, and objects of less than `pack_below` bytes; each leaf must be
    readable. In those of `earlier` roots, which readers may still use: the files in these packs alone.
    """

    pack_below: int = 0
    earlier: frozenset[str] | None = None


class SurveyJob:
    """Reads leaves, and adds to a survey what they name. An `engine.job.Job`."""

    row = SurveyRow

    def __init__(self, store: StoreHandle, leaves: Sequence[Ref], scope: SurveyScope, survey: PackSurvey) -> None:
        self._store = store
        self._leaves = leaves
        self._scope = scope
        self._survey = survey

    def __reduce__(self) -> tuple[Any, tuple[StoreHandle, SurveyScope]]:
        return _SurveyKernel, (self._store, self._scope)

    @property
    def stage(self) -> Stage:
        known = (ref for ref in self._leaves if not isinstance(ref, Pointer))
        return Stage("reading the index", sum(ref.entries for ref in known))

    @property
    def needs(self) -> Needs:
        return Needs((self._store,))

    def parts(self, wanted: int) -> Sequence[NumberedLeaves]:
        parts: list[NumberedLeaves] = []
        first = 0
        for some in groups(self._leaves, min(wanted, -(-len(self._leaves) // LEAVES_PER_PART) or 1)):
            parts.append(NumberedLeaves(first, some))
            first += len(some)
        return parts

    def run(self, part: NumberedLeaves) -> Iterator[SurveyRow]:
        return _SurveyKernel(self._store, self._scope).run(part)

    def fold(self, rows: Iterable[SurveyRow]) -> None:
        self._survey.add(rows)


class _SurveyKernel:
    """The part of the job that a worker gets."""

    row = SurveyRow

    def __init__(self, store: StoreHandle, scope: SurveyScope) -> None:
        self._store = store
        self._scope = scope

    def run(self, part: NumberedLeaves) -> Iterator[SurveyRow]:
        source = StoreNodes(self._store.open())
        for number, node in enumerate(source.map(partial(try_load, source, 0), part.refs), part.first):
            if isinstance(node, Leaf):
                yield from self._rows(number, node)
            elif self._scope.earlier is None and isinstance(node, Exception):
                raise node

    def _rows(self, number: int, leaf: Leaf) -> Iterator[SurveyRow]:
        earlier = self._scope.earlier
        if earlier is None:
            objects = [entry.size for entry in leaf.rows if is_small_object(entry, self._scope.pack_below)]
            if objects:
                yield SurveyRow(number, None, len(objects), sum(objects))
        for entry in leaf.rows:
            if earlier is None or entry.pack in earlier:
                member = named_member(entry)
                if member is not None:
                    yield SurveyRow(number, member.pack, member.offset, member.stored, member.name, earlier is None)


def is_small_object(entry: Entry, pack_below: int) -> bool:
    """Whether an entry is of a small object of its own that Bayou wrote, and that belongs into a pack by its size."""
    written = entry.pack is None and entry.push is not None and entry.sha256 is not None
    return written and entry.size < pack_below and entry.refusal() is None
