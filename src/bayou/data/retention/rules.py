"""The rules of retention: which versions of an item may be deleted, what that frees, and how they are deleted.

A version *expires* when the `lifetime` that it was written with is over. Of the versions that stay, the newest has the
`keep` that counts: it says how many of the item's versions are kept, or for how long. Older ones beyond that are
*surplus*; the newest is never surplus. A version whose rules cannot be read stays, and a warning names it (V5, F121).

`evaluate` is a pure function of catalog rows, a time and the set of workflow runs that are gone. A lifetime of `run`
ends with the record of the version's workflow run. That the record is not on this machine is no evidence: it may be in
the store, so `Runs` answers only when this machine knows everything that the store has (F119).

`RetentionEvaluator` adds the bytes that each deletion frees; workers call it. `remove` deletes versions in batches.
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
from bayou.data.layout import MANIFEST, METADATA, RAW, VersionPath
from bayou.data.metadata import parse_keep, parse_lifetime
from bayou.index.key_range import KeyRange
from bayou.index.node_store import NodeFiles
from bayou.index.tree import scan
from bayou.state.base import BaseLost, BaseNodes, SyncBase
from bayou.state.connection import Connection
from bayou.state.database import remote_url
from bayou.state.journal import NoJournal
from bayou.worktree.tree import Worktree

if TYPE_CHECKING:
    from bayou.data.records import Records

Why = Literal["expired", "surplus"]
RunIsGone = Callable[[VersionRow], bool]


class ExpiredRow(Struct, frozen=True):
    """A version that may be deleted, and the reason: its lifetime is over, or there are enough newer versions."""

    row: VersionRow
    why: Why


class Evaluation(Struct, frozen=True):
    """The versions that may be deleted, and sentences about those that cannot be evaluated and so stay (V5)."""

    versions: tuple[ExpiredRow, ...]
    unclear: tuple[str, ...]


def evaluate(rows: Iterable[VersionRow], now: datetime, run_is_gone: RunIsGone) -> Evaluation:
    """Evaluate versions. One whose time, lifetime or keep cannot be read stays, and `unclear` names it (F121)."""
    expired: list[ExpiredRow] = []
    unclear: list[str] = []
    live = sorted((row for row in rows if not row.deleted), key=lambda row: (row.item, row.version))
    for _, versions in groupby(live, key=lambda row: row.item):
        expired += _evaluate_item(list(versions), now, run_is_gone, unclear)
    return Evaluation(tuple(expired), tuple(unclear))


def _evaluate_item(
    versions: list[VersionRow], now: datetime, run_is_gone: RunIsGone, unclear: list[str]
) -> Iterator[ExpiredRow]:
    staying = []
    for row in versions:
        try:
            over = _is_over(row, now, run_is_gone)
        except (RetentionInvalid, ValueError):
            unclear.append(f"{row.metadata_path}: its lifetime ({row.lifetime} from {row.created_at}) cannot be read")
            over = False
        if over:
            yield ExpiredRow(row, "expired")
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
    yield from (ExpiredRow(row, "surplus") for row in surplus)


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
    """The workflow runs that are known to have no record any more. It can be pickled.

    `directory` is set where the datastore is a directory. That may be on a volume that is not mounted just now, where
    every record seems to be gone; a version whose metadata is visible proves that it is mounted.
    """

    ids: frozenset[str] = frozenset()
    directory: Path | None = None

    def __call__(self, row: VersionRow) -> bool:
        """Return whether the run of a version is known to be gone; False where that is unknown (V5)."""
        if row.run not in self.ids:
            return False
        return self.directory is None or Worktree(self.directory, NoJournal()).exists(row.metadata_path)


class Runs:
    """The workflow runs that have a record, on this machine or in the store."""

    def __init__(self, connection: Connection, tree: Worktree) -> None:
        self._connection = connection
        self._repo = connection.repo
        self._tree = tree

    def gone(self, named: Collection[str]) -> GoneRuns:
        """Return which of the `named` runs are known to be gone: none, if this machine does not know all runs."""
        known = self._read_ids() if named else None
        if known is None:
            return GoneRuns()
        directory = None if self._repo.config.datastore.url is not None else self._tree.root
        return GoneRuns(frozenset(named) - known, directory)

    def _read_ids(self) -> set[str] | None:
        """Return the ids of all runs; None if this machine does not know all that the store has."""
        here = {
            path.rpartition("/")[2]
            for workflow in self._tree.names(_ROOT)
            for path in self._tree.names(f"{_ROOT}/{workflow}")
        }
        there = self._in_store() if self._repo.config.datastore.url is not None else set()
        return None if there is None else {name.removesuffix(_SUFFIX) for name in here | there}

    def _in_store(self) -> set[str] | None:
        datastore = self._repo.config.datastore
        assert datastore.url is not None
        nodes = BaseNodes(NodeFiles(self._repo.state / "nodes"), ulid())
        url = remote_url(datastore.url, datastore.namespace)
        base = SyncBase(self._connection.database, url, datastore.namespace, nodes)
        # V3: base has an ETag only while it equals the tree of a head of the store; a pull of one model clears it.
        if base.remote.etag is None or base.dirty():
            return None
        try:
            return {entry.path.rpartition("/")[2] for entry in scan(base.tree(), KeyRange.under(f"{_ROOT}/"))}
        except BaseLost:
            return None


VERSIONS_PER_CHANGE = 500
"""Versions of one change set: they become durable together, and after a kill at most these are deleted again."""


class FreedVersion(Struct, frozen=True):
    """A version that can be deleted, and the bytes that this frees."""

    row: VersionRow
    bytes: int


def bytes_freed(records: Records, rows: Iterable[VersionRow]) -> list[FreedVersion]:
    """Return the versions that still exist, each with the bytes that deleting it frees if all of them are deleted."""
    context = records.context
    found: list[FreedVersion] = []
    for _, versions in groupby(sorted(rows, key=order), key=lambda row: row.item):
        of_item = list(versions)
        known = Versions.of(context, VersionPath(of_item[0].type, of_item[0].model_id, of_item[0].name, 0))
        found += item_bytes_freed(context.tree, context.repo.config.repo_id, known, of_item)
    return found


def remove(records: Records, rows: Sequence[VersionRow]) -> list[FreedVersion]:
    """Delete the versions that still exist, each whole or not at all; return those that were deleted."""
    deleted: list[FreedVersion] = []
    ordered = sorted(rows, key=order)
    for start in range(0, len(ordered), VERSIONS_PER_CHANGE):
        batch = bytes_freed(records, ordered[start : start + VERSIONS_PER_CHANGE])
        records.data.delete_many(version.row for version in batch)
        deleted += batch
    return deleted


def order(row: VersionRow) -> tuple[tuple[str, str, str], int]:
    """Return the sort key of versions: the item, then the version number."""
    return row.item, row.version


def item_bytes_freed(
    tree: Worktree, repo_id: str, known: Versions, rows: Iterable[VersionRow]
) -> Iterator[FreedVersion]:
    """Yield the versions of an item that still exist, each with the bytes that deleting it frees.

    All files count, metadata too, less the tombstone that replaces an item's highest version. Content that is not on
    this machine counts as well: it is freed in the store.
    """
    highest = max(known.found, default=0)
    for row in rows:
        found = known.found.get(row.version)
        # A version that has become unreadable, or that another process has deleted, is not what was evaluated (F121).
        if found is None or found.deleted:
            continue
        freed = _size(tree, row)
        if row.version == highest:
            freed -= len(known.tombstone(repo_id).to_bytes())
        yield FreedVersion(row, freed)


def _size(tree: Worktree, row: VersionRow) -> int:
    """Return the size of all files of a version; for files that are not on this machine, the size in the row."""
    version = VersionPath(row.type, row.model_id, row.name, row.version)
    elsewhere = {METADATA: len(metadata_of(row).to_bytes())}
    found = {name: tree.stat(f"{version.directory}/{name}") for name in tree.names(version.directory)}
    here = {name: known.size for name, known in found.items() if known is not None}
    if row.files is None:
        elsewhere[RAW] = row.size
        absent = 0
    else:  # the row has the size of all parts together
        absent = max(0, row.size - sum(size for name, size in here.items() if name not in (METADATA, MANIFEST)))
    return sum((elsewhere | here).values()) + absent


class ExpiredVersion(Struct, frozen=True):
    """A version that may be deleted and that still exists, and the bytes that this frees."""

    expired: ExpiredRow
    bytes: int


RetentionOutcome = ExpiredVersion | str
"""The result for a version: it may be deleted, or a sentence why it cannot be evaluated and so stays."""


class RetentionEvaluator(Struct, frozen=True):
    """Evaluates versions at a time `now`, given the runs that are `gone` and the tree. It can be pickled."""

    now: datetime
    gone: GoneRuns
    root: Path
    repo_id: str

    def evaluate(self, rows: Iterable[VersionRow]) -> Iterator[RetentionOutcome]:
        """Yield the outcome for each version of many items. `rows` are in `order`, and include deleted versions."""
        tree = Worktree(self.root, NoJournal())
        for _, versions in groupby(rows, key=lambda row: row.item):
            yield from self._item(tree, list(versions))

    def _item(self, tree: Worktree, rows: Sequence[VersionRow]) -> Iterator[RetentionOutcome]:
        evaluation = evaluate(rows, self.now, self.gone)
        if evaluation.versions:
            first = rows[0]
            known = Versions.in_tree(tree, VersionPath(first.type, first.model_id, first.name, 0), rows)
            expired = {version.row.version: version for version in evaluation.versions}
            for freed in item_bytes_freed(
                tree, self.repo_id, known, [expired[number].row for number in sorted(expired)]
            ):
                yield ExpiredVersion(expired[freed.row.version], freed.bytes)
        yield from evaluation.unclear
