"""Renaming an item: all its versions move, with their numbers, and the old name forwards."""

from __future__ import annotations

from contextlib import ExitStack

from msgspec.structs import replace

from bayou.core.errors import NameTaken, RecordDamaged
from bayou.records.changes import change
from bayou.records.changeset import ChangeSet, Placement
from bayou.records.claim import describe
from bayou.records.context import Context
from bayou.records.deletion import deleting
from bayou.records.item import not_found
from bayou.records.layout import RAW, VersionPath
from bayou.records.metadata import Metadata
from bayou.records.owner import ModelRef
from bayou.records.reading import fetch
from bayou.records.versions import Versions
from bayou.worktree.staged_directory import StagedDirectory


def prepare(context: Context, model: ModelRef, old: str) -> None:
    """Fetch what is not here of an item that is to be renamed: nobody waits for that in a turn."""
    context.catalog.refresh()
    source = Versions.of(context, VersionPath(model.type, model.id, old, 0))
    for metadata in _moving(model, source):
        fetch(context, metadata.place.raw, within=source.item.item)


def rename(context: Context, model: ModelRef, old: str, new: str) -> Metadata:
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
            assembly = blocks.enter_context(context.tree.assemble(target.item.item))
            assembly.link(RAW, metadata.place.raw)
            describe(assembly, replace(metadata, name=new))
            assemblies.append(assembly)
            mark = [metadata.version] if metadata.version in target.found else []
            clears = deleting(context, target, mark, None).deletes
            placements.append(Placement(assembly.parent, assembly.temporary, metadata.version, clears))
        StagedDirectory.keep(assemblies)
    wanted = _move(context, source, target, new)
    return change(context, replace(wanted, placements=tuple(placements)))[-1]


def _move(context: Context, source: Versions, target: Versions, new: str) -> ChangeSet:
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
