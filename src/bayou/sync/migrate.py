"""Take along what the old tree holds, when a repo moves to another datastore.

Every copy is whole and durable, and one that an earlier run made is known by its bytes, so that the same command again
completes (V19). A version directory moves, or is kept aside, whole.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Literal

from msgspec import Struct, field

from bayou.core.deadline import Deadline
from bayou.core.errors import BayouError, TreeError
from bayou.core.progress import Progress
from bayou.state.journal import NoJournal
from bayou.sync.conflicts.copies import Conflicts
from bayou.sync.plan.policy import version_dir
from bayou.sync.report import Conflict
from bayou.worktree.hashing import read_content
from bayou.worktree.scan import Found, Skipped, scan
from bayou.worktree.tree import Worktree

_COPIERS = 8

Winner = Literal["source", "target"]


class Migrated(Struct):
    """What was taken along: every payload path of the source, those that had to be written, and what was kept aside."""

    paths: list[str] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)


def payload(root: Path) -> list[Found]:
    """Return every payload file of a tree; `TreeError` if some of it cannot be seen, since it would be left behind."""
    found: list[Found] = []
    for item in scan(root):
        if isinstance(item, Skipped) and item.kind == "unreadable":
            raise TreeError(
                f"cannot read {item.path}: {item.reason}", hint="give this user access to it; nothing was switched"
            )
        if isinstance(item, Found):
            found.append(item)
    return found


def copy(
    source: Path, target: Path, folder: Conflicts, winner: Winner, deadline: Deadline, progress: Progress
) -> Migrated:
    """Copy the payload of one directory into another; where both have a path, `winner` keeps it (F060).

    The other side's file is kept in `folder`, on disk before anything replaces it.
    """
    done = Migrated()
    units: dict[str, list[Found]] = defaultdict(list)
    for item in payload(source):
        done.paths.append(item.path)
        units[version_dir(item.path) or item.path].append(item)
    todo: list[Found] = []
    tree = Worktree(target, NoJournal())
    for unit, members in units.items():
        deadline.remaining()
        there = {item.path for item in scan(target, unit) if isinstance(item, Found)}
        others = {path for path in there if not _same(source / path, target / path)}
        if others and winner == "target":
            done.conflicts += [_keep(folder, source, item.path, "remote") for item in members]
            continue
        done.conflicts += [_keep(folder, target, path, "local") for path in sorted(others)]
        tree.delete_many(sorted(others - {item.path for item in members}))
        todo += [item for item in members if item.path not in there or item.path in others]
    progress.begin("copying", len(todo), sum(item.stat.size for item in todo))
    old = Worktree(source, NoJournal())
    with ThreadPoolExecutor(_COPIERS, thread_name_prefix="bayou-copy") as pool:
        try:
            for item, _ in zip(todo, pool.map(lambda one: _copy(old, tree, one, deadline), todo), strict=True):
                done.written.append(item.path)
                progress.advance(files=1, bytes=item.stat.size)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            remove(target, done.written)
            raise
    progress.end()
    return done


def remove(root: Path, paths: Sequence[str]) -> None:
    """Take copies away again, as far as that can be done."""
    tree = Worktree(root, NoJournal())
    for path in paths:
        with suppress(BayouError):
            tree.delete(path)


def remove_moved(source: Path, target: Path, paths: Iterable[str]) -> None:
    """Remove files whose bytes are safe at their new place, and the directories that this empties."""
    remove(source, [path for path in paths if _same(source / path, target / path)])


def _copy(source: Worktree, target: Worktree, item: Found, deadline: Deadline) -> None:
    deadline.remaining()
    with source.open(item.path) as file:
        target.write(item.path, file)
    os.utime(target.place(item.path), ns=(item.stat.mtime_ns, item.stat.mtime_ns))


def _keep(folder: Conflicts, root: Path, path: str, winner: Literal["remote", "local"]) -> Conflict:
    return Conflict(path, winner, str(folder.keep(root / path, path)))


def _same(one: Path, other: Path) -> bool:
    """Whether both are there, with equal bytes."""
    try:
        return read_content(one).sha256 == read_content(other).sha256
    except FileNotFoundError:
        return False
