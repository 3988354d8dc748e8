"""What this machine has: the journal's word, a walk by stat, and hashes where those do not suffice (V6).

Journaled paths are always hashed. Elsewhere a file whose stat has not changed since it was hashed is not read again;
and a small one that is to go up, and was never hashed, is not read before it does, unless there is something to compare
it with.
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
from bayou.core.deadline import Deadline
from bayou.core.errors import BayouError, Cancelled, ContentChanged, DeadlinePassed
from bayou.core.progress import NoProgress, Progress
from bayou.index.key_range import EVERYTHING, KeyRange
from bayou.state import file_stats
from bayou.state.database import IN_RANGE, Database
from bayou.state.file_stats import CachedHash, file_stat
from bayou.state.journal import JournalRow, JournalSnapshot
from bayou.sync.plan.decision_table import UNREAD, LocalState
from bayou.sync.plan.policy import ModelScope, Policy
from bayou.sync.report import Failure, Refusal
from bayou.worktree.hashing import Content, FileStat, read_content
from bayou.worktree.scan import Found, scan

_HASHERS = 4
_LARGE = 1 << 17
_FEW = 32
_KEPT_EACH = 1 << 16
_KEPT = 64 << 20
"""Bytes of small files that are kept from the look to the upload, so that they are opened, read and hashed once."""


class TooMany(Exception):
    """More paths need a decision than one process is to take on."""


def check_limit(paths: Sized, limit: int | None) -> None:
    if limit is not None and len(paths) > limit:
        raise TooMany


class Observed(Struct, frozen=True):
    """One path as it was looked at. `through` is the newest journal row that was closed then; a later one means: look
    again. `finish_delete`: a file is there, and is to be removed first. `unread`: the stat of a file that is there and
    that nobody has read yet; whoever does must find it so."""

    path: str
    state: LocalState
    content: Content | None
    through: int
    looked: int = 0
    """When, in ns since 1970: before the content was read, so that `FileStat.settled` can tell."""
    finish_delete: bool = False
    unread: FileStat | None = None

    @property
    def stat(self) -> FileStat | None:
        return self.content.stat if self.content is not None else self.unread

    def read(self, content: Content) -> Observed:
        """Return what was looked at and not read, with what is in it."""
        state = LocalState(content.sha256, content.size, ours=self.state.ours)
        return Observed(self.path, state, content, self.through, self.looked)


class Observation(Struct):
    """What a look at the tree brought: paths worth a decision, and what could not be looked at."""

    journaled: JournalSnapshot
    paths: dict[str, Observed] = field(default_factory=dict)
    refused: list[Refusal] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    temporaries: list[str] = field(default_factory=list)
    walked: bool = False
    """Whether the whole tree was looked at."""
    within: KeyRange | None = None
    """The window that this is about, if it is not about everything: the rest is looked at by itself."""


class FileScan(Struct, frozen=True):
    """Looks at single paths; asks nothing but the file system, so that whoever knows the rest can do it anywhere.

    `absent` is what is not here on purpose, `listed` the stat of files that are known to be untracked.
    """

    root: Path
    adopt: bool
    absent: Container[str]
    listed: Mapping[str, tuple[int, int]]
    deadline: Deadline | None = None

    def at(
        self,
        path: str,
        walked: FileStat | None,
        journaled: JournalSnapshot,
        before: CachedHash | None,
        now: int,
        keep: int = 0,
    ) -> Observed | Failure:
        """Look at one path. `walked` is its stat if a walk has just come by, `before` what was known of it.

        What is read of a file of up to `keep` bytes is kept.
        """
        if walked is None and paths.refusal(path) is not None:
            # V21: the store's word alone has brought it here, and no file of the tree can have this name.
            return Observed(path, LocalState(absent=path in self.absent), None, journaled.closed_through(path), now)
        row = journaled.last.get(path)
        content = None
        unsettled = False
        try:
            # A walk has come to the file without following links; whoever else names it must be checked.
            stat = walked or file_stat(self.root, path)
            if stat is not None:
                if row is None and before is not None and before.is_current(stat):
                    content = Content(before.sha256, stat.size, stat)
                else:
                    content = read_content(f"{self.root}/{path}", self.deadline, keep)
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
        return Observed(path, state, content, journaled.closed_through(path), now, finish_delete=finish)

    def in_passing(self, path: str, walked: FileStat, journaled: JournalSnapshot, now: int) -> Observed | None:
        """Look at a file that no row of the journal names, without reading it; None if it must be read now.

        It is ours, its stat will tell if it changes (`FileStat.settled`), and its bytes can be kept when they are read.
        """
        if walked.size > _KEPT_EACH or not walked.settled(now) or not self._ours(path, journaled, walked):
            return None
        state = LocalState(UNREAD, walked.size, ours=True)
        return Observed(path, state, None, journaled.through, now, unread=walked)

    def _ours(self, path: str, journaled: JournalSnapshot, here: FileStat | None) -> bool:
        if self.adopt or journaled.written(path):
            return True
        if here is None or not journaled.marked(path):
            return False
        # T11: what was listed as untracked and has not changed since is not covered by a row that names everything.
        return not self.is_listed(path, here)

    def is_listed(self, path: str, stat: FileStat) -> bool:
        """Whether a file is known to be untracked, and has not changed since that was found out."""
        return self.listed.get(path) == (stat.size, stat.mtime_ns)


class LocalScanner:
    """Looks at the tree for one sync of one place."""

    def __init__(
        self,
        root: Path,
        database: Database,
        place: int,
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
        self._place = place
        self._policy = policy
        self._within = within
        self._pushes = pushes
        self._room = _KEPT if pushes else 0
        self._progress = progress or NoProgress()
        listed = database.rows(
            f"SELECT path, size, mtime FROM untracked WHERE place = ? AND {IN_RANGE}", (place, *within.bounds)
        )
        untracked = {cast("str", path): cast("tuple[int, int]", tuple(stat)) for path, *stat in listed}
        self._one = FileScan(root, adopt, absent, untracked, deadline)

    def look(
        self, rows: Iterable[JournalRow], *, walk: bool, scope: ModelScope | None = None, limit: int | None = None
    ) -> Observation:
        """Return every path (of the scope) that the journal names, and, by a walk, every file that is not as base has
        it. `TooMany` if these are more than `limit`: then nothing was read yet."""
        seen = Observation(JournalSnapshot.of(rows if scope is None else scope.rows(rows)))
        candidates: dict[str, FileStat | None] = dict.fromkeys(seen.journaled.last)
        seen.walked = walk or (seen.journaled.everything and scope is None)
        if seen.walked:
            limit = self._walk(None, seen, candidates, limit)
        else:
            for mark in seen.journaled.marks:
                for directory in (mark.path,) if scope is None else scope.below(mark.path):
                    limit = self._walk(directory, seen, candidates, limit)
        check_limit(candidates, limit)
        self._examine(candidates, seen)
        return seen

    def read(self, paths: Iterable[str], seen: Observation) -> None:
        """Read files that were only looked at in passing."""
        self._examine({path: seen.paths.pop(path).unread for path in paths}, seen, in_passing=False)

    def look_at(self, paths: Iterable[str], seen: Observation) -> None:
        """Add paths that the other side changed."""
        self._examine(dict.fromkeys(path for path in paths if path not in seen.paths), seen)

    def _walk(
        self, under: str | None, seen: Observation, candidates: dict[str, FileStat | None], limit: int | None
    ) -> int | None:
        """Add what a walk brings up; return the limit, beyond which what is known to be untracked does not count."""
        check_limit(candidates, limit)
        equal, expected = file_stats.load_matching(self._database, self._place)
        # A mark of the whole tree has an empty path.
        for item in scan(self._root, under or None, seen.temporaries, equal):
            if isinstance(item, Found):
                path, stat = item
                expected.discard(path)
                if not self._policy.excluded(path):
                    candidates[path] = stat
                    if limit is not None and self._one.is_listed(path, stat):
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
            # V5: what lies below a directory that cannot be read is not known to be missing.
            if not any(path == bad or path.startswith(f"{bad}/") for bad in seen.unreadable):
                candidates.setdefault(path, None)
        return limit

    def _examine(
        self, candidates: Mapping[str, FileStat | None], seen: Observation, *, in_passing: bool = True
    ) -> None:
        few = len(candidates) < _FEW
        known = (
            file_stats.load(self._database, candidates) if few else file_stats.load_range(self._database, self._within)
        )
        now = time.time_ns()
        if in_passing and self._pushes:
            candidates = self._pass_by(candidates, known, seen, now)

        def examine(some: Sequence[str]) -> list[Observed | Failure]:
            return [self._look_at(path, candidates[path], seen.journaled, known.get(path), now) for path in some]

        # Threads help where hashing takes time; for small files they only get in each other's way.
        large = [
            path
            for path, stat in candidates.items()
            # What only the other side names is hardly ever here; whoever looks for it finds out soon enough.
            if (stat is not None or path in known or path in seen.journaled.last) and self._is_large(path, stat)
        ]
        small = [path for path in candidates if path not in set(large)] if large else list(candidates)
        if large:
            self._progress.begin("hashing", len(large), None)
        if len(large) < 2:
            results = examine([*small, *large])
        else:
            with ThreadPoolExecutor(_HASHERS, thread_name_prefix="bayou-hash") as pool:
                hashing = pool.map(examine, [[path] for path in large])
                results = examine(small)
                for part in hashing:
                    results += part
                    self._progress.advance(files=1, bytes=sum(_size(one) for one in part))
        if large:
            self._progress.end()
        fresh: list[Observed] = []
        for result in results:
            if isinstance(result, Failure):
                seen.failed.append(result)
            else:
                seen.paths[result.path] = result
                before = known.get(result.path)
                if result.content is not None and (before is None or before.stat != result.content.stat):
                    fresh.append(result)
        self._cache(fresh, known, now)

    def _pass_by(
        self, candidates: Mapping[str, FileStat | None], known: Container[str], seen: Observation, now: int
    ) -> dict[str, FileStat | None]:
        """Look at what need not be read yet; return the rest."""
        rest: dict[str, FileStat | None] = {}
        for path, stat in candidates.items():
            one = None
            if stat is not None and path not in known and path not in seen.journaled.last:
                one = self._one.in_passing(path, stat, seen.journaled, now)
            if one is None:
                rest[path] = stat
            else:
                seen.paths[path] = one
        return rest

    def _look_at(
        self, path: str, walked: FileStat | None, journaled: JournalSnapshot, before: CachedHash | None, now: int
    ) -> Observed | Failure:
        found = self._one.at(path, walked, journaled, before, now, min(_KEPT_EACH, self._room))
        if isinstance(found, Observed) and found.content is not None and found.content.data is not None:
            self._room -= found.content.size
        return found

    def _is_large(self, path: str, stat: FileStat | None) -> bool:
        if stat is not None:
            return stat.size > _LARGE
        try:
            return os.lstat(f"{self._root}/{path}").st_size > _LARGE
        except (OSError, ValueError):
            return False

    def _cache(self, fresh: list[Observed], known: Mapping[str, CachedHash], now: int) -> None:
        """Keep new hashes, so that a file is read once although nothing was decided about it."""
        if not fresh:
            return
        kept = [file_stats.refresh_row(one.path, one.content, now, known.get(one.path)) for one in fresh if one.content]
        with self._database.transaction() as db:
            file_stats.save_many(db, kept)


def _size(one: Observed | Failure) -> int:
    return one.content.size if isinstance(one, Observed) and one.content is not None else 0


def _below(path: str, under: str | None) -> bool:
    return not under or path == under or path.startswith(f"{under}/")
