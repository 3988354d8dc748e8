"""Carry out the plan of a replication: copy the objects, build the target's next tree, and swap its head.

The pairs of a plan are handled in windows. A job (`CopyJob`, on any engine) copies the files of a window; then this
process merges the new entries into the target's tree. At the end one compare-and-swap of the target's head publishes
the tree (V1). If a file of a version cannot be copied, the target keeps its whole version as it was.

If the swap fails because the head has changed, the next attempt takes over the packs of this one (`EarlierCopies`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from bayou.core import activity
from bayou.core.clock import now
from bayou.core.errors import NodeDamaged, NodeMissing, PreconditionFailed, StoreError
from bayou.core.progress import Stage
from bayou.engine.handle import StoreHandle
from bayou.engine.job import Executor, Needs
from bayou.engine.parts import REQUEST
from bayou.index.entry import Entry
from bayou.index.head import Gc, Head, Replica, advance, iter_log, read_head, swap_head
from bayou.index.log import Kind, Tally
from bayou.index.merge import merge
from bayou.index.node import Root
from bayou.index.node_store import StagingSink, StoreNodes
from bayou.index.tree import IndexTree, diff, find_many
from bayou.maintenance.replica.copy import copy_all
from bayou.maintenance.replica.pairs import CopiedEntry, CopyRules, Pair, is_copy
from bayou.maintenance.replica.plan import Counts, ReplicaPlan, windows
from bayou.maintenance.replica.target import Target
from bayou.objectstore import keys
from bayou.objectstore.multipart import THRESHOLD
from bayou.objectstore.store import Store
from bayou.sync.plan.policy import version_dir
from bayou.sync.plan.steps import is_mass
from bayou.sync.report import Failure
from bayou.sync.transfer.push import is_collected

MOST_FAILED = 1000
"""Failures that the report lists; of more, it has only the number."""

LEAST_COST = 50 * REQUEST
"""The least cost of a part: a part copies about as many objects at once, so a smaller part would not be faster."""


class CopyResult(Struct):
    """The result of the copying: the target's new root, which no head names yet, and what was sent for it."""

    root: Root | None
    copied: int = 0
    bytes: int = 0
    failed: list[Failure] = field(default_factory=list)
    failures: int = 0
    unread: list[Entry] = field(default_factory=list)
    """The source's entries of `failed`."""
    repeated: set[str] = field(default_factory=set)
    """The packs that more than one request has written."""


class CopyOutcome(NamedTuple):
    """A row of the job: the target's entry and the rest of a `CopiedEntry`, or the `code` of a failure."""

    path: str
    push: str | None = None
    size: int = 0
    sha256: bytes | None = None
    etag: str | None = None
    version: str | None = None
    modified: int = 0
    at: str | None = None
    pack: str | None = None
    offset: int | None = None
    stored: int | None = None
    method: int | None = None
    sent: bool = False
    repeated: bool = False
    code: str | None = None
    message: str = ""

    @classmethod
    def of(cls, path: str, result: CopiedEntry | Failure) -> CopyOutcome:
        if isinstance(result, Failure):
            return cls(path, code=result.code, message=result.message)
        return cls(**asdict(result.entry), sent=result.sent, repeated=result.repeated)

    @property
    def result(self) -> CopiedEntry | Failure:
        if self.code is not None:
            return Failure(self.path, self.code, self.message)
        entry = Entry(
            self.path, self.push, self.size, self.sha256, self.etag, self.version, self.modified,
            self.at, self.pack, self.offset, self.stored, self.method,
        )  # fmt: skip
        return CopiedEntry(entry, self.sent, self.repeated)


class CopyJob:
    """Copies the files of some entries from store to store. An `engine.job.Job`.

    A part may run twice: an object's key is derived from its content, so the second run writes the same bytes again,
    and a pack has a new name each time (P1).
    """

    row = CopyOutcome

    def __init__(self, stores: Stores, rules: CopyRules, entries: Sequence[Entry] = ()) -> None:
        self._stores = stores
        self._rules = rules
        self._entries = entries

    def __reduce__(self) -> tuple[Any, tuple[Stores, CopyRules]]:
        return type(self), (self._stores, self._rules)  # the parts have the entries

    @property
    def stage(self) -> Stage:
        return Stage("replicating", len(self._entries), sum(entry.size for entry in self._entries), counts_bytes=True)

    @property
    def needs(self) -> Needs:
        return needs_of(self._stores)

    def parts(self, wanted: int) -> Sequence[Sequence[Entry]]:
        """Divide the entries, about in path order, into parts of about equal cost; a pack is read for one part only.

        A part of small files has enough of them for a pack of the target.
        """
        small = [entry for entry in self._entries if self._rules.is_packed(entry)]
        others = [entry for entry in self._entries if not self._rules.is_packed(entry)]
        parts = _divide(small, lambda entry: entry.size, wanted, self._rules.pack_size)
        return parts + _divide(others, lambda entry: entry.size + REQUEST, wanted, LEAST_COST)

    def run(self, part: Sequence[Entry]) -> Iterator[CopyOutcome]:
        source, target = self._stores.source.open(), self._stores.target.open()
        for entry, result in copy_all(source, target, part, self._rules):
            if entry.size <= THRESHOLD or not isinstance(result, CopiedEntry) or not result.sent:
                activity.moved(entry.size)  # a large object counts its parts
            yield CopyOutcome.of(entry.path, result)

    def fold(self, rows: Iterable[CopyOutcome]) -> list[CopyOutcome]:
        return list(rows)  # the rows of one window fit into memory


