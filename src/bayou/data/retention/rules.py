"""Retention rules: which versions may go, how many bytes that frees, and how they are deleted.

A version has the `lifetime` that it was written with, and expires when that is over. Of the versions that stay, the
newest one's `keep` says how many versions of the item are kept, or for how long; the newest itself is never surplus.
`judge` is a pure function of rows, a time, and the workflow runs that are known to be deleted. A missing record of a
run is no evidence: it may be in the store (F119). `RetentionEvaluator` judges item by item and adds the bytes that each
version frees, in this process and in Spark's workers alike.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from bayou.core.errors import RetentionInvalid
from bayou.core.ids import ulid
from bayou.data.catalog.rows import VersionRow
from bayou.data.catalog.schema import values, version_of
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

_ROOT = "workflow-runs"
_SUFFIX = ".yaml"
_BATCH = 500
"""Versions of one change set: made durable together; after a kill, at most these are deleted again."""

Line = tuple[str | None, str | None, int | None, str | None]
"""A ruling as plain values for Spark: `row, why, bytes, unclear`."""

Why = Literal["expired", "surplus"]
RunIsGone = Callable[[VersionRow], bool]


class Doomed(Struct, frozen=True):
    """A version that may go, and the reason: its lifetime is over, or there are enough newer versions."""

    row: VersionRow
    why: Why


class Verdict(Struct, frozen=True):
    """The versions that may go, and a sentence about each version that stays because its retention is unclear (V5)."""

    doomed: tuple[Doomed, ...]
    unclear: tuple[str, ...]


class ExpiredVersion(Struct, frozen=True):
    """A version that may go and still exists, and the bytes that deleting it frees."""

    doomed: Doomed
    bytes: int


class FreedVersion(Struct, frozen=True):
    """A version that still exists, and the bytes that deleting it frees."""

    row: VersionRow
    bytes: int


Ruling = ExpiredVersion | str
"""A version that goes, or a sentence about a version that stays because its retention is unclear."""


def judge(rows: Iterable[VersionRow], now: datetime, run_is_gone: RunIsGone) -> Verdict:
    """Return which versions may go. A version with an unreadable time, lifetime or keep stays, and is named (F121)."""
    doomed: list[Doomed] = []
    unclear: list[str] = []
    live = sorted((row for row in rows if not row.deleted), key=lambda row: (row.item, row.version))
    for _, versions in groupby(live, key=lambda row: row.item):
        doomed += _judge_item(list(versions), now, run_is_gone, unclear)
    return Verdict(tuple(doomed), tuple(unclear))


class GoneRuns(Struct, frozen=True):
    """Runs whose record is known to be deleted. It can be pickled.

    A datastore that is a directory (`directory`) may be on a volume that is not mounted now; a version whose file
    exists proves that it is mounted.
    """

    ids: frozenset[str] = frozenset()
    directory: Path | None = None

    def __call__(self, row: VersionRow) -> bool:
        """Say whether the record of a version's run is known to be deleted; false if that is unclear (V5)."""
        if row.run not in self.ids:
            return False
        return self.directory is None or Worktree(self.directory, NoJournal()).exists(row.metadata_path)


class Runs:
    """The workflow runs that have a record, in the tree or in the store."""

    def __init__(self, repo: Repo, tree: Worktree) -> None:
        self._repo = repo
        self._tree = tree

    def gone(self, named: Collection[str]) -> GoneRuns:
        """Return which of some runs are known to be deleted: none, if this machine cannot know."""
        known = self._existing() if named else None
        if known is None:
            return GoneRuns()
        directory = None if self._repo.config.datastore.url is not None else self._tree.root
        return GoneRuns(frozenset(named) - known, directory)

    def _existing(self) -> set[str] | None:
        """Return the ids of all runs; None if this machine does not know all that the store has."""
        in_tree = {
            path.rpartition("/")[2]
            for workflow in self._tree.names(_ROOT)
            for path in self._tree.names(f"{_ROOT}/{workflow}")
        }
        in_store = self._in_store() if self._repo.config.datastore.url is not None else set()
        return None if in_store is None else {name.removesuffix(_SUFFIX) for name in in_tree | in_store}

    def _in_store(self) -> set[str] | None:
        config = self._repo.config.datastore
        assert config.url is not None
        with Database(self._repo.state / "sync.db") as database:
            nodes = BaseNodes(NodeFiles(self._repo.state / "nodes"), ulid())
            base = SyncBase(database, remote_url(config.url, config.namespace), config.namespace, nodes)
            # V3: base has an ETag only while it has every entry of a head; a pull of one model leaves no ETag.
            if base.place.etag is None or base.dirty():
                return None
            try:
                return {entry.path.rpartition("/")[2] for entry in scan(base.tree(), KeyRange.under(f"{_ROOT}/"))}
            except BaseLost:
                return None


