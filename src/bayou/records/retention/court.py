"""One item at a time: which versions may go, and what that frees. A pure function of its rows and of the tree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import groupby
from pathlib import Path

from bayou.quick import dataclass
from bayou.records.catalog.rows import VersionRow
from bayou.records.layout import VersionPath
from bayou.records.retention.removal import weigh_item
from bayou.records.retention.rules import Doomed, judge
from bayou.records.retention.runs import GoneRuns
from bayou.records.versions import Versions
from bayou.sync.presence import NoJournal
from bayou.tree.tree import Tree


@dataclass(frozen=True, slots=True)
class Sentenced:
    """A version that may go and that is still there, and the bytes that this frees."""

    doomed: Doomed
    bytes: int


Ruling = Sentenced | str
"""What becomes of a version; a text says why that cannot be told, and so why it stays."""


@dataclass(frozen=True, slots=True)
class Court:
    """Judges by a time, by the runs that are gone, and by what lies in the tree. It can be pickled."""

    now: datetime
    gone: GoneRuns
    root: Path
    repo_id: str

    def judge(self, rows: Iterable[VersionRow]) -> Iterator[Ruling]:
        """Judge the versions of many items, deleted ones among them, which come in order of item and number."""
        tree = Tree(self.root, NoJournal())
        for _, versions in groupby(rows, key=lambda row: row.item):
            yield from self._item(tree, list(versions))

    def _item(self, tree: Tree, rows: Sequence[VersionRow]) -> Iterator[Ruling]:
        verdict = judge(rows, self.now, self.gone)
        if verdict.doomed:
            first = rows[0]
            known = Versions.seen(tree, VersionPath(first.type, first.model_id, first.name, 0), rows)
            doomed = {one.row.version: one for one in verdict.doomed}
            for one in weigh_item(tree, self.repo_id, known, [doomed[number].row for number in sorted(doomed)]):
                yield Sentenced(doomed[one.row.version], one.bytes)
        yield from verdict.unclear