def _divide(entries: Sequence[Entry], cost: Callable[[Entry], int], wanted: int, least: int) -> list[list[Entry]]:
    """Divide entries into about `wanted` parts of at least that cost; the files of one pack stay together."""
    most = max(least, sum(map(cost, entries)) // wanted)
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.key, []).append(entry)
    parts: list[list[Entry]] = []
    so_far = most
    for group in groups.values():
        if so_far >= most:
            parts.append([])
            so_far = 0
        parts[-1] += group
        so_far += sum(map(cost, group))
    return parts


class Stores(Struct, frozen=True):
    """The two stores of a replication, as jobs hold them."""

    source: StoreHandle
    target: StoreHandle


def needs_of(stores: Stores) -> Needs:
    """Return what workers need: access to both stores, and no directory of this machine."""
    return Needs((stores.source, stores.target), written=(stores.target,))


class EarlierCopies:
    """The packs of an attempt whose swap failed: they are in the target, and no head names them.

    The nodes that the attempt wrote say which files they hold. If the target was collected meanwhile, each pack is
    checked once with a HEAD request, and not used if it is gone, older than what the collection may delete, or written
    by more than one request (P6). Objects of their own are found by their keys (`CopyRules.doubt`).
    """

    def __init__(self, target: Target, made: CopyResult) -> None:
        assert target.seen is not None
        self._store = target.store
        self._tree = IndexTree(StoreNodes(target.store), made.root)
        self._count = target.seen.head.gc.count
        self.repeated = made.repeated
        self._lost: dict[str, bool] = {}

    def find(self, sources: Sequence[Entry], gc: Gc) -> dict[str, Entry]:
        """Return the target's entries of those files that need no second copy, by path."""
        try:
            there = find_many(self._tree, [source.path for source in sources])
        except (NodeMissing, NodeDamaged):  # collected: the packs are leftovers, too
            return {}
        known = {
            source.path: replace(there[source.path], modified=source.modified)
            for source in sources
            if source.path in there and there[source.path].pack is not None and is_copy(there[source.path], source)
        }
        if gc.count != self._count:
            self._check({entry.pack for entry in known.values() if entry.pack is not None} - self._lost.keys(), gc)
        return {path: entry for path, entry in known.items() if not self._lost.get(entry.pack or "")}

    def _check(self, packs: Iterable[str], gc: Gc) -> None:
        unsure = sorted(packs)
        lost = self._store.map(
            lambda pack: pack in self.repeated or is_collected(self._store, keys.pack(pack), gc), unsure
        )
        self._lost.update(zip(unsure, lost, strict=True))


def replicate(
    executor: Executor,
    stores: Stores,
    target: Target,
    plan: ReplicaPlan,
    rules: CopyRules,
    sink: StagingSink,
    earlier: EarlierCopies | None = None,
) -> CopyResult:
    """Copy the files of a plan, window by window, and build the target's next tree in `sink`."""
    made = CopyResult(target.root, repeated=set() if earlier is None else earlier.repeated)
    nodes = StoreNodes(target.store)
    for window in windows(plan.pairs()):
        changes = _copy(executor, stores, target, window, rules, earlier, made)
        made.root = merge(IndexTree(nodes, made.root), changes, sink)
    sink.flush()
    return made


def _copy(
    executor: Executor,
    stores: Stores,
    target: Target,
    window: Sequence[Pair],
    rules: CopyRules,
    earlier: EarlierCopies | None,
    made: CopyResult,
) -> Mapping[str, Entry | None]:
    """Copy the files of a window, add the counts to `made`, and return the changes to the target's index."""
    assert target.seen is not None
    entries = [pair.source for pair in window if pair.action == "copy" and pair.source is not None]
    copied = earlier.find(entries, target.seen.head.gc) if earlier is not None else {}
    entries = [entry for entry in entries if entry.path not in copied]
    failed: list[Failure] = []
    for outcome in executor.run(CopyJob(stores, rules, entries)) if entries else ():
        result = outcome.result
        if isinstance(result, Failure):
            failed.append(result)
            continue
        copied[outcome.path] = result.entry
        made.copied += result.sent
        made.bytes += outcome.size if result.sent else 0
        if result.repeated and result.entry.pack is not None:
            made.repeated.add(result.entry.pack)
    failed.sort(key=lambda failure: failure.path)
    made.failures += len(failed)
    listed = failed[: MOST_FAILED - len(made.failed)]
    made.failed += listed
    named = {failure.path for failure in listed}
    made.unread += [entry for entry in entries if entry.path in named]
    held = Held.of(failed)
    return {
        pair.path: copied.get(pair.path) if pair.action == "copy" else pair.uncopied_entry
        for pair in window
        if not held.back(pair.path)
    }


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


def tally_of(target: Target, made: CopyResult, counts: Counts) -> Tally:
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


def swap(
    target: Target, source: Head, number: str, made: CopyResult, tally: Tally, by: str, kind: Kind = "push"
) -> bool:
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
        kind=kind,
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
    for row in iter_log(target, seen.head):
        if row.seq <= after:
            break
        if row.commit == number:
            return True
    return False
