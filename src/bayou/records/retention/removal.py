"""Deleting versions of many items: weighed before, then deleted in batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from msgspec import Struct

from bayou.records.catalog.rows import VersionRow
from bayou.records.item import metadata_of
from bayou.records.layout import METADATA, RAW, VersionPath
from bayou.records.versions import Versions
from bayou.worktree.tree import Worktree

if TYPE_CHECKING:
    from bayou.records.records import Records

_BATCH = 500
"""Versions of one change set: made durable together, and no more than these go twice if a kill comes between."""


class Weighed(Struct, frozen=True):
    """A version that can be deleted, and the bytes that this frees."""

    row: VersionRow
    bytes: int


def weigh(records: Records, rows: Iterable[VersionRow]) -> list[Weighed]:
    """Return those of the versions that are still there, with what deleting all of them would free."""
    context = records.context
    found: list[Weighed] = []
    for _, versions in groupby(sorted(rows, key=order), key=lambda row: row.item):
        some = list(versions)
        known = Versions.of(context, VersionPath(some[0].type, some[0].model_id, some[0].name, 0))
        found += weigh_item(context.tree, context.repo.config.repo_id, known, some)
    return found


def remove(records: Records, rows: Sequence[VersionRow]) -> list[Weighed]:
    """Delete these versions as far as they are still there; return what went. Each goes whole, or not at all."""
    gone: list[Weighed] = []
    doomed = sorted(rows, key=order)
    for start in range(0, len(doomed), _BATCH):
        batch = weigh(records, doomed[start : start + _BATCH])
        records.data.delete_many(one.row for one in batch)
        gone += batch
    return gone


def order(row: VersionRow) -> tuple[tuple[str, str, str], int]:
    """Return what versions are sorted by: item by item, and in each by number."""
    return row.item, row.version


def weigh_item(tree: Worktree, repo_id: str, known: Versions, rows: Iterable[VersionRow]) -> Iterator[Weighed]:
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
            freed -= len(known.mark(repo_id).to_bytes())
        yield Weighed(row, freed)


def _size(tree: Worktree, row: VersionRow) -> int:
    """Return the size of all files of a version; of those that are not here, what their row says."""
    place = VersionPath(row.type, row.model_id, row.name, row.version)
    elsewhere = {RAW: row.size, METADATA: len(metadata_of(row).to_bytes())}
    here = {name: tree.stat(f"{place.directory}/{name}") for name in tree.names(place.directory)}
    return sum((elsewhere | {name: found.size for name, found in here.items() if found is not None}).values())
