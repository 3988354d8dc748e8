"""The scan of the tree: the paths that the journal names, a walk by stat, and hashes where a stat is not enough (V6).

The scanner always hashes journaled paths. It does not read another file again if the file's stat is unchanged since the
last hash. A small new file that will be pushed is not read during the scan but with its upload, unless base or the
store has something to compare it with.
"""

from __future__ import annotations

import os
import time
from collections.abc import Container, Iterable, Mapping, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import cast

from msgspec import Struct, field

from bayou.core import paths
from bayou.core.activity import OnBytes
from bayou.core.deadline import Deadline
from bayou.core.errors import BayouError, Cancelled, ContentChanged, DeadlinePassed
from bayou.core.progress import NoProgress, Progress
from bayou.index.key_range import EVERYTHING, KeyRange
from bayou.state import file_stats
from bayou.state.database import IN_RANGE, Database
from bayou.state.file_stats import CachedHash, examine_file, file_stat
from bayou.state.journal import JournalRow, JournalSnapshot
from bayou.sync.plan.decision_table import UNREAD, LocalState
from bayou.sync.plan.policy import ModelScope, Policy
from bayou.sync.report import Failure, Refusal
from bayou.worktree.hashing import Content, FileStat, read_content
from bayou.worktree.new_directories import MissingDirectories
from bayou.worktree.scan import ScannedFile, scan

_HASH_THREADS = 4
_LARGE_BYTES = 1 << 17
_FEW_PATHS = 32
KEEP_FILE_BYTES = 1 << 16
KEEP_BYTES = 64 << 20
"""Bytes of small files that stay in memory from the scan to the upload, so that each file is read once."""


class TooManyPaths(Exception):
    """More paths need a decision than this process takes on."""


def check_limit(paths: Sized, limit: int | None) -> None:
    if limit is not None and len(paths) > limit:
        raise TooManyPaths


class ObservedPath(Struct, frozen=True):
    """One path as the scanner saw it.

    `through` is the newest journal row that was closed then; a later row means that the path must be scanned again.
    `finish_delete`: a journaled delete was not carried out, and the file is to be removed first. `unread`: the stat of
    a file that was not read yet; it must be the same when the file is read.
    """

    path: str
    state: LocalState
    content: Content | None
    through: int
    scanned_at: int = 0
    """The time before the content was read, in ns since 1970; `FileStat.settled` needs it."""
    finish_delete: bool = False
    unread: FileStat | None = None

    @property
    def stat(self) -> FileStat | None:
        return self.content.stat if self.content is not None else self.unread

    def read(self, content: Content) -> ObservedPath:
        """Return this path with the content that was read now."""
        state = LocalState(content.sha256, content.size, ours=self.state.ours)
        return ObservedPath(self.path, state, content, self.through, self.scanned_at)


class ScanResult(Struct):
    """The result of a scan: the paths that need a decision, and those that could not be scanned."""

    journaled: JournalSnapshot
    paths: dict[str, ObservedPath] = field(default_factory=dict)
    refused: list[Refusal] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    temporaries: list[str] = field(default_factory=list)
    walked: bool = False
    """Whether the scan covered the whole tree."""
    within: KeyRange | None = None
    """The range of paths that was scanned, if not all paths: a window of a larger pass."""


