"""Carry out the plan of a replication: copy the objects, build the target's next tree, and swap its head.

The pairs of a plan are handled in windows. A job (`CopyJob`, on any engine) copies the objects of a window; then this
process merges the new entries into the target's tree. At the end one compare-and-swap of the target's head publishes
the tree (V1). If an object of a version cannot be copied, the target keeps its whole version as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from bayou.core.clock import now
from bayou.core.errors import BadAnswer, PreconditionFailed, StoreError
from bayou.core.progress import Stage
from bayou.engine.handle import StoreHandle
from bayou.engine.job import Executor, Needs
from bayou.engine.parts import REQUEST
from bayou.index.entry import Entry
from bayou.index.head import Head, Replica, advance, iter_log, read_head, swap_head
from bayou.index.log import Tally
from bayou.index.merge import merge
from bayou.index.node import Root
from bayou.index.node_store import StagingSink, StoreNodes
from bayou.index.tree import IndexTree, diff
from bayou.maintenance.replica.copy import Age, Copied, Pair, copy_all
from bayou.maintenance.replica.plan import Counts, Plan, windows
from bayou.maintenance.replica.target import Target
from bayou.objectstore.store import Store
from bayou.sync.plan.policy import version_dir
from bayou.sync.plan.steps import is_mass
from bayou.sync.report import Failure

MOST_FAILED = 1000
"""Failures that the report lists; of more, it has only the number."""

_LEAST_COST = 50 * REQUEST
"""The least cost of a part: a part copies about as many objects at once, so a smaller part would not be faster."""


class Made(Struct):
    """The result of the copying: the target's new root, which no head names yet, and what was sent for it."""

    root: Root | None
    copied: int = 0
    bytes: int = 0
    failed: list[Failure] = field(default_factory=list)
    failures: int = 0


class Outcome(NamedTuple):
    """A row of the job: the target's entry of a copied object (`sent`: by this run), or the `code` of a failure."""

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

    A part may run twice: a copy's key is derived from its content, so the second run writes the same bytes again.
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
        """Divide the entries, in path order, into parts of about equal cost in bytes and requests."""
        most = max(_LEAST_COST, sum(map(_cost, self._entries)) // wanted)
        parts: list[list[Entry]] = []
        cost = most
        for entry in self._entries:
            if cost >= most:
                parts.append([])
                cost = 0
            parts[-1].append(entry)
            cost += _cost(entry)
        return parts

    def run(self, part: Sequence[Entry]) -> Iterator[Outcome]:
        for entry, result in copy_all(self._source.open(), self._target.open(), part, self._age):
            yield Outcome.of(entry.path, result)

    def fold(self, rows: Iterable[Outcome]) -> list[Outcome]:
        return list(rows)  # the rows of one window fit into memory


def needs_of(source: StoreHandle, target: StoreHandle) -> Needs:
    """Return what workers need: access to both stores, and no directory of this machine."""
    return Needs((source, target), written=(target,))


class Stores(Struct, frozen=True):
    """The two stores of a replication, as jobs hold them."""

    source: StoreHandle
    target: StoreHandle


def replicate(executor: Executor, stores: Stores, target: Target, plan: Plan, age: Age, sink: StagingSink) -> Made:
    """Copy the objects of a plan, window by window, and build the target's next tree in `sink`."""
    made = Made(target.root)
    nodes = StoreNodes(target.store)
    for window in windows(plan.pairs()):
        changes = _copy(executor, stores, window, age, made)
        made.root = merge(IndexTree(nodes, made.root), changes, sink)
    sink.flush()
    return made


def _copy(
    executor: Executor, stores: Stores, window: Sequence[Pair], age: Age, made: Made
) -> Mapping[str, Entry | None]:
    """Copy the objects of a window, add the counts to `made`, and return the changes to the target's index."""
    entries = [pair.source for pair in window if pair.action == "copy" and pair.source is not None]
    copied: dict[str, Entry] = {}
    failed: list[Failure] = []
    for outcome in executor.run(CopyJob(stores.source, stores.target, age, entries)) if entries else ():
        result = outcome.result
        if isinstance(result, Failure):
            failed.append(result)
        else:
            copied[outcome.path] = result.entry
            made.copied += result.sent
            made.bytes += outcome.size if result.sent else 0
    failed.sort(key=lambda failure: failure.path)
    made.failures += len(failed)
    made.failed += failed[: MOST_FAILED - len(made.failed)]
    held = Held.of(failed)
    return {
        pair.path: copied.get(pair.path) if pair.action == "copy" else pair.settled
        for pair in window
        if not held.back(pair.path)
    }


def _cost(entry: Entry) -> int:
    return entry.size + REQUEST


class Held(Struct, frozen=True):
    """The paths and version directories that the target keeps as they are, since an object could not be copied."""

    paths: frozenset[str]
    units: frozenset[str]

    @classmethod
    def of(cls, failed: Sequence[Failure]) -> Held:
        units = (version_dir(failure.path) for failure in failed)
        return cls(frozenset(failure.path for failure in failed), frozenset(unit for unit in units if unit is not None))

    def back(self, path: str) -> bool:
        """Return whether the target keeps its entry of this path."""
        return path in self.paths or (bool(self.units) and version_dir(path) in self.units)


def tally_of(target: Target, made: Made, counts: Counts) -> Tally:
    """Return the log's tally of the new tree: that of the plan, or after failures that of a diff of the trees."""
    if not made.failures:
        return counts.tally
    added = changed = deleted = size = 0
    for change in diff(target.tree, IndexTree(target.tree.source, made.root)):
        added += change.old is None
        deleted += change.new is None
        changed += change.old is not None and change.new is not None
        if change.new is not None and (change.old is None or change.old.push != change.new.push):
            size += change.new.size
    return Tally(added, changed, deleted, size)


def swap(target: Target, source: Head, number: str, made: Made, tally: Tally, by: str) -> bool:
    """Publish the new tree, of the commit `number`, if the target's head is still the one that was read.

    Returns False if it is not: then no reader sees a change (V11).
    """
    assert target.seen is not None
    head, whole = target.seen.head, made.failures == 0
    replica = Replica(
        source.store, source.seq, source.commit, source.rebuilt, source.root if whole else None, made.root, whole
    )
    new, page = advance(
        head,
        commit=number,
        at=now(),
        by=by,
        root=made.root,
        trash=head.trash,
        tally=tally,
        mass_delete=is_mass(tally.deleted, head.root.entries if head.root is not None else 0),
    )
    try:
        swap_head(target.store, replace(new, replica=replica), target.seen.match, page)
    except PreconditionFailed:
        return False
    except StoreError as error:
        if not error.ambiguous:
            raise
        return _landed(target.store, number, head.seq)
    return True


def _landed(target: Store, number: str, after: int) -> bool:
    """Return whether a swap whose response was lost has succeeded: then its commit is in the log."""
    seen = read_head(target)
    if seen is None:
        raise BadAnswer(f"{target.url} says that its head is not modified, although the request did not ask")
    for row in iter_log(target, seen.head):
        if row.seq <= after:
            break
        if row.commit == number:
            return True
    return False
