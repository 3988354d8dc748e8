"""Writing versions: one, one that a program writes by itself, several that appear together, or an append.

A new version is written to a directory beside its item, invisible until it is published. An append to streaming data
writes beyond the size that the metadata has, where no reader looks, and then replaces the metadata; the next append
truncates what a killed append left.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from shlex import quote
from types import TracebackType
from typing import Unpack

from msgspec import Struct
from msgspec.structs import replace

from bayou.core.errors import BayouError, ContentChanged, ContentDamaged, DataNotFound, NotStreaming, UsageError
from bayou.data.allocate import allocate_version, check_number, item_id, next_number, write_metadata
from bayou.data.changes import ChangeSet, Placement, apply_changeset, exclusive_change
from bayou.data.content import Content, ContentInfo, chunks, copy_measured
from bayou.data.context import DataContext
from bayou.data.items import fetch, find_item
from bayou.data.layout import RAW, ModelRef
from bayou.data.metadata import Metadata, NewVersion, Options
from bayou.data.spool import SpooledInput
from bayou.worktree.staged_directory import StagedDirectory


def save(context: DataContext, version: NewVersion, content: Content) -> Metadata:
    """Save one version: visible, whole and durable when this returns; if it raises, nothing stays."""
    with context.tree.stage_directory(version.item.item) as directory:
        with directory.writing(RAW) as file:
            measured = copy_measured(content, file)
        return publish_version(context, version, directory, measured)


class SaveResult(Struct, frozen=True):
    """A version that was saved, or (`unchanged`) the latest one, which equals what was to be saved.

    `empty` is the number of empty directories that a version of many files leaves out.
    """

    metadata: Metadata
    unchanged: bool = False
    empty: int = 0


def equal_latest(
    context: DataContext, version: NewVersion, measured: ContentInfo, *, alone: bool = False
) -> Metadata | None:
    """Return the latest version of an item if a new one would equal it, else None.

    `alone`: the store was not asked, so another machine may have made a later version of what the store has; a new
    version comes after that one, as its user means it to. A version that is not pushed yet will be the last itself.
    """
    item = version.item
    try:
        found = find_item(context, ModelRef(item.type, item.model_id, version.owner.model), item.name, None)
    except DataNotFound:
        return None
    same = not found.forwarded and version.equals(found.metadata, measured)
    if not same or (alone and context.sync.known(f"{found.metadata.location.directory}/")):
        return None
    return found.metadata


def publish_version(
    context: DataContext, version: NewVersion, directory: StagedDirectory, measured: ContentInfo
) -> Metadata:
    """Give a staged version its number, and update the catalog."""
    wanted = version.metadata(next_number(context, version.item), item_id(context, version.item), measured)
    write_metadata(directory, wanted)
    metadata = allocate_version(context, directory, wanted)
    context.update_versions([metadata])
    return metadata


def save_input(context: DataContext, version: NewVersion, spooled: SpooledInput) -> Metadata:
    """Save one version of a spooled input, whose content is not copied again, and remove the input (V22).

    Both are one change set, so that the input is used once, whenever a process is killed.
    """
    staged = context.tree.stage_directory(version.item.item)
    with staged as directory, exclusive_change(context, finishing=False):
        for name, file in spooled.files.items():
            directory.adopt(name, file)
        number, identity = next_number(context, version.item), item_id(context, version.item)
        write_metadata(directory, version.metadata(number, identity, spooled.measured))
        placement = Placement(directory.parent, directory.temporary, number)
        StagedDirectory.keep([directory])
        (published,) = apply_changeset(context, ChangeSet(placements=(placement,), inputs=(spooled.id,)))
        return published


class Allocation:
    """A path for content that a program writes by itself. `finalize` makes it a version.

    Use it as a context manager: leaving the block without `finalize` deletes what was written.
    """

    def __init__(self, context: DataContext, version: NewVersion) -> None:
        self._context = context
        self._version = version
        self._directory = context.tree.stage_directory(version.item.item).__enter__()

    @property
    def path(self) -> Path:
        """Where to write the content: a file that does not exist yet."""
        return self._directory.path / RAW

    def finalize(self) -> Metadata:
        """Make the written file a version. The program must not change the file any more."""
        measured = _measure(self._directory)
        return publish_version(self._context, self._version, self._directory, measured)

    def abandon(self) -> None:
        """Delete what was written."""
        self._directory.discard()

    def __enter__(self) -> Allocation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._directory.__exit__(kind, error, trace)


class _Staged(Struct, frozen=True):
    version: NewVersion
    directory: StagedDirectory
    measured: ContentInfo


class StagedVersions:
    """Versions that become visible together or not at all. Leaving the block without `publish` deletes them."""

    def __init__(self, context: DataContext, new_version: Callable[..., NewVersion]) -> None:
        self._context = context
        self._new_version = new_version
        self._open = ExitStack()
        self._staged: list[_Staged] = []

    def save(self, model: ModelRef, name: str, content: Content, **options: Unpack[Options]) -> None:
        """Add a version; takes what `DataRepository.save` takes."""
        version = self._new_version(model, name, options)
        directory = self._open.enter_context(self._context.tree.stage_directory(version.item.item))
        with directory.writing(RAW) as file:
            measured = copy_measured(content, file)
        self._staged.append(_Staged(version, directory, measured))

    @contextmanager
    def allocate(self, model: ModelRef, name: str, **options: Unpack[Options]) -> Iterator[Path]:
        """Yield the path of a file that a program writes by itself; the block's end adds the version to the stage."""
        version = self._new_version(model, name, options)
        directory = self._open.enter_context(self._context.tree.stage_directory(version.item.item))
        yield directory.path / RAW
        self._staged.append(_Staged(version, directory, _measure(directory)))

    def publish(self) -> list[Metadata]:
        """Make all versions visible; return their metadata in the order in which they were saved."""
        staged, self._staged = self._staged, []
        if not staged:
            return []
        with self._open, exclusive_change(self._context):
            described = self._describe(staged)
            placements = tuple(
                Placement(entry.directory.parent, entry.directory.temporary, metadata.version)
                for entry, metadata in zip(staged, described, strict=True)
            )
            StagedDirectory.keep([entry.directory for entry in staged])
            return apply_changeset(self._context, ChangeSet(placements=placements))

    def _describe(self, staged: list[_Staged]) -> list[Metadata]:
        """Write the metadata of each version; several versions of an item get consecutive numbers."""
        newest: dict[str, Metadata] = {}
        described = []
        for entry in staged:
            item = entry.version.item
            last = newest.get(item.item)
            number = check_number(last.version + 1, item) if last is not None else next_number(self._context, item)
            identity = last.id if last is not None else item_id(self._context, item)
            newest[item.item] = entry.version.metadata(number, identity, entry.measured)
            write_metadata(entry.directory, newest[item.item])
            described.append(newest[item.item])
        return described

    def __enter__(self) -> StagedVersions:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()