class FileScan(Struct, frozen=True):
    """Scans single paths. It reads only the file system, so it also runs in a worker of Spark.

    `absent` are the paths that are missing on purpose; `listed` has size and mtime of files known to be untracked.
    """

    root: Path
    adopt: bool
    absent: Container[str]
    listed: Mapping[str, tuple[int, int]]
    deadline: Deadline | None = None
    moved: OnBytes | None = None
    """Told of the bytes of large files as they are hashed."""

    def at(
        self,
        path: str,
        walked: FileStat | None,
        journaled: JournalSnapshot,
        before: CachedHash | None,
        now: int,
        keep: int = 0,
        missing: MissingDirectories | None = None,
    ) -> ObservedPath | Failure:
        """Scan one path. `walked` is its stat if a walk has just found it, `before` its recorded stat and hash.

        The content of a file of up to `keep` bytes stays in memory. A path that `missing` holds is not looked for.
        """
        if walked is None and paths.refusal(path) is not None:
            # V21: only the store has this name; no file of the tree can have it.
            return ObservedPath(path, LocalState(absent=path in self.absent), None, journaled.closed_through(path), now)
        row = journaled.last.get(path)
        content = None
        unsettled = False
        try:
            # A walk follows no links; a path from elsewhere must be checked for them. A file that was written and
            # cannot be examined is not missing: its journal row must stay (V7).
            written = row is not None and row.kind == "write"
            absent = walked is None and missing is not None and missing.hold(path)
            stat = walked or (None if absent else (examine_file if written else file_stat)(self.root, path))
            if stat is not None:
                if row is None and before is not None and before.is_current(stat):
                    content = Content(before.sha256, stat.size, stat)
                else:
                    moved = self.moved if stat.size > _LARGE_BYTES else None
                    content = read_content(f"{self.root}/{path}", self.deadline, keep, moved)
        except ContentChanged:
            unsettled = True
        except FileNotFoundError:
            pass
        except (DeadlinePassed, Cancelled):
            raise
        except BayouError as error:
            return Failure(path, error.code, error.message)
        except OSError as error:
            return Failure(path, "unreadable", f"{path}: {error.strerror or error}")
        if unsettled:
            return Failure(path, "content_changed", f"{path} keeps changing while it is read")
        finish = content is not None and journaled.unfinished_delete(path)
        here = None if finish else content
        state = LocalState(
            sha256=here.sha256 if here else None,
            size=here.size if here else None,
            deleted=here is None and journaled.deleted(path),
            ours=self._ours(path, journaled, here.stat if here else None),
            absent=path in self.absent and here is None,
        )
        return ObservedPath(path, state, content, journaled.closed_through(path), now, finish_delete=finish)

    def stat_only(self, path: str, walked: FileStat, journaled: JournalSnapshot, now: int) -> ObservedPath | None:
        """Scan a file that no journal row names, without reading it; None if it must be read now.

        Reading can wait if the file is to be pushed, its stat will show any change (`FileStat.settled`), and it is
        small enough to stay in memory.
        """
        if walked.size > KEEP_FILE_BYTES or not walked.settled(now) or not self._ours(path, journaled, walked):
            return None
        state = LocalState(UNREAD, walked.size, ours=True)
        return ObservedPath(path, state, None, journaled.through, now, unread=walked)

    def _ours(self, path: str, journaled: JournalSnapshot, here: FileStat | None) -> bool:
        if self.adopt or journaled.written(path):
            return True
        if here is None or not journaled.marked(path):
            return False
        # T11: a mark of the whole tree does not cover a file that is listed as untracked and has not changed since.
        return not self.is_listed(path, here)

    def is_listed(self, path: str, stat: FileStat) -> bool:
        """Return whether a file is known to be untracked, and has not changed since."""
        return self.listed.get(path) == (stat.size, stat.mtime_ns)


