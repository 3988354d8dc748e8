"""Windows: the key ranges in which a large sync goes through its paths, each a small sync of its own.

The windows of a sync cover the whole key space, so each path belongs to exactly one of them, also a path that the
comparison did not report. No version directory is divided between two windows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct

from bayou.index.key_range import KeyRange
from bayou.state import file_stats
from bayou.state.journal import JournalRow
from bayou.sync.plan.decision_table import Action
from bayou.sync.plan.local_scanner import ObservedPath
from bayou.sync.plan.policy import version_dirs_around

WINDOW = 25_000
"""Paths of one window: so many that the commit costs little in comparison, and few enough for memory."""


class Candidate(Struct, frozen=True):
    """A path that needs a decision, with its local state. `hash_row` is its row of `file_stats`, if that is new.

    `named`: the journal or a difference between base and store names the path, and not the walk alone.
    """

    observed: ObservedPath
    named: bool
    hash_row: file_stats.Row | None = None


class Window(Struct, frozen=True):
    """A range of paths, and the paths in it that need a decision."""

    span: KeyRange
    rows: Sequence[Candidate]


class Note(Struct, frozen=True):
    """Something that a comparison found and that needs no decision: `what` is its kind, or the code of a failure."""

    path: str
    what: str
    text: str


class Comparison(Struct, frozen=True):
    """The result of a comparison of many paths.

    `counts`, and the `bytes` to transfer, are of single paths: version directories that both sides changed are decided
    later. `marks` are the journal's rows that name directories, and `through` is the journal's newest row when the
    comparison began. `rows` streams the paths that need a decision, in order; it may be called again. `close` frees
    them.
    """

    counts: Counter[Action]
    bytes: Counter[Action]
    notes: Sequence[Note]
    marks: tuple[JournalRow, ...]
    through: int
    rows: Callable[[], Iterator[Candidate]]
    close: Callable[[], None] = lambda: None


def divide_into_windows(rows: Iterable[Candidate], size: int | None = None, *, soon: bool = False) -> Iterator[Window]:
    """Divide rows, which are in path order, into windows of about `size`; with `soon` the first has a fifth of it."""
    whole = WINDOW if size is None else size
    wanted = max(1, whole // 5) if soon else whole
    start = ""
    window: list[Candidate] = []
    for row in rows:
        path = row.observed.path
        if len(window) >= wanted and not _share_version_dir(window[-1].observed.path, path):
            yield Window(KeyRange(start, path), window)
            start, window, wanted = path, [], whole
        window.append(row)
    yield Window(KeyRange(start, None), window)


def _share_version_dir(path: str, following: str) -> bool:
    """Return whether any version directory contains both, also an outer one: versions may be nested."""
    return not set(version_dirs_around(path)).isdisjoint(version_dirs_around(following))
