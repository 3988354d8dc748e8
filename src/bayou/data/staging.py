"""Versions in the making: written beside their places, invisible until they are published or finalized.

Appending to streaming data.

The content is as long as its metadata says. New bytes lie beyond that, invisible, until the metadata is replaced; what
a killed append left there is cut off by the next one.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Unpack

from msgspec import Struct
from msgspec.structs import replace

from bayou.core.errors import BayouError, ContentChanged, ContentDamaged, NotStreaming, UsageError
from bayou.data.allocate import allocate_version, describe, item_id, next_number, within
from bayou.data.changes import ChangeSet, Placement, change, exclusive_change
from bayou.data.content import Content, Measured, chunks, pass_on
from bayou.data.context import DataContext
from bayou.data.items import fetch, find_item
from bayou.data.layout import RAW, ModelRef
from bayou.data.metadata import Metadata, Options, Terms
from bayou.worktree.staged_directory import StagedDirectory


def save(context: DataContext, terms: Terms, content: Content) -> Metadata:
    """Save one version: visible, whole and durable when this returns; nothing of it stays if it raises."""
    with context.tree.stage_directory(terms.item.item) as assembly:
        with assembly.writing(RAW) as file:
            measured = pass_on(content, file)
        return publish_one(context, terms, assembly, measured)


def publish_one(context: DataContext, terms: Terms, assembly: StagedDirectory, measured: Measured) -> Metadata:
    """Give an assembled version its number, and tell the catalog."""
    wanted = terms.metadata(next_number(context, terms.item), item_id(context, terms.item), measured)
    describe(assembly, wanted)
    metadata = allocate_version(context, assembly, wanted)
    context.told([metadata])
    return metadata


class Allocation:
    """Room for content that a program writes by itself. `finalize` makes it a version; else nothing stays of it.

    Use it as a context manager: leaving the block without `finalize` abandons it.
    """

    def __init__(self, context: DataContext, terms: Terms) -> None:
        self._context = context
        self._terms = terms
        self._assembly = context.tree.stage_directory(terms.item.item).__enter__()

    @property
    def path(self) -> Path:
        """Where to write the content: a file that is not there yet."""
        return self._assembly.path / RAW

    def finalize(self) -> Metadata:
        """Make what was written a version; it must not change any more."""
        measured = _measure(self._assembly)
        return publish_one(self._context, self._terms, self._assembly, measured)

    def abandon(self) -> None:
        """Give it up; what was written goes."""
        self._assembly.discard()

    def __enter__(self) -> Allocation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._assembly.__exit__(kind, error, trace)


def _measure(assembly: StagedDirectory) -> Measured:
    """Look at content that a program has written by itself, and make it durable."""
    try:
        # Not blocking, or a FIFO would wait for its writer.
        descriptor = os.open(assembly.path / RAW, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        raise _nothing_written() from None
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _nothing_written()
        measured = pass_on(file)
    assembly.sync(RAW)
    return measured


def _nothing_written() -> UsageError:
    return UsageError("no file was written to the allocated path", hint="write the content to its `path` first")


class _Staged(Struct, frozen=True):
    terms: Terms
    assembly: StagedDirectory
    measured: Measured


class Stage:
    """Versions that become visible together or not at all. Leaving the block without `publish` drops them."""

    def __init__(self, context: DataContext, terms_of: Callable[..., Terms]) -> None:
        self._context = context
        self._terms_of = terms_of
        self._open = ExitStack()
        self._staged: list[_Staged] = []

    def save(self, model: ModelRef, name: str, content: Content, **options: Unpack[Options]) -> None:
        """Add a version; takes what `DataRepository.save` takes."""
        terms = self._terms_of(model, name, options)
        assembly = self._open.enter_context(self._context.tree.stage_directory(terms.item.item))
        with assembly.writing(RAW) as file:
            measured = pass_on(content, file)
        self._staged.append(_Staged(terms, assembly, measured))

    @contextmanager
    def room(self, model: ModelRef, name: str, **options: Unpack[Options]) -> Iterator[Path]:
        """Give the place of a file that a program writes by itself; a version waits here when the block has ended."""
        terms = self._terms_of(model, name, options)
        assembly = self._open.enter_context(self._context.tree.stage_directory(terms.item.item))
        yield assembly.path / RAW
        self._staged.append(_Staged(terms, assembly, _measure(assembly)))

    def publish(self) -> list[Metadata]:
        """Make all of them visible; return their metadata in the order in which they were saved."""
        staged, self._staged = self._staged, []
        if not staged:
            return []
        with self._open, exclusive_change(self._context):
            described = self._describe(staged)
            placements = tuple(
                Placement(one.assembly.parent, one.assembly.temporary, metadata.version)
                for one, metadata in zip(staged, described, strict=True)
            )
            StagedDirectory.keep([one.assembly for one in staged])
            return change(self._context, ChangeSet(placements=placements))

    def _describe(self, staged: list[_Staged]) -> list[Metadata]:
        """Give each version its metadata; several of one item get numbers in a row."""
        begun: dict[str, Metadata] = {}
        described = []
        for one in staged:
            item = one.terms.item
            last = begun.get(item.item)
            number = within(last.version + 1, item) if last is not None else next_number(self._context, item)
            identity = last.id if last is not None else item_id(self._context, item)
            begun[item.item] = one.terms.metadata(number, identity, one.measured)
            describe(one.assembly, begun[item.item])
            described.append(begun[item.item])
        return described

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()


def prepare(context: DataContext, model: ModelRef, name: str, version: int | None) -> Metadata:
    """Return the version to append to, and fetch its content if it is not here: nobody waits for that in a turn."""
    metadata = find_item(context, model, name, version).metadata
    if not metadata.streaming:
        raise NotStreaming(
            f"{metadata.name} of {model.name} is not streaming data: its versions never change",
            hint=f"save a new version with `bayou data put {model.name} {metadata.name}`",
        )
    fetch(context, metadata.place.raw)
    return metadata


def append(context: DataContext, model: ModelRef, name: str, content: Content, version: int | None) -> Metadata:
    """Add to a version, or (None) the newest, in one's turn: all of `content`, or, if this raises, nothing."""
    metadata = prepare(context, model, name, version)
    raw = metadata.place.raw
    size = metadata.size
    try:
        for chunk in chunks(content):
            context.tree.append(raw, chunk, at=size)
            size += len(chunk)
        # A hash of all of it would mean to read all of it, each time.
        longer = replace(metadata, size=size, sha256=None)
        context.tree.write(metadata.place.metadata, longer.to_bytes())
    except ContentChanged as error:
        raise ContentDamaged(f"cannot append to {raw}: {error.message}", hint=error.hint) from None
    except BaseException:
        with suppress(BayouError):
            context.tree.append(raw, b"", at=metadata.size)
        raise
    context.told([longer])
    return longer