def bytes_freed(records: Records, rows: Iterable[VersionRow]) -> list[FreedVersion]:
    """Return those of the versions that still exist, with the bytes that deleting all of them frees."""
    context = records.context
    found: list[FreedVersion] = []
    for (kind, model_id, name), versions in groupby(sorted(rows, key=order), key=lambda row: row.item):
        known = Versions.of(context, VersionPath(kind, model_id, name, 0))
        found += item_bytes_freed(context.tree, context.repo.config.repo_id, known, versions)
    return found


def remove(records: Records, rows: Sequence[VersionRow]) -> list[FreedVersion]:
    """Delete those of the versions that still exist; return what went. Each goes as a whole, or not at all."""
    gone: list[FreedVersion] = []
    doomed = sorted(rows, key=order)
    for start in range(0, len(doomed), _BATCH):
        batch = bytes_freed(records, doomed[start : start + _BATCH])
        records.data.delete_many(version.row for version in batch)
        gone += batch
    return gone


def order(row: VersionRow) -> tuple[tuple[str, str, str], int]:
    """Return the sort key of versions: item by item, and in each by number."""
    return row.item, row.version


def item_bytes_freed(
    tree: Worktree, repo_id: str, known: Versions, rows: Iterable[VersionRow]
) -> Iterator[FreedVersion]:
    """Yield those versions of an item that still exist, with the bytes that deleting them frees.

    The bytes of every file count, metadata too, less the tombstone that stays of an item's highest version. Content
    that is not on this machine counts as well: it is freed in the store.
    """
    highest = max(known.found, default=0)
    for row in rows:
        found = known.found.get(row.version)
        # A version that became unreadable or was deleted since is not the version that was judged (F121).
        if found is None or found.deleted:
            continue
        freed = _bytes_of(tree, row)
        if row.version == highest:
            freed -= len(known.tombstone(repo_id).to_bytes())
        yield FreedVersion(row, freed)


def _bytes_of(tree: Worktree, row: VersionRow) -> int:
    """Return the size of all files of a version; the row has the size of files that are not on this machine."""
    recorded = {RAW: row.size, METADATA: len(metadata_of(row).to_bytes())}
    in_tree = {name: tree.stat(f"{row.directory}/{name}") for name in tree.names(row.directory)}
    return sum((recorded | {name: found.size for name, found in in_tree.items() if found is not None}).values())


class RetentionEvaluator(Struct, frozen=True):
    """Judges versions by a time, the deleted runs, and the files in the tree. It can be pickled."""

    now: datetime
    gone: GoneRuns
    root: Path
    repo_id: str

    def judge(self, rows: Iterable[VersionRow]) -> Iterator[Ruling]:
        """Judge all versions of items, tombstones included: item by item, in order of name and number."""
        tree = Worktree(self.root, NoJournal())
        for _, versions in groupby(sorted(rows, key=order), key=lambda row: row.item):
            yield from self._item(tree, list(versions))

    def __call__(self, found: Sequence[Sequence[Any]]) -> Iterator[Line]:
        """Judge the versions of one item; arguments and results are plain values that Spark can move."""
        return map(line_of, self.judge(map(version_of, found)))

    def _item(self, tree: Worktree, rows: Sequence[VersionRow]) -> Iterator[Ruling]:
        verdict = judge(rows, self.now, self.gone)
        if verdict.doomed:
            known = Versions.in_tree(tree, VersionPath(*rows[0].item, 0), rows)
            doomed = {version.row.version: version for version in verdict.doomed}
            going = [doomed[number].row for number in sorted(doomed)]
            for freed in item_bytes_freed(tree, self.repo_id, known, going):
                yield ExpiredVersion(doomed[freed.row.version], freed.bytes)
        yield from verdict.unclear


def line_of(ruling: Ruling) -> Line:
    """Return a ruling as plain values."""
    if isinstance(ruling, str):
        return None, None, None, ruling
    row = ruling.doomed.row
    return json.dumps((*values(row)[1], row.latest)), ruling.doomed.why, ruling.bytes, None


def ruling_of(line: Line) -> Ruling:
    """Return the ruling of `line_of`'s values."""
    row, why, size, unclear = line
    if unclear is not None:
        return unclear
    return ExpiredVersion(
        Doomed(version_of(json.loads(row or "")), "expired" if why == "expired" else "surplus"), size or 0
    )


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
