"""The comparison of a large sync, as a job of `engine.job`: find every path that needs a decision, and observe it.

The parts are ranges of paths. A worker reads what each side has of its range, in the order of paths: a walk of the
tree, a copy of `sync.db`, and the differences between base and the store's index. It merges them path by path and drops
the paths on which all sides agree. It observes the others, hashes them if necessary, and chooses the action for each by
the rules of `plan.steps`. The driver counts the actions, and sorts the rows in a temporary file, from which
`sync.bulk_pass` takes a window at a time. No process ever holds all paths.

A range may hold all large files of the tree, so the workers leave these alone at first. A second run of the job hashes
them; its parts are balanced by bytes.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from msgspec import Struct, json, msgpack
from msgspec.structs import replace

from bayou.core import activity
from bayou.core.deadline import Deadline
from bayou.core.errors import StateError
from bayou.core.iterators import batched
from bayou.core.progress import Stage
from bayou.engine.handle import RemoteHandle, StoreHandle
from bayou.engine.job import Executor, Needs
from bayou.engine.spool import SortedSpool, key_bytes
from bayou.index.entry import Entry
from bayou.index.key_range import KeyRange
from bayou.index.node import Root
from bayou.index.node_store import NodeFiles, StoreNodes
from bayou.index.tree import Change, IndexTree, diff, find_many, leaf_refs
from bayou.index.tree import scan as scan_entries
from bayou.objectstore.store import Store
from bayou.objectstore.transport import Requests
from bayou.state import file_stats
from bayou.state.base import BaseNodes, Why
from bayou.state.file_stats import CachedHash
from bayou.state.journal import JournalRow, JournalSnapshot
from bayou.state.state_copy import ABSENT, CACHED, HASHED, JOURNALED, UNTRACKED, StateCopy
from bayou.sync.context import SyncContext, still_absent
from bayou.sync.plan import steps
from bayou.sync.plan.decision_table import UNREAD, Action, LocalState
from bayou.sync.plan.local_scanner import FileScan, ObservedPath
from bayou.sync.plan.policy import Policy
from bayou.sync.plan.windows import Candidate, Comparison, Note
from bayou.sync.report import Failure
from bayou.worktree.hashing import Content, FileStat
from bayou.worktree.scan import ScannedFile, dividing_paths, scan, scan_range

LARGE_BYTES = 8 << 20
"""Files of more bytes are hashed by a second run, whose parts are balanced by bytes."""

TEMPORARY = "temporary"
"""The note of a temporary file: of a write in progress, or of a killed writer."""

_LARGE, _REQUESTS = "large", "requests"
"""Notes that only the driver reads: a file to hash later, and the requests that a worker has sent to the store."""

_FILE, _CHANGE = JOURNALED + 1, JOURNALED + 2
"""The sides of a merged row beside the tables of the state: a walk, and a difference between base and store."""

_BATCH = 1000
"""Paths whose entries of base are looked up together."""

Paths: TypeAlias = tuple[str, ...]
_path = itemgetter(0)


class ComparedPath(NamedTuple):
    """A row of the job: an observed path, its `Action`, and the bytes that it moves. Or a `note`, without an action.

    A note is the kind of something in the tree that is no payload, or the code of a failure. The stat and the hash are
    those of the file, if there is one; an empty hash is that of a file that was not read.
    """

    path: str
    note: str | None = None
    text: str | None = None
    action: str | None = None
    named: bool = False
    moved: int = 0
    size: int | None = None
    mtime: int | None = None
    ctime: int | None = None
    inode: int | None = None
    sha256: bytes | None = None
    deleted: bool = False
    ours: bool = False
    absent: bool = False
    through: int = 0
    scanned_at: int = 0
    finish_delete: bool = False
    fresh: bool = False
    settled: bool | None = None
    matches: int | None = None

    def candidate(self) -> Candidate:
        """Return the path for a window."""
        stat = None if self.size is None else FileStat(self.size, self.mtime, self.ctime, self.inode)  # type: ignore[arg-type]
        if self.sha256 == UNREAD:
            assert stat is not None
            unread = LocalState(UNREAD, stat.size, ours=True)
            observed = ObservedPath(self.path, unread, None, self.through, self.scanned_at, unread=stat)
            return Candidate(observed, self.named)
        content = None
        if self.sha256 is not None:
            assert stat is not None
            content = Content(self.sha256, stat.size, stat)
        here = None if self.finish_delete else content
        state = LocalState(
            here.sha256 if here else None, here.size if here else None, self.deleted, self.ours, self.absent
        )
        observed = ObservedPath(
            self.path, state, content, self.through, self.scanned_at, finish_delete=self.finish_delete
        )
        return Candidate(observed, self.named, self.hash_row)

    @property
    def hash_row(self) -> file_stats.Row | None:
        """The row of the stat cache, if it is new."""
        if not self.fresh:
            return None
        stat = self.size, self.mtime, self.ctime, self.inode
        return self.path, *stat, self.sha256, self.settled, self.matches  # type: ignore[return-value]


_encode = msgpack.Encoder().encode
_decode = msgpack.Decoder(ComparedPath).decode


class ComparedTrees(Struct, frozen=True):
    """What is compared: a tree, the state of this machine, base, and the store's index. Workers get a copy.

    `nodes` is the directory of base's nodes and of copies of the store's. `policy_changed`: absences were decided by
    another policy. `leave_unread`: the caller's process uploads, and can read small new files then.
    """

    root: Path
    state: StateCopy
    store: StoreHandle
    nodes: Path
    base: Root | None
    remote: Root | None
    policy: tuple[str, tuple[str, ...]]
    policy_changed: bool = False
    adopt: bool = False
    leave_unread: bool = False

    @property
    def base_tree(self) -> IndexTree:
        return IndexTree(BaseNodes(NodeFiles(self.nodes), ""), self.base)

    @property
    def remote_tree(self) -> IndexTree:
        return IndexTree(StoreNodes(self.store.open(), NodeFiles(self.nodes)), self.remote)

    @property
    def same_index(self) -> bool:
        return (self.base and self.base.digest) == (self.remote and self.remote.digest)


class CompareJob:
    """Compares the paths of a tree, or (`large`) only some large files of it. An `engine.job.Job`.

    It adds its rows to `found`, which the caller closes. `deadline` ends the reading of a file in this process.
    """

    row = ComparedPath

    def __init__(
        self,
        trees: ComparedTrees,
        found: ComparedPaths | None = None,
        large: Sequence[tuple[str, int]] | None = None,
        deadline: Deadline | None = None,
    ) -> None:
        self._trees = trees
        self._found = found
        self._large = large
        self._deadline = deadline

    def __reduce__(self) -> tuple[Any, tuple[ComparedTrees]]:
        return CompareJob, (self._trees,)  # all that `run` needs in a worker

    @property
    def stage(self) -> Stage:
        if self._large is None:
            return Stage("comparing")
        return Stage("hashing", len(self._large), sum(size for _, size in self._large), counts_bytes=True)

    @property
    def needs(self) -> Needs:
        trees = self._trees
        return Needs((trees.store,), ((trees.root, "the tree"), (trees.nodes.parent, "the state of the repo")))

    def parts(self, wanted: int) -> Sequence[KeyRange | Paths]:
        if self._large is not None:
            return _balanced(self._large, wanted)
        trees = self._trees
        weights = dividing_paths(trees.root, wanted)
        for tree in (trees.base_tree,) if trees.same_index else (trees.base_tree, trees.remote_tree):
            weights += [(leaf.first, leaf.entries) for leaf in leaf_refs(tree)]
        return divide_range(weights, wanted)

    def run(self, part: KeyRange | Paths) -> Iterator[ComparedPath]:
        store = self._trees.store
        before = store.open().requests
        comparison = _PathComparison(self._trees, self._deadline)
        if isinstance(part, KeyRange):
            yield from comparison.of_range(part)
        else:
            for path in part:
                yield from comparison.of_file(path)
        if isinstance(store, RemoteHandle):  # the requests of this process are counted already (V17)
            sent = json.encode(store.open().requests - before).decode()
            yield ComparedPath("", _REQUESTS, sent)

    def fold(self, rows: Iterable[ComparedPath]) -> None:
        assert self._found is not None
        self._found.add(rows, self._trees.store.open())


class ComparedPaths:
    """The rows of a comparison: counted, and sorted by path in a temporary file until this is closed."""

    def __init__(self) -> None:
        self.counts: Counter[Action] = Counter()
        self.bytes: Counter[Action] = Counter()
        self.large: list[tuple[str, int]] = []
        self.hashed: list[file_stats.Row] = []  # of large files
        self._notes: dict[Note, None] = {}  # two ranges may find the same directory unreadable
        self._spool = SortedSpool(1)

    @property
    def notes(self) -> Sequence[Note]:
        return tuple(self._notes)

    def add(self, rows: Iterable[ComparedPath], store: Store) -> None:
        """Add rows; add the requests of workers to those of `store`."""
        self._spool.add(self._decisions(rows, store))

    def rows(self) -> Iterator[Candidate]:
        """Yield the paths that need a decision, in order; may be called again."""
        return (_decode(row).candidate() for _, row in self._spool)

    def close(self) -> None:
        self._spool.close()

    def _decisions(self, rows: Iterable[ComparedPath], store: Store) -> Iterator[tuple[bytes, bytes]]:
        for row in rows:
            if row.action is not None:
                action = Action(row.action)
                self.counts[action] += 1
                self.bytes[action] += row.moved
                if row.fresh and (row.size or 0) > LARGE_BYTES:
                    self.hashed.append(row.hash_row)  # type: ignore[arg-type]
                yield key_bytes(row.path), _encode(row)
            elif row.note == _LARGE:
                self.large.append((row.path, row.moved))
            elif row.note == _REQUESTS:
                store.add_requests(json.decode(row.text or "", type=Requests))
            else:
                self._notes[Note(row.path, row.note or "", row.text or "")] = None


def compare(context: SyncContext, executor: Executor, remote: IndexTree, folder: Path) -> Comparison:
    """Find the paths that need a decision and observe them; the caller closes the result.

    `folder`, which workers see, gets the copy of the state. It is made before the tree is walked, like every read of
    the journal: a file that is written meanwhile has a newer row.
    """
    context.journal.close_abandoned()
    state = StateCopy.make(context.database, context.remote_id, folder / "sync.db")
    policy, here = context.policy, executor.engine == "local"
    trees = ComparedTrees(
        root=context.root,
        state=state,
        store=context.handle,
        nodes=context.repo.state / "nodes",
        base=context.base.remote.root,
        remote=remote.root,
        policy=(policy.hydrate, policy.exclude),
        policy_changed=context.base.remote.policy != policy.text,
        adopt=context.options.adopt,
        leave_unread=here and context.options.mode != "pull" and not context.options.dry_run,
    )
    if trees.base is None and remote.root is not None and _is_first_full_pull(context, state):
        # Only the store has entries: this process reads them a window at a time, while earlier windows are transferred.
        # A file that appears in the tree meanwhile is found when its path is written, as in every pull.
        counts, sizes = Counter({Action.PULL: remote.root.entries}), Counter({Action.PULL: remote.root.bytes})
        rows = partial(_observe_entries, trees, remote)
        return Comparison(counts, sizes, (), state.marks, state.through, rows)
    found = ComparedPaths()
    try:
        executor.run(CompareJob(trees, found, deadline=context.deadline))
        if found.large:
            hashing = context.engines.local() if here else executor
            hashing.run(CompareJob(trees, found, found.large, context.deadline))
            # Now, and not with each window: if a window fails, the next sync does not read these files again.
            with context.database.transaction() as db:
                file_stats.save_many(db, found.hashed)
    except BaseException:
        found.close()
        raise
    return Comparison(found.counts, found.bytes, found.notes, state.marks, state.through, found.rows, found.close)


def _is_first_full_pull(context: SyncContext, state: StateCopy) -> bool:
    """Return whether the tree is empty, nothing is known of it, and the policy wants every file of the store."""
    policy = context.policy
    wants_all = policy.hydrate == "full" and not policy.exclude
    return wants_all and next(scan(context.root), None) is None and state.is_empty()


def _observe_entries(trees: ComparedTrees, remote: IndexTree) -> Iterator[Candidate]:
    """Yield the observations of entries that only the store has."""
    comparison = _PathComparison(trees, None)
    merged = ((entry.path, _CHANGE, Change(entry.path, None, entry)) for entry in scan_entries(remote))
    return (row.candidate() for row in comparison.merged(merged) if row.action is not None)


class _Sides:
    """What the sides have of one path."""

    __slots__ = ("cached", "change", "hashed", "journal", "path", "stat", "untracked", "why")

    def __init__(self, path: str, rows: Iterable[tuple[Any, ...]]) -> None:
        self.path = path
        self.stat: FileStat | None = None
        self.change: Change | None = None
        self.cached: CachedHash | None = None
        self.untracked: tuple[int, int] | None = None
        self.why: Why | None = None
        self.hashed: tuple[int, str | None, str | None, bytes] | None = None
        self.journal: list[JournalRow] = []
        for _, side, *values in rows:
            if side == _FILE:
                self.stat = values[0]
            elif side == _CHANGE:
                self.change = values[0]
            elif side == CACHED:
                *stat, sha256, settled, matches = values
                self.cached = CachedHash(FileStat(*stat), sha256, bool(settled), matches)
            elif side == UNTRACKED:
                self.untracked = values[0], values[1]
            elif side == ABSENT:
                self.why = values[0]
            elif side == HASHED:
                self.hashed = values[0], values[1], values[2], values[3]
            else:
                number, kind, state, owner, closed, *_ = values
                self.journal.append(JournalRow(number, kind, path, state, owner, closed))


class _PathComparison:
    """Compares paths: the work of one part. It reads, and changes nothing, so it may run twice."""

    def __init__(self, trees: ComparedTrees, deadline: Deadline | None) -> None:
        self._trees = trees
        self._deadline = deadline
        self._policy = Policy.of(*trees.policy)  # type: ignore[arg-type]
        self._remote_id = trees.state.remote_id
        self._marks = self._journal(())

    def of_range(self, within: KeyRange) -> Iterator[ComparedPath]:
        """Yield the rows of a range. Files of more than `LARGE_BYTES` that must be hashed are only named."""
        trees = self._trees
        skipped, temporaries = [], []  # type: ignore[var-annotated]
        walk = scan_range(trees.root, within, skipped, temporaries)
        files = ((path, _FILE, stat) for path, stat in walk)
        yield from self.merged(self._sides(files, within), LARGE_BYTES)
        yield from (ComparedPath(item.path, item.kind, item.reason) for item in skipped)
        yield from (ComparedPath(path, TEMPORARY, "") for path in temporaries)

    def of_file(self, path: str) -> Iterator[ComparedPath]:
        """Yield the row of one file, of any size; a note if it cannot be examined any more: it is not missing (V5)."""
        files: list[tuple[Any, ...]] = []
        for item in scan(self._trees.root, path):
            if item.path != path:
                continue
            if isinstance(item, ScannedFile):
                files.append((path, _FILE, item.stat))
                continue
            yield ComparedPath(path, item.kind, item.reason)
            if item.kind == "unreadable":
                return
        yield from self.merged(self._sides(files, KeyRange(path, f"{path}\0")))

    def merged(self, sides: Iterable[tuple[Any, ...]], large: int | None = None) -> Iterator[ComparedPath]:
        """Yield the rows of paths that need a decision, of which `sides` has rows in the order of paths."""
        for batch in batched(self._undecided(sides), _BATCH):
            yield from self._observe(batch, large)

    def _sides(self, files: Iterable[tuple[Any, ...]], within: KeyRange) -> Iterator[tuple[Any, ...]]:
        trees = self._trees
        changes: Iterable[Change] = () if trees.same_index else diff(trees.base_tree, trees.remote_tree, within)
        changed = ((change.path, _CHANGE, change) for change in changes)
        return heapq.merge(files, trees.state.rows(within), changed, key=_path)

    def _undecided(self, sides: Iterable[tuple[Any, ...]]) -> Iterator[_Sides]:
        """Yield the paths that may need a decision."""
        last = ""
        for path, group in groupby(sides, _path):
            if path <= last:
                # A side out of order would be taken for one without the path: the file would seem to be missing.
                raise StateError(f"{path!r} was read after {last!r}: tree, state and index must be in order of path")
            last = path
            rows = list(group)
            # Hot: most paths of a tree have not changed.
            if len(rows) == 2 and rows[0][1] == _FILE and self._is_current(rows[0][2], rows[1]):
                continue
            found = _Sides(path, rows)
            if self._is_named(found) or (self._differs(found) and not self._policy.excluded(path)):
                yield found

    def _is_current(self, stat: FileStat, row: tuple[Any, ...]) -> bool:
        """Return whether a file has the stat that the stat cache has of base's file."""
        return row[1] == CACHED and row[8] == self._remote_id and row[7] == 1 and stat == row[2:6]

    def _is_named(self, path: _Sides) -> bool:
        """Return whether the journal, a difference of base and store, or a new policy names the path."""
        if path.journal or path.change is not None:
            return True
        return self._trees.policy_changed and path.why is not None and not self._policy.still(path.path, path.why)

    def _differs(self, path: _Sides) -> bool:
        """Return whether a scan of the tree would observe the path: it differs from base, or is not here any more."""
        before = path.cached
        if path.stat is None:
            return before is not None and before.matches == self._remote_id
        return before is None or before.matches != self._remote_id or not before.is_current(path.stat)

    def _observe(self, batch: Sequence[_Sides], large: int | None) -> Iterator[ComparedPath]:
        """Observe paths and decide each of them by itself."""
        trees = self._trees
        bases = find_many(trees.base_tree, (path.path for path in batch if path.change is None))
        scanner = FileScan(
            trees.root,
            trees.adopt,
            {
                path.path
                for path in batch
                if path.why is not None and still_absent(trees.root, self._policy, path.path, path.why)
            },
            {path.path: path.untracked for path in batch if path.untracked is not None},
            self._deadline,
            activity.moved if large is None else None,
        )
        now = time.time_ns()
        for path in batch:
            unread = path.stat is not None and not self._is_known(path)
            if unread and path.stat is not None and large is not None and path.stat.size > large:
                yield ComparedPath(path.path, _LARGE, moved=path.stat.size)
                continue
            entry = bases.get(path.path)
            base, remote = (entry, entry) if path.change is None else (path.change.old, path.change.new)
            observed = self._scan(scanner, path, now, new=base is None and remote is None)
            if isinstance(observed, Failure):
                yield ComparedPath(path.path, observed.code, observed.message)
            else:
                yield self._decide(path, observed, base, remote)

    def _is_known(self, path: _Sides) -> bool:
        """Return whether the hash of a file is known without reading it."""
        return not path.journal and path.cached is not None and path.cached.is_current(path.stat)  # type: ignore[arg-type]

    def _scan(self, scanner: FileScan, path: _Sides, now: int, *, new: bool) -> ObservedPath | Failure:
        journaled = self._journal(path.journal) if path.journal else self._marks
        if self._trees.leave_unread and new and path.stat is not None and path.cached is None and not path.journal:
            observed = scanner.stat_only(path.path, path.stat, journaled, now)
            if observed is not None:
                return observed
        return scanner.at(path.path, path.stat, journaled, path.cached, now)

    def _decide(self, path: _Sides, observed: ObservedPath, base: Entry | None, remote: Entry | None) -> ComparedPath:
        step = steps.decide_path(observed, base, remote, _hashes(path, base, remote), self._policy)
        content, state, stat = observed.content, observed.state, observed.stat
        moves = remote.size if remote is not None and step.action.pulls else 0
        if stat is not None and step.action.pushes:
            moves = stat.size
        fresh = content is not None and (path.cached is None or path.cached.stat != content.stat)
        settled = matches = None
        if content is not None and fresh:
            *_, settled, matches = file_stats.refresh_row(path.path, content, observed.scanned_at, path.cached)
        unread = UNREAD if observed.unread is not None else None
        size, mtime, ctime, inode = stat or (None, None, None, None)
        return ComparedPath(
            path.path,
            action=step.action.value,
            named=self._is_named(path),
            moved=moves,
            size=size,
            mtime=mtime,
            ctime=ctime,
            inode=inode,
            sha256=content.sha256 if content is not None else unread,
            deleted=state.deleted,
            ours=state.ours,
            absent=state.absent,
            through=observed.through,
            scanned_at=observed.scanned_at,
            finish_delete=observed.finish_delete,
            fresh=fresh,
            settled=settled,
            matches=matches,
        )

    def _journal(self, rows: Iterable[JournalRow]) -> JournalSnapshot:
        """Return the marks and these rows; `through` is the newest row of the whole journal."""
        own = sorted(rows, key=lambda row: row.id)
        snapshot = JournalSnapshot.of(chain(self._trees.state.marks, own))
        snapshot.through = self._trees.state.through
        return snapshot


