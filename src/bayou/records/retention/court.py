"""One item at a time: which of its versions may go, and what that frees. A pure function of its rows and of the tree.

This process and Spark's workers judge by the same `Court`; who calls it makes no difference.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from msgspec import Struct

from bayou.records.catalog.rows import VersionRow
from bayou.records.catalog.schema import values, version_of
from bayou.records.layout import VersionPath
from bayou.records.retention.removal import order, weigh_item
from bayou.records.retention.rules import Doomed, judge
from bayou.records.retention.runs import GoneRuns
from bayou.records.versions import Versions
from bayou.state.journal import NoJournal
from bayou.worktree.tree import Worktree

Line = tuple[str | None, str | None, int | None, str | None]
"""`row, why, bytes, unclear`: what `bayou.pipeline.kernels.retention` carries."""


class Sentenced(Struct, frozen=True):
    """A version that may go and that is still there, and the bytes that this frees."""

    doomed: Doomed
    bytes: int


Ruling = Sentenced | str
"""What becomes of a version; a text says why nobody can tell, and so why it stays."""


class Court(Struct, frozen=True):
    """Judges by a time, by the runs that are gone, and by what lies in the tree. It can be pickled."""

    now: datetime
    gone: GoneRuns
    root: Path
    repo_id: str

    def judge(self, rows: Iterable[VersionRow]) -> Iterator[Ruling]:
        """Judge the versions of many items, deleted ones among them: item by item, in order of name and number."""
        tree = Worktree(self.root, NoJournal())
        for _, versions in groupby(sorted(rows, key=order), key=lambda row: row.item):
            yield from self._item(tree, list(versions))

    def __call__(self, found: Sequence[Sequence[Any]]) -> Iterator[Line]:
        """Judge the versions of one item; they come, and what is said of them goes, as plain values."""
        return map(line_of, self.judge(map(version_of, found)))

    def _item(self, tree: Worktree, rows: Sequence[VersionRow]) -> Iterator[Ruling]:
        verdict = judge(rows, self.now, self.gone)
        if verdict.doomed:
            first = rows[0]
            known = Versions.seen(tree, VersionPath(first.type, first.model_id, first.name, 0), rows)
            doomed = {one.row.version: one for one in verdict.doomed}
            for one in weigh_item(tree, self.repo_id, known, [doomed[number].row for number in sorted(doomed)]):
                yield Sentenced(doomed[one.row.version], one.bytes)
        yield from verdict.unclear


def line_of(ruling: Ruling) -> Line:
    """Return a ruling as it crosses."""
    if isinstance(ruling, str):
        return None, None, None, ruling
    row = ruling.doomed.row
    return json.dumps((*values(row)[1], row.latest)), ruling.doomed.why, ruling.bytes, None


def ruling_of(line: Line) -> Ruling:
    """Return the ruling that crossed."""
    row, why, size, unclear = line
    if unclear is not None:
        return unclear
    return Sentenced(Doomed(version_of(json.loads(row or "")), "expired" if why == "expired" else "surplus"), size or 0)
