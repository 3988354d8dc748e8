"""Renumbering: two machines created the same version number, and both versions survive.

The client that commits later copies its version to a free number. The copy appears in one rename and is journaled like
every local change; then the store's version is pulled under the old number. After a crash in between, the next sync
recognises the copy by its metadata.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import BinaryIO

from bayou.core import limits
from bayou.index.key_range import KeyRange
from bayou.index.tree import IndexTree, scan
from bayou.sync.context import SyncContext
from bayou.sync.plan.local_scanner import ScanResult
from bayou.sync.plan.policy import version_dir
from bayou.sync.plan.steps import PathAction
from bayou.sync.transfer.pull import IncomingFile
from bayou.worktree.hashing import read_content
from bayou.worktree.tree import Worktree

_METADATA = "metadata.yaml"
_CHUNK = 1 << 20


def renumberable(
    context: SyncContext, observation: ScanResult, steps: Iterable[PathAction], versions: Iterable[str]
) -> frozenset[str]:
    """Return the version directories that this machine created and may renumber.

    Not a version of which base has any file, that a program is still writing, or that has unjournaled files: such a
    version may not be this machine's own.
    """
    wanted, rule = set(versions), context.options.renumber
    if rule is None or not wanted:
        return frozenset()
    journaled, tree = observation.journaled, Worktree(context.root, context.journal)
    found: set[str] = set()
    for version, members in _by_version(steps, wanted).items():
        present = [step for step in members if step.observed.state.present]
        if (
            all(step.base is None and step.absent is None and not step.observed.state.absent for step in members)
            and all(journaled.written(step.path) or journaled.marked(step.path) for step in present)
            and {step.path.rpartition("/")[0] for step in present} == {version}
            and any(step.path == f"{version}/{_METADATA}" for step in present)
            and not journaled.is_open(version, [step.path for step in members])
            and (metadata := _read(tree, f"{version}/{_METADATA}")) is not None
            and rule(metadata, _item_and_number(version)[1] + 1) is not None
        ):
            found.add(version)
    return frozenset(found)


class Renumbering:
    """The version directories that one pass renumbers."""

    def __init__(self, context: SyncContext, steps: Sequence[PathAction], remote: IndexTree) -> None:
        self._context = context
        self._remote = remote
        self._versions = _by_version(steps)
        self._tree = Worktree(context.root, context.journal)
        self._known: dict[str, set[int]] = {}
        self._copies: dict[str, str] = {}

    @property
    def versions(self) -> Container[str]:
        """The versions whose old numbers the store's versions get: each is to be replaced whole, or not at all."""
        return self._copies.keys()

    def copy(self) -> tuple[list[IncomingFile], set[str]]:
        """Copy each version to a free number; return the files to pull under the old numbers, and the paths that
        changed meanwhile and must be planned again."""
        incoming: list[IncomingFile] = []
        moved: set[str] = set()
        for version, members in sorted(self._versions.items(), key=lambda step: _item_and_number(step[0])):
            copy = self._earlier_copy(version, members) or self._make_copy(version, members)
            if copy is None:
                moved.update(step.path for step in members)
                continue
            self._copies[version] = copy
            incoming += [IncomingFile(step.path, step.remote, step.observed) for step in members]
        return incoming, moved

    def finish(self, moved: set[str]) -> None:
        """Report each version whose old number the store's version has now; delete the copies of the others.

        Such a copy was not pushed yet, and the whole local version is still under its old number (`versions`).
        """
        report = self._context.report
        for version, copy in self._copies.items():
            members = self._versions[version]
            if any(step.path in moved for step in members):
                self._tree.delete_many(
                    [_path_in_copy(step.path, copy) for step in members if step.observed.state.present]
                )
            else:
                report.pushed.renumbered += 1
                report.warn(f"{version} was made by two machines: the one of this machine is {copy} now")

    def _earlier_copy(self, version: str, members: Sequence[PathAction]) -> str | None:
        """Return the copy that an earlier sync made before it was killed, if there is one."""
        item, number = _item_and_number(version)
        # A number that base or the store has is another version, and so is a version that is yet to be renumbered.
        others = {at for whose, at in map(_item_and_number, self._versions) if whose == item} | self._known_numbers(
            item
        )
        for other in sorted(self._local_numbers(item) - others):
            if other > number and self._is_copy(version, members, f"{item}/{other}", other):
                return f"{item}/{other}"
        return None

    def _is_copy(self, version: str, members: Sequence[PathAction], copy: str, number: int) -> bool:
        metadata = self._metadata(version, number)
        if metadata is None or _read(self._tree, f"{copy}/{_METADATA}") != metadata:
            return False
        with suppress(FileNotFoundError):
            return all(
                read_content(self._tree.local_path(_path_in_copy(step.path, copy)), self._context.deadline).sha256
                == step.observed.state.sha256
                for step in members
                if step.observed.state.present and step.path != f"{version}/{_METADATA}"
            )
        return False

    def _make_copy(self, version: str, members: Sequence[PathAction]) -> str | None:
        """Copy a version to the first number that is free locally and remotely; None if it changed meanwhile."""
        item, own_number = _item_and_number(version)
        taken = self._known_numbers(item) | self._local_numbers(item)
        # V25: a client that used the highest possible number does not prevent others from getting one.
        number = max(taken) if max(taken) < limits.VERSION_MAX else own_number
        files = [step for step in members if step.observed.state.present]
        names = [step.path.rpartition("/")[2] for step in files]
        with self._tree.stage_directory(item) as assembly:
            for step, name in zip(files, names, strict=True):
                if name != _METADATA and not self._copy_file(step, assembly.writing(name)):
                    return None
            while True:
                number += 1
                if number in taken:
                    continue
                metadata = self._metadata(version, number)
                if metadata is None:
                    return None
                assembly.write(_METADATA, metadata)
                assembly.sync()
                if assembly.install(f"{item}/{number}", names):
                    return f"{item}/{number}"

    def _copy_file(self, step: PathAction, target: AbstractContextManager[BinaryIO]) -> bool:
        """Copy a file; return False if it is no longer the file that was scanned."""
        digest = hashlib.sha256()
        try:
            with self._tree.open(step.path) as source, target as file:
                while chunk := source.read(_CHUNK):
                    self._context.deadline.remaining()
                    digest.update(chunk)
                    file.write(chunk)
        except FileNotFoundError:
            return False
        return step.observed.content is not None and digest.digest() == step.observed.content.sha256

    def _metadata(self, version: str, number: int) -> bytes | None:
        rule, metadata = self._context.options.renumber, _read(self._tree, f"{version}/{_METADATA}")
        return rule(metadata, number) if rule is not None and metadata is not None else None

    def _known_numbers(self, item: str) -> set[int]:
        """Return the version numbers that base or the store has for an item."""
        if item not in self._known:
            entries = (scan(tree, KeyRange.under(f"{item}/")) for tree in (self._remote, self._context.base.tree()))
            versions = {
                version for rows in entries for entry in rows if (version := version_dir(entry.path)) is not None
            }
            numbers = {number for whose, number in map(_item_and_number, versions) if whose == item}
            self._known[item] = {number for number in numbers if number <= limits.VERSION_MAX}
        return self._known[item]

    def _local_numbers(self, item: str) -> set[int]:
        """Return the numbers that are taken in this tree, also by versions that are still being written."""
        found = {int(name) for name in self._tree.names(item) if name.isascii() and name.isdigit()}
        return {number for number in found if number <= limits.VERSION_MAX}  # V25: a higher number is no version


def _by_version(steps: Iterable[PathAction], wanted: set[str] | None = None) -> Mapping[str, list[PathAction]]:
    members: dict[str, list[PathAction]] = defaultdict(list)
    for step in steps:
        version = version_dir(step.path)
        if version is not None and (wanted is None or version in wanted):
            members[version].append(step)
    return members


def _item_and_number(version: str) -> tuple[str, int]:
    """Return the item that a version directory belongs to, and its number."""
    item, _, number = version.rpartition("/")
    return item, int(number)


def _path_in_copy(path: str, copy: str) -> str:
    return f"{copy}/{path.rpartition('/')[2]}"


def _read(tree: Worktree, path: str) -> bytes | None:
    try:
        with tree.open(path) as file:
            return file.read()
    except FileNotFoundError:
        return None