class LocalScanner:
    """Scans the tree for one sync with one remote."""

    def __init__(
        self,
        root: Path,
        database: Database,
        remote_id: int,
        policy: Policy,
        *,
        adopt: bool,
        absent: Container[str],
        deadline: Deadline | None = None,
        within: KeyRange = EVERYTHING,
        pushes: bool = False,
        progress: Progress | None = None,
    ) -> None:
        self._root = root
        self._database = database
        self._remote_id = remote_id
        self._policy = policy
        self._within = within
        self._pushes = pushes
        self._keep_budget = KEEP_BYTES if pushes else 0
        self._progress = progress or NoProgress()
        listed = database.rows(
            f"SELECT path, size, mtime FROM untracked WHERE place = ? AND {IN_RANGE}", (remote_id, *within.bounds)
        )
        untracked = {cast("str", path): cast("tuple[int, int]", tuple(stat)) for path, *stat in listed}
        self._file_scan = FileScan(root, adopt, absent, untracked, deadline, self._count_hashed)

    def scan(
        self, rows: Iterable[JournalRow], *, walk: bool, scope: ModelScope | None = None, limit: int | None = None
    ) -> ScanResult:
        """Return every path (of the scope) that the journal names and, with a walk, every file that differs from base.

        `TooManyPaths`, before any file is read, if these are more than `limit`.
        """
        seen = ScanResult(JournalSnapshot.of(rows if scope is None else scope.rows(rows)))
        candidates: dict[str, FileStat | None] = dict.fromkeys(seen.journaled.last)
        seen.walked = walk or (seen.journaled.everything and scope is None)
        if seen.walked:
            self._progress.begin("looking through the tree", None, None)
            limit = self._walk(None, seen, candidates, limit)
            self._progress.end()
        else:
            for mark in seen.journaled.marks:
                for directory in (mark.path,) if scope is None else scope.below(mark.path):
                    limit = self._walk(directory, seen, candidates, limit)
        check_limit(candidates, limit)
        self._scan_candidates(candidates, seen)
        return seen

    def read_unread(self, paths: Iterable[str], seen: ScanResult) -> None:
        """Read files that the scan has only statted."""
        self._scan_candidates({path: seen.paths.pop(path).unread for path in paths}, seen, stat_only=False)

    def add(self, paths: Iterable[str], seen: ScanResult) -> None:
        """Scan more paths: those that the store has changed."""
        self._scan_candidates(dict.fromkeys(path for path in paths if path not in seen.paths), seen)

    def _walk(
        self, under: str | None, seen: ScanResult, candidates: dict[str, FileStat | None], limit: int | None
    ) -> int | None:
        """Add the paths that a walk finds; return the limit, raised by the files already known to be untracked."""
        check_limit(candidates, limit)
        equal, expected = file_stats.load_matching(self._database, self._remote_id)
        # A mark of the whole tree has an empty path.
        for item in scan(self._root, under or None, seen.temporaries, equal):
            if isinstance(item, ScannedFile):
                path, stat = item
                expected.discard(path)
                if not self._policy.excluded(path):
                    candidates[path] = stat
                    if limit is not None and self._file_scan.is_listed(path, stat):
                        limit += 1
                    check_limit(candidates, limit)
            elif item.kind == "foreign":
                seen.foreign.append(item.path)
            elif item.kind == "refused":
                seen.refused.append(Refusal(item.path, item.reason))
            else:
                seen.unreadable.append(item.path)
                seen.failed.append(Failure(item.path, "unreadable", item.reason))
        for path in chain(equal, expected):
            if not _below(path, under) or self._policy.excluded(path):
                continue
            # V5: a path below an unreadable directory is not known to be missing.
            if not any(path == bad or path.startswith(f"{bad}/") for bad in seen.unreadable):
                candidates.setdefault(path, None)
        return limit

    def _scan_candidates(
        self, candidates: Mapping[str, FileStat | None], seen: ScanResult, *, stat_only: bool = True
    ) -> None:
        few = len(candidates) < _FEW_PATHS
        known = (
            file_stats.load(self._database, candidates) if few else file_stats.load_range(self._database, self._within)
        )
        now = time.time_ns()
        if stat_only and self._pushes:
            candidates = self._scan_by_stat(candidates, known, seen, now)

        def scan_some(some: Sequence[str]) -> list[ObservedPath | Failure]:
            missing = None if few else MissingDirectories(self._root)
            return [
                self._scan_file(path, candidates[path], seen.journaled, known.get(path), now, missing) for path in some
            ]

        # Threads help where hashing takes time; for small files they only contend for the interpreter.
        large = {
            path: size
            for path, stat in candidates.items()
            # A path that only the store names rarely exists here, so it is not statted twice.
            if (stat is not None or path in known or path in seen.journaled.last)
            and (size := self._large_size(path, stat))
        }
        small = [path for path in candidates if path not in large] if large else list(candidates)
        if large:
            self._progress.begin("hashing", len(large), sum(large.values()))
        if len(large) < 2:
            results = [*scan_some(small), *scan_some(list(large))]
            self._progress.advance(files=len(large))
        else:
            with ThreadPoolExecutor(_HASH_THREADS, thread_name_prefix="bayou-hash") as pool:
                hashing = pool.map(scan_some, [[path] for path in large])
                results = scan_some(small)
                for part in hashing:
                    results += part
                    self._progress.advance(files=1)
        if large:
            self._progress.end()
        fresh: list[ObservedPath] = []
        for result in results:
            if isinstance(result, Failure):
                seen.failed.append(result)
            else:
                seen.paths[result.path] = result
                before = known.get(result.path)
                if result.content is not None and (before is None or before.stat != result.content.stat):
                    fresh.append(result)
        self._cache(fresh, known, now)

    def _scan_by_stat(
        self, candidates: Mapping[str, FileStat | None], known: Container[str], seen: ScanResult, now: int
    ) -> dict[str, FileStat | None]:
        """Scan by stat alone the files that need not be read yet; return the other candidates."""
        rest: dict[str, FileStat | None] = {}
        for path, stat in candidates.items():
            observed = None
            if stat is not None and path not in known and path not in seen.journaled.last:
                observed = self._file_scan.stat_only(path, stat, seen.journaled, now)
            if observed is None:
                rest[path] = stat
            else:
                seen.paths[path] = observed
        return rest

    def _scan_file(
        self,
        path: str,
        walked: FileStat | None,
        journaled: JournalSnapshot,
        before: CachedHash | None,
        now: int,
        missing: MissingDirectories | None,
    ) -> ObservedPath | Failure:
        keep = min(KEEP_FILE_BYTES, self._keep_budget)
        found = self._file_scan.at(path, walked, journaled, before, now, keep, missing)
        if isinstance(found, ObservedPath) and found.content is not None and found.content.data is not None:
            self._keep_budget -= found.content.size
        return found

    def _large_size(self, path: str, stat: FileStat | None) -> int:
        """Return the size of a file that takes long to hash; 0 for any other path."""
        try:
            size = stat.size if stat is not None else os.lstat(f"{self._root}/{path}").st_size
        except (OSError, ValueError):
            return 0
        return size if size > _LARGE_BYTES else 0

    def _count_hashed(self, size: int) -> None:
        self._progress.advance(bytes=size)

    def _cache(self, fresh: list[ObservedPath], known: Mapping[str, CachedHash], now: int) -> None:
        """Record new hashes, so that the next scan does not read the file again."""
        if not fresh:
            return
        kept = [
            file_stats.refresh_row(observed.path, observed.content, now, known.get(observed.path))
            for observed in fresh
            if observed.content
        ]
        with self._database.transaction() as db:
            file_stats.save_many(db, kept)


def _below(path: str, under: str | None) -> bool:
    return not under or path == under or path.startswith(f"{under}/")