def _hashes(path: _Sides, *entries: Entry | None) -> dict[str, Entry]:
    """Return a discovered entry with its hash, if this machine has found it in the object."""
    if path.hashed is None:
        return {}
    *same, sha256 = path.hashed
    return {
        entry.path: replace(entry, sha256=sha256)
        for entry in entries
        if entry is not None and entry.sha256 is None and [entry.size, entry.etag, entry.version] == same
    }


def divide_range(weights: Iterable[tuple[str, int]], wanted: int) -> list[KeyRange]:
    """Divide all paths into at most `wanted` ranges of about the same weight, each of which begins at a given path."""
    of_path = Counter[str]()  # base and the store often name the same one
    for path, weight in weights:
        of_path[path] += weight
    total = of_path.total()
    starts = [""]
    before = 0
    for path, weight in sorted(of_path.items()):
        if before * wanted >= total * len(starts) and path > starts[-1]:
            starts.append(path)
        before += weight
    return [KeyRange(start, end) for start, end in zip(starts, [*starts[1:], None], strict=True)]


def _balanced(files: Sequence[tuple[str, int]], wanted: int) -> list[Paths]:
    """Divide files into at most `wanted` groups of about the same number of bytes, the largest file first."""
    groups: list[tuple[int, int, list[str]]] = [(0, number, []) for number in range(min(wanted, len(files)))]
    for path, size in sorted(files, key=lambda file: -file[1]):
        total, number, inside = groups[0]
        inside.append(path)
        heapq.heapreplace(groups, (total + size, number, inside))
    return [tuple(inside) for _, _, inside in groups]
