"""Which number a version gets.

A version is assembled beside its place and gets its number by one rename, onto nothing or an empty directory. Whoever
loses the race for a number, on this machine or on another that shares the directory, takes the next; so nothing is
ever replaced, no half version is ever visible, and a writer that dies leaves no number behind.

The rule by which a version gets another number (docs/design.md, section 11); light, since every sync loads it.
"""

from __future__ import annotations

import re
import uuid

from msgspec.structs import replace

from bayou.core import limits
from bayou.core.errors import RecordDamaged, RecordError
from bayou.data.context import DataContext
from bayou.data.layout import METADATA, RAW, VersionPath
from bayou.data.metadata import Metadata
from bayou.worktree.staged_directory import StagedDirectory


def next_number(context: DataContext, item: VersionPath) -> int:
    """Return a number that an item has never had, as far as anybody here knows."""
    return within(context.highest(item) + 1, item)


def within(number: int, item: VersionPath) -> int:
    """Return the number, or raise `RecordError` if no version can have it (V25)."""
    if number > limits.VERSION_MAX:
        raise RecordError(
            f"{item.name} has version {limits.VERSION_MAX}, and no number is higher",
            hint="save under another name; `bayou data versions` shows who made that version",
        )
    return number


def item_id(context: DataContext, item: VersionPath) -> str:
    """Return the id that the next version of an item has: that of its newest one that is not deleted, or a new one.

    An item that was deleted, or that now lives under another name, has ended; what is saved under its name is new.
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


def describe(assembly: StagedDirectory, metadata: Metadata) -> None:
    """Write a version's metadata beside its content; both are durable when this returns."""
    assembly.write(METADATA, metadata.to_bytes())
    assembly.sync()


def allocate_version(context: DataContext, assembly: StagedDirectory, wanted: Metadata) -> Metadata:
    """Put a version that is described into its place; return its metadata as it got there.

    Where its number is taken by now it gets the next one, and belongs to the item that took it.
    """
    metadata = wanted
    while not assembly.install(metadata.place.directory, (RAW, METADATA)):
        item = metadata.place
        number = within(max(metadata.version + 1, next_number(context, item)), item)
        metadata = replace(metadata, version=number, id=item_id(context, item))
        describe(assembly, metadata)
    return metadata


_VERSION = re.compile(rb"^version: *[1-9][0-9]* *\r?$", re.MULTILINE)


def renumber(metadata: bytes, version: int) -> bytes | None:
    """Return the metadata of a version under another number; None if it does not say its number in one line.

    None too for a number that no version has (V25).
    """
    if version > limits.VERSION_MAX:
        return None
    renumbered, found = _VERSION.subn(b"version: %d" % version, metadata)
    return renumbered if found == 1 else None
