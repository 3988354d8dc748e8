"""Version numbers: how a new version gets one.

A writer stages a version in a directory beside its item, and gives it its number by one rename, onto nothing or an
empty directory. A writer that loses the race for a number, to this machine or to another that shares the directory,
takes the next. So nothing is ever replaced, no half version is ever visible, and a writer that dies uses up no number.
"""

from __future__ import annotations

import uuid

from msgspec.structs import replace

from bayou.core import limits
from bayou.core.errors import RecordDamaged, RecordError
from bayou.data.context import DataContext
from bayou.data.layout import METADATA, VersionPath, content_names
from bayou.data.metadata import Metadata
from bayou.worktree.staged_directory import StagedDirectory


def next_number(context: DataContext, item: VersionPath) -> int:
    """Return a number that the item has never had, as far as this machine knows."""
    return check_number(context.highest(item) + 1, item)


def check_number(number: int, item: VersionPath) -> int:
    """Return the number, or raise `RecordError` if it is too high for a version (V25)."""
    if number > limits.VERSION_MAX:
        raise RecordError(
            f"{item.name} has version {limits.VERSION_MAX}, and no number is higher",
            hint="save under another name; `bayou data versions` shows who made that version",
        )
    return number


def item_id(context: DataContext, item: VersionPath) -> str:
    """Return the id of an item's next version: that of its newest version that is not deleted, or a new id.

    An item that was deleted or renamed has ended; what is saved under its old name is a new item.
    """
    for number in context.numbers(item.item):
        try:
            metadata = context.metadata(replace(item, version=number))
        except RecordDamaged:
            continue
        if metadata is not None and not metadata.deleted:
            return metadata.id
    known = (row.id for row in context.rows(item) if row.latest)
    return next(known, None) or str(uuid.uuid4())


def write_metadata(assembly: StagedDirectory, metadata: Metadata) -> None:
    """Write a staged version's metadata beside its content; both are durable when this returns."""
    assembly.write(METADATA, metadata.to_bytes())
    assembly.sync()


def allocate_version(context: DataContext, assembly: StagedDirectory, metadata: Metadata) -> Metadata:
    """Publish a staged version that has metadata; return the metadata with the number that it got.

    If another writer has taken its number, the version gets the next number, and the id of the item that took it.
    """
    names = (*content_names(metadata.files), METADATA)
    while not assembly.install(metadata.location.directory, names):
        item = metadata.location
        number = check_number(max(metadata.version + 1, next_number(context, item)), item)
        metadata = replace(metadata, version=number, id=item_id(context, item))
        write_metadata(assembly, metadata)
    return metadata
