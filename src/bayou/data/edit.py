"""Deleting versions. A number is never used twice: the highest stays, as a mark that says it is deleted.

Renaming an item: all its versions move, with their numbers, and the old name forwards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack

from msgspec.structs import replace

from bayou.core import paths
from bayou.core.errors import NameTaken, RecordDamaged
from bayou.data.allocate import describe
from bayou.data.changes import ChangeSet, Placement, change
from bayou.data.context import DataContext
from bayou.data.items import Versions, fetch, not_found
from bayou.data.layout import METADATA, RAW, ModelRef, VersionPath
from bayou.data.metadata import Metadata
from bayou.worktree.staged_directory import StagedDirectory


def delete(context: DataContext, doomed: Mapping[VersionPath, Collection[int] | None]) -> int:
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


def deleting(context: DataContext, versions: Versions, doomed: Iterable[int], mark: Metadata | None) -> ChangeSet:
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


def _others(context: DataContext, place: VersionPath) -> Iterator[str]:
    """Yield what else lies in a version's directory and is payload: it goes with it, as a unit does."""
    for name in context.tree.names(place.directory):
        path = f"{place.directory}/{name}"
        if name not in (RAW, METADATA) and paths.refusal(path) is None and context.tree.exists(path):
            yield path


def prepare(context: DataContext, model: ModelRef, old: str) -> None:
    """Fetch what is not here of an item that is to be renamed: nobody waits for that in a turn."""
    context.catalog.refresh()
    source = Versions.of(context, VersionPath(model.type, model.id, old, 0))
    for metadata in _moving(model, source):
        fetch(context, metadata.place.raw, within=source.item.item)


def rename(context: DataContext, model: ModelRef, old: str, new: str) -> Metadata:
    """Rename an item, in one's turn; return the newest version under its new name.

    Its content gets a second name first, so that nothing is moved before everything is ready.
    """
    context.catalog.refresh()
    source = Versions.of(context, VersionPath(model.type, model.id, old, 0))
    target = Versions.of(context, VersionPath(model.type, model.id, new, 0))
    moving = _moving(model, source)
    _check_free(model, target, moving[-1].id)
    with ExitStack() as blocks:
        assemblies, placements = [], []
        for metadata in moving:
            fetch(context, metadata.place.raw, within=source.item.item)
            assembly = blocks.enter_context(context.tree.stage_directory(target.item.item))
            assembly.link(RAW, metadata.place.raw)
            describe(assembly, replace(metadata, name=new))
            assemblies.append(assembly)
            mark = [metadata.version] if metadata.version in target.found else []
            clears = deleting(context, target, mark, None).deletes
            placements.append(Placement(assembly.parent, assembly.temporary, metadata.version, clears))
        StagedDirectory.keep(assemblies)
    wanted = _move(context, source, target, new)
    return change(context, replace(wanted, placements=tuple(placements)))[-1]


def _move(context: DataContext, source: Versions, target: Versions, new: str) -> ChangeSet:
    """Return the change set that takes the old name's versions away once they are in place under the new one."""
    forward = source.mark(context.repo.config.repo_id, renamed_to=new)
    removal = deleting(context, source, source.found, forward)
    writes = list(removal.writes)
    highest = source.found[forward.version]
    if highest is not None and highest.deleted:  # its number is used as little under the new name
        mark = replace(highest, name=new, renamed_to=None)
        writes.append((mark.place.metadata, mark.to_bytes().decode()))
    # Marks that the item left when it had the new name before; the one that counts is written anew.
    stale = [number for number in target.found if number < forward.version and number not in source.live]
    return ChangeSet(writes=tuple(writes), deletes=(*removal.deletes, *deleting(context, target, stale, None).deletes))


def _moving(model: ModelRef, source: Versions) -> list[Metadata]:
    """Return what is to be moved, in order."""
    for number, metadata in source.found.items():
        if metadata is None:
            raise RecordDamaged(
                f"version {number} of {source.item.name} of {model.name} cannot be read, so nobody can rename it",
                hint=f"bayou datastore verify, or bayou data delete {model.name} {source.item.name} --version {number}",
            )
    moving = [one for number in source.live if (one := source.found[number]) is not None]
    if not moving:
        raise not_found(model, source.item.name, None, deleted=bool(source.found))
    return moving


def _check_free(model: ModelRef, target: Versions, item_id: str) -> None:
    """Raise `NameTaken` unless nothing ever had the new name, or this very item had it before."""
    if any(one is None or not one.deleted or one.id != item_id for one in target.found.values()):
        name = target.item.name
        live = f"there is a {name} of {model.name} already"
        gone = f"there was another {name} of {model.name}, and its numbers are not used twice"
        raise NameTaken(live if target.live else gone, hint="choose another name")
