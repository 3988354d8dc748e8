"""Replicate: windows of pairs, copied by a job, merged into the target's tree one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, NamedTuple

from bayou.engine.handle import StoreHandle
from bayou.engine.job import Executor, Needs
from bayou.engine.parts import REQUEST
from bayou.engine.progress import Stage
from bayou.index.entry import Entry
from bayou.index.merge import merge
from bayou.index.node import Root
from bayou.index.nodes import StoreNodes
from bayou.index.staging import Staging
from bayou.index.tree import Tree
from bayou.quick import dataclass
from bayou.sync.replica.copy import Age, Copied, copy_all
from bayou.sync.replica.pair import Pair
from bayou.sync.replica.plan import Plan, windows
from bayou.sync.replica.target import Target
from bayou.sync.report import Failure
from bayou.sync.units import unit_of

MOST_FAILED = 1000
"""Failures that are named; of more, only the number is told."""

_LEAST_COST = 50 * REQUEST
"""Less is not worth a part: a part by itself copies about as many objects at once."""


@dataclass(slots=True)
class Made:
    """What came of the copying: the target's new root, not yet anybody's, and what was sent for it."""

    root: Root | None
    copied: int = 0
    bytes: int = 0
    failed: list[Failure] = field(default_factory=list)
    failures: int = 0


class Outcome(NamedTuple):
    """A row: the target's entry of an object that is there (`sent`: by us, and just now); or, with a code, why not."""

    path: str
    push: str | None = None
    size: int = 0
    sha256: bytes | None = None
    etag: str | None = None
    version: str | None = None
    modified: int = 0
    sent: bool = False
    code: str | None = None
    message: str = ""

    @classmethod
    def of(cls, path: str, result: Copied | Failure) -> Outcome:
        if isinstance(result, Failure):
            return cls(path, code=result.code, message=result.message)
        entry = result.entry
        known = (entry.push, entry.size, entry.sha256, entry.etag, entry.version, entry.modified)
        return cls(path, *known, sent=result.sent)

    @property
    def result(self) -> Copied | Failure:
        if self.code is not None:
            return Failure(self.path, self.code, self.message)
        return Copied(Entry(*self[:7]), self.sent)


class CopyJob:
    """Copies the objects of some entries from store to store. An `engine.job.Job`.

    A part runs twice at times: a copy's key stands for its content, so the second run writes the same bytes again.
    """

    row = Outcome

    def __init__(self, source: StoreHandle, target: StoreHandle, age: Age, entries: Sequence[Entry] = ()) -> None:
        self._source = source
        self._target = target
        self._age = age
        self._entries = entries

    def __reduce__(self) -> tuple[Any, tuple[StoreHandle, StoreHandle, Age]]:
        return type(self), (self._source, self._target, self._age)  # the parts have the entries

    @property
    def stage(self) -> Stage:
        return Stage("replicating", len(self._entries), sum(entry.size for entry in self._entries))

    @property
    def needs(self) -> Needs:
        return needs_of(self._source, self._target)

    def parts(self, wanted: int) -> Sequence[Sequence[Entry]]:
        """Divide the entries, in order of path, into parts of about as many bytes and requests."""
        most = max(_LEAST_COST, sum(map(_cost, self._entries)) // wanted)
        parts: list[list[Entry]] = []
        held = most
        for entry in self._entries:
            if held >= most:
                parts.append([])
                held = 0
            parts[-1].append(entry)
            held += _cost(entry)
        return parts

    def run(self, part: Sequence[Entry]) -> Iterator[Outcome]:
        for entry, result in copy_all(self._source.open(), self._target.open(), part, self._age):
            yield Outcome.of(entry.path, result)

    def fold(self, rows: Iterable[Outcome]) -> list[Outcome]:
        return list(rows)  # of one window


def needs_of(source: StoreHandle, target: StoreHandle) -> Needs:
    """Return what workers must reach: both stores, and no directory of this machine."""
    return Needs((source, target), written=(target,))


@dataclass(frozen=True, slots=True)
class Stores:
    """The two stores of a replication, as jobs hold them."""

    source: StoreHandle
    target: StoreHandle


def replicate(executor: Executor, stores: Stores, target: Target, plan: Plan, age: Age, sink: Staging) -> Made:
    """Copy what the plan says, window by window, and build the target's next tree in `sink`."""
    made = Made(target.root)
    nodes = StoreNodes(target.store)
    for window in windows(plan.pairs()):
        changes = _copy(executor, stores, window, age, made)
        made.root = merge(Tree(nodes, made.root), changes, sink)
    sink.flush()
    return made


def _copy(
    executor: Executor, stores: Stores, window: Sequence[Pair], age: Age, made: Made
) -> Mapping[str, Entry | None]:
    """Copy the objects of a window, and return what it changes in the target's index."""
    entries = [pair.source for pair in window if pair.action == "copy" and pair.source is not None]
    come: dict[str, Entry] = {}
    failed: list[Failure] = []
    for one in executor.run(CopyJob(stores.source, stores.target, age, entries)) if entries else ():
        result = one.result
        if isinstance(result, Failure):
            failed.append(result)
        else:
            come[one.path] = result.entry
            made.copied += result.sent
            made.bytes += one.size if result.sent else 0
    failed.sort(key=lambda one: one.path)
    made.failures += len(failed)
    made.failed += failed[: MOST_FAILED - len(made.failed)]
    held = Held.of(failed)
    return {
        pair.path: come.get(pair.path) if pair.action == "copy" else pair.settled
        for pair in window
        if not held.back(pair.path)
    }


def _cost(entry: Entry) -> int:
    return entry.size + REQUEST


@dataclass(frozen=True, slots=True)
class Held:
    """What stays as the target has it, since something of it could not be copied: a version changes whole or not."""

    paths: frozenset[str]
    units: frozenset[str]

    @classmethod
    def of(cls, failed: Sequence[Failure]) -> Held:
        units = (unit_of(one.path) for one in failed)
        return cls(frozenset(one.path for one in failed), frozenset(unit for unit in units if unit is not None))

    def back(self, path: str) -> bool:
        return path in self.paths or (bool(self.units) and unit_of(path) in self.units)
