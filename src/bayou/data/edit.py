"""Deleting versions and renaming items: the change sets for both.

A version number is never used twice: when the highest version of an item is deleted, its metadata stays as a tombstone.
A rename moves all versions with their numbers, and leaves a tombstone under the old name that names the new one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack

from msgspec.structs import replace

from bayou.core import paths
from bayou.core.errors import NameTaken, RecordDamaged
from bayou.data.allocate import write_metadata
from bayou.data.changes import ChangeSet, Placement, apply_changeset
from bayou.data.context import DataContext
from bayou.data.items import Versions, fetch_content, not_found
from bayou.data.layout import METADATA, ModelRef, VersionPath, content_names
from bayou.data.metadata import Metadata
from bayou.worktree.staged_directory import StagedDirectory


def delete(context: DataContext, numbers_by_item: Mapping[VersionPath, Collection[int] | None]) -> int:
    """Delete versions of items together, inside `exclusive_change`; return how many. None means all versions."""
    context.catalog.refresh()
    sets, count = [], 0
    for item, numbers in numbers_by_item.items():
        versions = Versions.of(context, item)
        going = [number for number in versions.live if numbers is None or number in numbers]
        if going:
            count += len(going)
            tombstone = versions.tombstone(context.repo.config.repo_id) if max(versions.found) in going else None
            sets.append(deletion(context, versions, going, tombstone))
    if sets:
        writes = tuple(write for changeset in sets for write in changeset.writes)
        deletes = tuple(path for changeset in sets for path in changeset.deletes)
        apply_changeset(context, ChangeSet(writes=writes, deletes=deletes))
    return count


def deletion(context: DataContext, versions: Versions, numbers: Iterable[int], tombstone: Metadata | None) -> ChangeSet:
    """Return the change set that deletes versions of an item, and leaves a tombstone in place of one of them."""
    deletes: list[str] = []
    for number in sorted(numbers):
        location = replace(versions.item, version=number)
        known = versions.found[number]
        files = {location.metadata, *_other_files(context, location)}
        if known is None or not known.deleted:  # content may be absent here (lazy), so it is named without a look
            names = content_names(None if known is None else known.files)
            files |= {f"{location.directory}/{name}" for name in names}
        if tombstone is not None and tombstone.version == number:
            files.discard(location.metadata)
        deletes.extend(sorted(files))
    writes = () if tombstone is None else ((tombstone.location.metadata, tombstone.to_bytes().decode()),)
    return ChangeSet(writes=writes, deletes=tuple(deletes))


def _other_files(context: DataContext, location: VersionPath) -> Iterator[str]:
    """Yield the other payload files in a version's directory: they go with the version, as sync transfers them."""
    for name in context.tree.names(location.directory):
        path = f"{location.directory}/{name}"
        if name != METADATA and paths.refusal(path) is None and context.tree.exists(path):
            yield path


def prepare(context: DataContext, model: ModelRef, old: str) -> None:
    """Fetch the content that a rename needs, before `exclusive_change`: nothing waits for the network inside it."""
    context.catalog.refresh()
    source = Versions.of(context, VersionPath(model.type, model.id, old, 0))
    for metadata in _moving(context, model, source):
        fetch_content(context, metadata, within=source.item.item)


def rename(context: DataContext, model: ModelRef, old: str, new: str) -> Metadata:
    """Rename an item, inside `exclusive_change`; return the newest version under its new name.

    The content of every version is hard-linked into a staged version first, so nothing moves before all is ready.
    """
    context.catalog.refresh()
    source = Versions.of(context, VersionPath(model.type, model.id, old, 0))
    target = Versions.of(context, VersionPath(model.type, model.id, new, 0))
    moving = _moving(context, model, source)
    _check_free(model, target, moving[-1].id)
    with ExitStack() as open_staged:
        staged_versions, placements = [], []
        for metadata in moving:
            fetch_content(context, metadata, within=source.item.item)
            staged = open_staged.enter_context(context.tree.stage_directory(target.item.item))
            for file in content_names(metadata.files):
                staged.link(file, f"{metadata.location.directory}/{file}")
            write_metadata(staged, replace(metadata, name=new))
            staged_versions.append(staged)
            stale = [metadata.version] if metadata.version in target.found else []
            clears = deletion(context, target, stale, None).deletes
            placements.append(Placement(staged.parent, staged.temporary, metadata.version, clears))
        StagedDirectory.keep(staged_versions)
    wanted = _move(context, source, target, new)
    return apply_changeset(context, replace(wanted, placements=tuple(placements)))[-1]


def _move(context: DataContext, source: Versions, target: Versions, new: str) -> ChangeSet:
    """Return the change set that deletes the versions of the old name once the new name has them."""
    forward = source.tombstone(context.repo.config.repo_id, renamed_to=new)
    removal = deletion(context, source, source.found, forward)
    writes = list(removal.writes)
    highest = source.found[forward.version]
    if highest is not None and highest.deleted:  # its number must not be used under the new name either
        tombstone = replace(highest, name=new, renamed_to=None)
        writes.append((tombstone.location.metadata, tombstone.to_bytes().decode()))
    # Tombstones from an earlier time when the item had the new name; the one that counts is written again.
    stale = [number for number in target.found if number < forward.version and number not in source.live]
    return ChangeSet(writes=tuple(writes), deletes=(*removal.deletes, *deletion(context, target, stale, None).deletes))


def _moving(context: DataContext, model: ModelRef, source: Versions) -> list[Metadata]:
    """Return the versions that a rename moves, in order."""
    for number, metadata in source.found.items():
        if metadata is None:
            raise RecordDamaged(
                f"version {number} of {source.item.name} of {model.name} cannot be read, so it cannot be renamed",
                hint=f"bayou datastore verify, or bayou data delete {model.name} {source.item.name} --version {number}",
            )
    moving = [metadata for number in source.live if (metadata := source.found[number]) is not None]
    if not moving:
        raise not_found(context, model, source.item.name, None, deleted=bool(source.found))
    return moving


def _check_free(model: ModelRef, target: Versions, item_id: str) -> None:
    """Raise `NameTaken` if another item has, or ever had, the new name."""
    if any(known is None or not known.deleted or known.id != item_id for known in target.found.values()):
        name = target.item.name
        live = f"there is a {name} of {model.name} already"
        gone = f"there was another {name} of {model.name}, and its numbers are not used twice"
        raise NameTaken(live if target.live else gone, hint="choose another name")
