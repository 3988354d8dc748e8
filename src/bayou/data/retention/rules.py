"""What may go: a pure function of rows, a time, and what is known of runs.

A version has the `lifetime` that it was written with, and goes when that is over. Among those that stay, the newest
one's `keep` says how many of an item's versions are kept, or for how long; the newest itself is never surplus.

Which workflow runs are known to be gone. Absence here is no evidence: the record may be in the store (F119).

Deleting versions of many items: weighed before, then deleted in batches.

One item at a time: which versions may go, and what that frees. A pure function of its rows and of the tree.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from bayou.core.errors import RetentionInvalid
from bayou.core.ids import ulid
from bayou.data.catalog.rows import VersionRow
from bayou.data.items import Versions, metadata_of
from bayou.data.layout import METADATA, RAW, VersionPath
from bayou.data.metadata import parse_keep, parse_lifetime
from bayou.index.key_range import KeyRange
from bayou.index.node_store import NodeFiles
from bayou.index.tree import scan
from bayou.repo import Repo
from bayou.state.base import BaseLost, BaseNodes, SyncBase
from bayou.state.database import Database, remote_url
from bayou.state.journal import NoJournal
from bayou.worktree.tree import Worktree

if TYPE_CHECKING:
    from bayou.data.records import Records

Why = Literal["expired", "surplus"]
RunIsGone = Callable[[VersionRow], bool]


class Doomed(Struct, frozen=True):
    """A version that may go, and the reason: its lifetime is over, or there are enough newer ones."""

    row: VersionRow
    why: Why


class Verdict(Struct, frozen=True):
    """What may go, and what cannot be judged and therefore stays (V5)."""

    doomed: tuple[Doomed, ...]
    unclear: tuple[str, ...]


def judge(rows: Iterable[VersionRow], now: datetime, run_is_gone: RunIsGone) -> Verdict:
    """Tell which versions may go. A row whose time, lifetime or keep cannot be read stays, and is named (F121)."""
    doomed: list[Doomed] = []
    unclear: list[str] = []
    live = sorted((row for row in rows if not row.deleted), key=lambda row: (row.item, row.version))
    for _, versions in groupby(live, key=lambda row: row.item):
        doomed += _judge_item(list(versions), now, run_is_gone, unclear)
    return Verdict(tuple(doomed), tuple(unclear))


def _judge_item(
    versions: list[VersionRow], now: datetime, run_is_gone: RunIsGone, unclear: list[str]
) -> Iterator[Doomed]:
    staying = []
    for row in versions:
        try:
            over = _is_over(row, now, run_is_gone)
        except (RetentionInvalid, ValueError):
            unclear.append(f"{row.metadata_path}: its lifetime ({row.lifetime} from {row.created_at}) cannot be read")
            over = False
        if over:
            yield Doomed(row, "expired")
        else:
            staying.append(row)
    if not staying:
        return
    *older, newest = staying
    try:
        surplus = _surplus(older, newest.keep, now)
    except (RetentionInvalid, ValueError):
        unclear.append(f"{newest.metadata_path}: its keep ({newest.keep}) cannot be read")
        return
    yield from (Doomed(row, "surplus") for row in surplus)


def _is_over(row: VersionRow, now: datetime, run_is_gone: RunIsGone) -> bool:
    if row.lifetime is None:
        return False
    lifetime = parse_lifetime(row.lifetime)
    if lifetime == "run":
        return row.run is not None and run_is_gone(row)
    return lifetime != "infinite" and lifetime.after(_created(row)) <= now


def _surplus(older: list[VersionRow], keep: str | None, now: datetime) -> list[VersionRow]:
    if keep is None:
        return []
    kept = parse_keep(keep)
    if kept.count is not None:
        return older[: max(0, len(older) + 1 - kept.count)]
    return [row for row in older if kept.span is not None and kept.span.after(_created(row)) <= now]


def _created(row: VersionRow) -> datetime:
    created = datetime.fromisoformat(row.created_at)
    if created.tzinfo is None:
        raise ValueError(f"{row.created_at} has no zone")
    return created


_ROOT = "workflow-runs"
_SUFFIX = ".yaml"


class GoneRuns(Struct, frozen=True):
    """Runs that are known to have no record any more. It can be pickled.

    In a datastore that is a directory (`directory`), which may be somebody else's disk that is not there just now, a
    version that can be seen shows that the rest can be seen too.
    """

    ids: frozenset[str] = frozenset()
    directory: Path | None = None

    def __call__(self, row: VersionRow) -> bool:
        """Say whether the run of a version is known to be gone; no, if nobody can tell (V5)."""
        if row.run not in self.ids:
            return False
        return self.directory is None or Worktree(self.directory, NoJournal()).exists(row.metadata_path)


class Runs:
    """The runs that have a record, here or in the store."""

    def __init__(self, repo: Repo, tree: Worktree) -> None:
        self._repo = repo
        self._tree = tree

    def gone(self, named: Collection[str]) -> GoneRuns:
        """Return those of some runs that are known to be gone: none, if this machine cannot tell."""
        known = self._look() if named else None
        if known is None:
            return GoneRuns()
        directory = None if self._repo.config.datastore.url is not None else self._tree.root
        return GoneRuns(frozenset(named) - known, directory)

    def _look(self) -> set[str] | None:
        """Return the ids of all runs; None if this machine does not know of all that the store has."""
        here = {
            path.rpartition("/")[2]
            for workflow in self._tree.names(_ROOT)
            for path in self._tree.names(f"{_ROOT}/{workflow}")
        }
        there = self._in_store() if self._repo.config.datastore.url is not None else set()
        return None if there is None else {name.removesuffix(_SUFFIX) for name in here | there}

    def _in_store(self) -> set[str] | None:
        place = self._repo.config.datastore
        assert place.url is not None
        with Database(self._repo.state / "sync.db") as database:
            nodes = BaseNodes(NodeFiles(self._repo.state / "nodes"), ulid())
            base = SyncBase(database, remote_url(place.url, place.namespace), place.namespace, nodes)
            # V3: base has an ETag only while it is all that a head of the store says; a pull of one model leaves none.
            if base.remote.etag is None or base.dirty():
                return None
            try:
                return {entry.path.rpartition("/")[2] for entry in scan(base.tree(), KeyRange.under(f"{_ROOT}/"))}
            except BaseLost:
                return None


_BATCH = 500
"""Versions of one change set: made durable together, and no more than these go twice if a kill comes between."""


class FreedVersion(Struct, frozen=True):
    """A version that can be deleted, and the bytes that this frees."""

    row: VersionRow
    bytes: int


def bytes_freed(records: Records, rows: Iterable[VersionRow]) -> list[FreedVersion]:
    """Return those of the versions that are still there, with what deleting all of them would free."""
    context = records.context
    found: list[FreedVersion] = []
    for _, versions in groupby(sorted(rows, key=order), key=lambda row: row.item):
        some = list(versions)
        known = Versions.of(context, VersionPath(some[0].type, some[0].model_id, some[0].name, 0))
        found += weigh_item(context.tree, context.repo.config.repo_id, known, some)
    return found


def remove(records: Records, rows: Sequence[VersionRow]) -> list[FreedVersion]:
    """Delete these versions as far as they are still there; return what went. Each goes whole, or not at all."""
    gone: list[FreedVersion] = []
    doomed = sorted(rows, key=order)
    for start in range(0, len(doomed), _BATCH):
        batch = bytes_freed(records, doomed[start : start + _BATCH])
        records.data.delete_many(one.row for one in batch)
        gone += batch
    return gone


def order(row: VersionRow) -> tuple[tuple[str, str, str], int]:
    """Return what versions are sorted by: item by item, and in each by number."""
    return row.item, row.version


def weigh_item(tree: Worktree, repo_id: str, known: Versions, rows: Iterable[VersionRow]) -> Iterator[FreedVersion]:
    """Yield those versions of an item that are still there, with what deleting them would free.

    The bytes of every file count, metadata too, less the mark that stays of an item's highest version. Content that
    is not on this machine counts as well: it is freed in the store.
    """
    highest = max(known.found, default=0)
    for row in rows:
        found = known.found.get(row.version)
        # One that cannot be read by now, or that somebody else has deleted, is not what was judged (F121).
        if found is None or found.deleted:
            continue
        freed = _size(tree, row)
        if row.version == highest:
            freed -= len(known.tombstone(repo_id).to_bytes())
        yield FreedVersion(row, freed)


def _size(tree: Worktree, row: VersionRow) -> int:
    """Return the size of all files of a version; of those that are not here, what their row says."""
    place = VersionPath(row.type, row.model_id, row.name, row.version)
    elsewhere = {RAW: row.size, METADATA: len(metadata_of(row).to_bytes())}
    here = {name: tree.stat(f"{place.directory}/{name}") for name in tree.names(place.directory)}
    return sum((elsewhere | {name: found.size for name, found in here.items() if found is not None}).values())


class ExpiredVersion(Struct, frozen=True):
    """A version that may go and that is still there, and the bytes that this frees."""

    doomed: Doomed
    bytes: int


Ruling = ExpiredVersion | str
"""What becomes of a version; a text says why that cannot be told, and so why it stays."""


class RetentionEvaluator(Struct, frozen=True):
    """Judges by a time, by the runs that are gone, and by what lies in the tree. It can be pickled."""

    now: datetime
    gone: GoneRuns
    root: Path
    repo_id: str

    def judge(self, rows: Iterable[VersionRow]) -> Iterator[Ruling]:
        """Judge the versions of many items, deleted ones among them, which come in order of item and number."""
        tree = Worktree(self.root, NoJournal())
        for _, versions in groupby(rows, key=lambda row: row.item):
            yield from self._item(tree, list(versions))

    def _item(self, tree: Worktree, rows: Sequence[VersionRow]) -> Iterator[Ruling]:
        verdict = judge(rows, self.now, self.gone)
        if verdict.doomed:
            first = rows[0]
            known = Versions.in_tree(tree, VersionPath(first.type, first.model_id, first.name, 0), rows)
            doomed = {one.row.version: one for one in verdict.doomed}
            for one in weigh_item(tree, self.repo_id, known, [doomed[number].row for number in sorted(doomed)]):
                yield ExpiredVersion(doomed[one.row.version], one.bytes)
        yield from verdict.unclear
