"""Two machines made the same version: the later committer gives its own another number, and both survive.

The copy under the new number appears in one step, journaled like every change of ours; then the store's side takes
the old number, as a pull does. A crash in between leaves a copy that the next sync knows again by its metadata.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import BinaryIO

from bayou.core import limits
from bayou.index.key_range import KeyRange
from bayou.index.tree import IndexTree as Index
from bayou.index.tree import scan
from bayou.sync.context import SyncContext
from bayou.sync.plan.local_scanner import Observation
from bayou.sync.plan.policy import version_dir
from bayou.sync.plan.steps import PathAction
from bayou.sync.transfer.pull import IncomingFile
from bayou.worktree.hashing import read_content
from bayou.worktree.tree import Worktree

_METADATA = "metadata.yaml"
_CHUNK = 1 << 20


def renumberable(
    context: SyncContext, observation: Observation, steps: Iterable[PathAction], units: Iterable[str]
) -> frozenset[str]:
    """Return those of the contested version directories that this machine made anew and may number otherwise.

    Not one that base knows any file of, that is still being written to, or that nobody journaled: whether such a file
    is a version of ours, nobody can tell.
    """
    wanted, rule = set(units), context.options.renumber
    if rule is None or not wanted:
        return frozenset()
    told, tree = observation.journaled, Worktree(context.root, context.journal)
    found: set[str] = set()
    for unit, members in _by_unit(steps, wanted).items():
        present = [one for one in members if one.observed.state.present]
        if (
            all(one.base is None and one.absent is None and not one.observed.state.absent for one in members)
            and all(told.written(one.path) or told.marked(one.path) for one in present)
            and {one.path.rpartition("/")[0] for one in present} == {unit}
            and any(one.path == f"{unit}/{_METADATA}" for one in present)
            and not told.is_open(unit, [one.path for one in members])
            and (metadata := _read(tree, f"{unit}/{_METADATA}")) is not None
            and rule(metadata, _parts(unit)[1] + 1) is not None
        ):
            found.add(unit)
    return frozenset(found)


class Renumbering:
    """The version directories that one pass numbers anew."""

    def __init__(self, context: SyncContext, steps: Sequence[PathAction], remote: Index) -> None:
        self._context = context
        self._remote = remote
        self._units = _by_unit(steps)
        self._tree = Worktree(context.root, context.journal)
        self._known: dict[str, set[int]] = {}
        self._copies: dict[str, str] = {}

    def copy(self) -> tuple[list[IncomingFile], set[str]]:
        """Give each version a copy under a number that nobody has; return what is to take the old numbers, and the
        paths that moved meanwhile and must be decided again."""
        incoming: list[IncomingFile] = []
        moved: set[str] = set()
        for unit, members in sorted(self._units.items(), key=lambda one: _parts(one[0])):
            copy = self._made_before(unit, members) or self._make(unit, members)
            if copy is None:
                moved.update(one.path for one in members)
                continue
            self._copies[unit] = copy
            incoming += [IncomingFile(one.path, one.remote, one.observed) for one in members]
        return incoming, moved

    def settle(self, moved: set[str]) -> None:
        """Tell of those whose old number the store's side has now; where it has not, take the copy back: nobody has
        seen it yet, and ours is as it was."""
        report = self._context.report
        for unit, copy in self._copies.items():
            members = self._units[unit]
            if any(one.path in moved for one in members):
                self._tree.delete_many([_moved(one.path, copy) for one in members if one.observed.state.present])
            else:
                report.pushed.renumbered += 1
                report.warn(f"{unit} was made by two machines: the one of this machine is {copy} now")

    def _made_before(self, unit: str, members: Sequence[PathAction]) -> str | None:
        """Return the copy that an earlier sync made and did not live to tell of."""
        item, number = _parts(unit)
        # What base or the store has is a version of its own, and so is what is still to be renumbered.
        others = {at for whose, at in map(_parts, self._units) if whose == item} | self._numbers(item)
        for other in sorted(self._here(item) - others):
            if other > number and self._is_copy(unit, members, f"{item}/{other}", other):
                return f"{item}/{other}"
        return None

    def _is_copy(self, unit: str, members: Sequence[PathAction], copy: str, number: int) -> bool:
        metadata = self._metadata(unit, number)
        if metadata is None or _read(self._tree, f"{copy}/{_METADATA}") != metadata:
            return False
        with suppress(FileNotFoundError):
            return all(
                read_content(self._tree.local_path(_moved(one.path, copy)), self._context.deadline).sha256
                == one.observed.state.sha256
                for one in members
                if one.observed.state.present and one.path != f"{unit}/{_METADATA}"
            )
        return False

    def _make(self, unit: str, members: Sequence[PathAction]) -> str | None:
        """Copy a version to the first number that is free here and there; None if it changed meanwhile."""
        item, own = _parts(unit)
        taken = self._numbers(item) | self._here(item)
        # V25: a peer that took the highest number that there is does not keep others from theirs.
        number = max(taken) if max(taken) < limits.VERSION_MAX else own
        files = [one for one in members if one.observed.state.present]
        names = [one.path.rpartition("/")[2] for one in files]
        with self._tree.stage_directory(item) as assembly:
            for one, name in zip(files, names, strict=True):
                if name != _METADATA and not self._copy_file(one, assembly.writing(name)):
                    return None
            while True:
                number += 1
                if number in taken:
                    continue
                metadata = self._metadata(unit, number)
                if metadata is None:
                    return None
                assembly.write(_METADATA, metadata)
                assembly.sync()
                if assembly.install(f"{item}/{number}", names):
                    return f"{item}/{number}"

    def _copy_file(self, one: PathAction, target: AbstractContextManager[BinaryIO]) -> bool:
        """Copy a file; say no if it is not any more what was looked at."""
        digest = hashlib.sha256()
        try:
            with self._tree.open(one.path) as source, target as file:
                while chunk := source.read(_CHUNK):
                    self._context.deadline.remaining()
                    digest.update(chunk)
                    file.write(chunk)
        except FileNotFoundError:
            return False
        return one.observed.content is not None and digest.digest() == one.observed.content.sha256

    def _metadata(self, unit: str, number: int) -> bytes | None:
        rule, metadata = self._context.options.renumber, _read(self._tree, f"{unit}/{_METADATA}")
        return rule(metadata, number) if rule is not None and metadata is not None else None

    def _numbers(self, item: str) -> set[int]:
        """Return the numbers that base or the store knows of an item; deleted ones too, whose metadata is left."""
        if item not in self._known:
            entries = (scan(tree, KeyRange.under(f"{item}/")) for tree in (self._remote, self._context.base.tree()))
            units = {unit for rows in entries for entry in rows if (unit := version_dir(entry.path)) is not None}
            numbers = {number for whose, number in map(_parts, units) if whose == item}
            self._known[item] = {number for number in numbers if number <= limits.VERSION_MAX}
        return self._known[item]

    def _here(self, item: str) -> set[int]:
        """Return the numbers that are taken in this tree, by versions or by those that are being made."""
        found = {int(name) for name in self._tree.names(item) if name.isascii() and name.isdigit()}
        return {number for number in found if number <= limits.VERSION_MAX}  # V25: beyond that it is no version


def _by_unit(steps: Iterable[PathAction], wanted: set[str] | None = None) -> Mapping[str, list[PathAction]]:
    members: dict[str, list[PathAction]] = defaultdict(list)
    for one in steps:
        unit = version_dir(one.path)
        if unit is not None and (wanted is None or unit in wanted):
            members[unit].append(one)
    return members


def _parts(unit: str) -> tuple[str, int]:
    """Return the item that a version directory belongs to, and its number."""
    item, _, number = unit.rpartition("/")
    return item, int(number)


def _moved(path: str, copy: str) -> str:
    return f"{copy}/{path.rpartition('/')[2]}"


def _read(tree: Worktree, path: str) -> bytes | None:
    try:
        with tree.open(path) as file:
            return file.read()
    except FileNotFoundError:
        return None