def prepare(context: DataContext, model: ModelRef, name: str, version: int | None) -> Metadata:
    """Return the version to append to, and fetch its content: nothing waits for the network in `exclusive_change`."""
    try:
        metadata = find_item(context, model, name, version).metadata
    except DataNotFound as error:
        if version is not None:
            raise
        begin = f"begin it with `bayou data put {quote(model.name)} {quote(name)} --streaming`"
        raise DataNotFound(error.message, hint=f"{error.hint}; {begin}" if error.hint else begin) from None
    if not metadata.streaming:
        raise NotStreaming(
            f"{metadata.name} of {model.name} is not streaming data: its versions never change",
            hint=f"save a new version with `bayou data put {quote(model.name)} {quote(metadata.name)}`",
        )
    fetch(context, metadata.location.raw)
    return metadata


def append(
    context: DataContext,
    model: ModelRef,
    name: str,
    content: Content,
    version: int | None,
    spooled: SpooledInput | None = None,
) -> Metadata:
    """Append to a version, or (None) the newest, inside `exclusive_change`; if this raises, nothing is appended.

    If the content is that of a `spooled` input, the change set that appends it also removes it (V22).
    """
    metadata = prepare(context, model, name, version)
    raw = metadata.location.raw
    size = metadata.size
    try:
        for chunk in chunks(content):
            context.tree.append(raw, chunk, at=size)
            size += len(chunk)
        # Each append would have to read the whole content to know its hash.
        longer = replace(metadata, size=size, sha256=None)
        if spooled is None:
            context.tree.write(metadata.location.metadata, longer.to_bytes())
    except ContentChanged as error:
        raise ContentDamaged(f"cannot append to {raw}: {error.message}", hint=error.hint) from None
    except BaseException:
        with suppress(BayouError):
            context.tree.append(raw, b"", at=metadata.size)
        raise
    if spooled is None:
        context.update_versions([longer])
    else:
        text = longer.to_bytes().decode()
        apply_changeset(context, ChangeSet(writes=((metadata.location.metadata, text),), inputs=(spooled.id,)))
    return longer


def _measure(directory: StagedDirectory) -> ContentInfo:
    """Measure content that a program has written by itself, and make it durable."""
    try:
        # Without O_NONBLOCK, opening a FIFO would wait for its writer.
        descriptor = os.open(directory.path / RAW, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        raise _nothing_written() from None
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _nothing_written()
        measured = copy_measured(file)
    directory.sync(RAW)
    return measured


def _nothing_written() -> UsageError:
    return UsageError("no file was written to the allocated path", hint="write the content to its `path` first")
