"""A sync of many paths goes through them in windows: ranges of the path order, each a small sync of its own.

Together they are all paths there are, so that a window also has what nobody has looked at; and no version directory
is ever cut in two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct

from bayou.index.key_range import KeyRange
from bayou.state import file_stats
from bayou.state.journal import JournalRow
from bayou.sync.plan.decision_table import Action
from bayou.sync.plan.local_scanner import Observed
from bayou.sync.plan.policy import version_dirs_around

WINDOW = 25_000
"""Paths that need a decision: enough that a commit costs little beside them, few enough to hold."""


class Looked(Struct, frozen=True):
    """A path that a walk or somebody's word has brought up. `kept` is what to remember of its hash, if it is new.

    `named`: not only the walk asks for it, but the journal, or a difference between base and store.
    """

    observed: Observed
    named: bool
    kept: file_stats.Row | None = None


class Window(Struct, frozen=True):
    """A range of paths, and what was looked at in it."""

    span: KeyRange
    rows: Sequence[Looked]


class Note(Struct, frozen=True):
    """What a comparison met that needs no decision: the kind of something that is no payload, or a failure's code."""

    path: str
    what: str
    text: str


class Planned(Struct, frozen=True):
    """What a comparison of many paths came to. `counts`, and the `bytes` that move, are of single paths: what becomes
    of versions that both sides changed is decided later.

    `marks` are the journal's rows that name directories, `through` the newest row of all, as of its beginning. `rows`
    yields every path that needs a decision, in order, and holds few of them; it may be called again.
    """

    counts: Counter[Action]
    bytes: Counter[Action]
    notes: Sequence[Note]
    marks: tuple[JournalRow, ...]
    through: int
    rows: Callable[[], Iterator[Looked]]


def cut(rows: Iterable[Looked], size: int | None = None, *, soon: bool = False) -> Iterator[Window]:
    """Divide rows, which come in order of path, into windows of about `size`; `soon`: the first has a fifth of that."""
    whole = WINDOW if size is None else size
    wanted = max(1, whole // 5) if soon else whole
    start = ""
    some: list[Looked] = []
    for row in rows:
        path = row.observed.path
        if len(some) >= wanted and not _belong_together(some[-1].observed.path, path):
            yield Window(KeyRange(start, path), some)
            start, some, wanted = path, [], whole
        some.append(row)
    yield Window(KeyRange(start, None), some)


def _belong_together(path: str, following: str) -> bool:
    """Whether there is a version directory around both, be it that of neither: a version may lie inside another."""
    return not set(version_dirs_around(path)).isdisjoint(version_dirs_around(following))
