"""Versions in the making: written beside their places, invisible until they are published or finalized."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Unpack

from msgspec import Struct

from bayou.core.errors import UsageError
from bayou.records.changes import change, turn
from bayou.records.changeset import ChangeSet, Placement
from bayou.records.claim import claim, describe, item_id, next_number, within
from bayou.records.content import Content, Measured, pass_on
from bayou.records.context import Context
from bayou.records.layout import RAW
from bayou.records.metadata import Metadata
from bayou.records.owner import ModelRef
from bayou.records.terms import Options, Terms
from bayou.worktree.staged_directory import StagedDirectory


def save(context: Context, terms: Terms, content: Content) -> Metadata:
    """Save one version: visible, whole and durable when this returns; nothing of it stays if it raises."""
    with context.tree.assemble(terms.item.item) as assembly:
        with assembly.writing(RAW) as file:
            measured = pass_on(content, file)
        return publish_one(context, terms, assembly, measured)


def publish_one(context: Context, terms: Terms, assembly: StagedDirectory, measured: Measured) -> Metadata:
    """Give an assembled version its number, and tell the catalog."""
    wanted = terms.metadata(next_number(context, terms.item), item_id(context, terms.item), measured)
    describe(assembly, wanted)
    metadata = claim(context, assembly, wanted)
    context.told([metadata])
    return metadata


class Allocation:
    """Room for content that a program writes by itself. `finalize` makes it a version; else nothing stays of it.

    Use it as a context manager: leaving the block without `finalize` abandons it.
    """

    def __init__(self, context: Context, terms: Terms) -> None:
        self._context = context
        self._terms = terms
        self._assembly = context.tree.assemble(terms.item.item).__enter__()

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

    def __init__(self, context: Context, terms_of: Callable[..., Terms]) -> None:
        self._context = context
        self._terms_of = terms_of
        self._open = ExitStack()
        self._staged: list[_Staged] = []

    def save(self, model: ModelRef, name: str, content: Content, **options: Unpack[Options]) -> None:
        """Add a version; takes what `DataRepository.save` takes."""
        terms = self._terms_of(model, name, options)
        assembly = self._open.enter_context(self._context.tree.assemble(terms.item.item))
        with assembly.writing(RAW) as file:
            measured = pass_on(content, file)
        self._staged.append(_Staged(terms, assembly, measured))

    @contextmanager
    def room(self, model: ModelRef, name: str, **options: Unpack[Options]) -> Iterator[Path]:
        """Give the place of a file that a program writes by itself; a version waits here when the block has ended."""
        terms = self._terms_of(model, name, options)
        assembly = self._open.enter_context(self._context.tree.assemble(terms.item.item))
        yield assembly.path / RAW
        self._staged.append(_Staged(terms, assembly, _measure(assembly)))

    def publish(self) -> list[Metadata]:
        """Make all of them visible; return their metadata in the order in which they were saved."""
        staged, self._staged = self._staged, []
        if not staged:
            return []
        with self._open, turn(self._context):
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
