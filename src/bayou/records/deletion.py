"""Deleting versions. A number is never used twice: the highest stays, as a mark that says it is deleted."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from msgspec.structs import replace

from bayou.core import paths
from bayou.records.changes import change
from bayou.records.changeset import ChangeSet
from bayou.records.context import Context
from bayou.records.layout import METADATA, RAW, VersionPath
from bayou.records.metadata import Metadata
from bayou.records.versions import Versions


def delete(context: Context, doomed: Mapping[VersionPath, Collection[int] | None]) -> int:
    """Delete versions of items together, in one's turn; return how many there were. None stands for all of an item."""
    context.catalog.refresh()
    sets, count = [], 0
    for item, numbers in doomed.items():
        versions = Versions.of(context, item)
        going = [number for number in versions.live if numbers is None or number in numbers]
        if going:
            count += len(going)
            mark = versions.mark(context.repo.config.repo_id) if max(versions.found) in going else None
            sets.append(deleting(context, versions, going, mark))
    if sets:
        writes = tuple(write for one in sets for write in one.writes)
        deletes = tuple(path for one in sets for path in one.deletes)
        change(context, ChangeSet(writes=writes, deletes=deletes))
    return count


def deleting(context: Context, versions: Versions, doomed: Iterable[int], mark: Metadata | None) -> ChangeSet:
    """Return the change set that deletes some versions of an item, and leaves a mark of one of them."""
    deletes: list[str] = []
    for number in sorted(doomed):
        place = replace(versions.item, version=number)
        files = {place.raw, place.metadata, *_others(context, place)}
        if mark is not None and mark.version == number:
            files.discard(place.metadata)
        deletes.extend(sorted(files))
    writes = () if mark is None else ((mark.place.metadata, mark.to_bytes().decode()),)
    return ChangeSet(writes=writes, deletes=tuple(deletes))


def _others(context: Context, place: VersionPath) -> Iterator[str]:
    """Yield what else lies in a version's directory and is payload: it goes with it, as a unit does."""
    for name in context.tree.names(place.directory):
        path = f"{place.directory}/{name}"
        if name not in (RAW, METADATA) and paths.refusal(path) is None and context.tree.exists(path):
            yield path
