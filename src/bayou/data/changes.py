"""Change sets: changes of several files that take effect as a whole or not at all.

A process writes a change set to `.bayou/state/changes/`, durably, before its first step, and removes it after its last.
Each step may be repeated, so another process can finish the change set of one that died: a kill at any moment leaves
the old state or the new one (V19). One process of a repo at a time changes existing versions (`exclusive_change`); new
versions need no lock (`allocate`). Finding pending change sets is one listing of a directory, so every sync does it.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import asdict

from bayou.config.ownership import OWNER, is_foreign, owner_ids
from bayou.core.atomic_file import fsync_directory, write_file
from bayou.core.errors import BayouError, StateError
from bayou.core.file_lock import FileLock
from bayou.core.ids import ulid
from bayou.data.allocate import allocate_version
from bayou.data.context import DataContext
from bayou.data.layout import METADATA, version_path
from bayou.data.metadata import Metadata
from bayou.data.sync_hooks import changes_directory, pending_changesets
from bayou.repo import Repo
from bayou.worktree.durability import state_errors

T = TypeVar("T")

LOCK_TIMEOUT_S = 60.0
_READ_TIMEOUT_S = 5.0
_MIN_ATTEMPTS = 5
_FAILED = "cannot note a change"


class Placement(Struct, frozen=True):
    """A staged version with metadata that waits to be published, and the files that are deleted to make room for it."""

    parent: str
    temporary: str
    version: int
    clears: tuple[str, ...] = ()


class ChangeSet(Struct, frozen=True):
    """First the staged versions that are published, then the metadata that is written, then the files that go."""

    placements: tuple[Placement, ...] = ()
    writes: tuple[tuple[str, str], ...] = ()
    deletes: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    """The spooled inputs that this change uses up; they go last (V22)."""


@contextlib.contextmanager
def exclusive_change(context: DataContext, *, finishing: bool = True) -> Iterator[None]:
    """Hold the lock of those who change existing versions; pending change sets of dead processes are finished first.

    Without `finishing` they stay: one that cannot be finished does not keep a new version from being made.
    """
    lock = _lock(context.repo)
    with state_errors(_FAILED):
        context.repo.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        held = lock.acquire(LOCK_TIMEOUT_S)
    if not held:
        raise StateError(
            "another process of this repo has been changing data for a minute", hint="wait for it, and try again"
        )
    try:
        if finishing:
            _finish_all(context)
        yield
    finally:
        lock.release()


def apply_changeset(context: DataContext, changeset: ChangeSet) -> list[Metadata]:
    """Apply a change set, inside `exclusive_change`; return the metadata of the versions that were published.

    If this fails before the first step, nothing stays of the change set; after that, the next process finishes it.
    """
    file = changes_directory(context.repo) / f"{ulid()}.json"
    steps = _Steps(context, changeset)
    try:
        _write_file(file, _datastore(context.repo), changeset)
        return steps.run()
    except BaseException:
        if not steps.begun:
            # Raise the first error. If the file cannot be removed, the next process applies the change set. If a power
            # cut brings the file back, `possible` is false by then: the staged versions are discarded.
            with contextlib.suppress(BayouError, OSError):
                file.unlink(missing_ok=True)
                steps.discard()
        raise
    finally:
        if steps.done:
            _remove_file(file)


def consistent_read(context: DataContext, read: Callable[[], T]) -> T:
    """Return what `read` returns while no change set of this repo is half applied.

    A reader waits for a change that is under way, and takes the lock if changes follow each other faster than it reads.
    Only a single change that takes longer than a reader waits is seen in part.
    """
    repo = context.repo
    until = time.monotonic() + _READ_TIMEOUT_S
    attempts = 0
    while attempts < _MIN_ATTEMPTS or time.monotonic() < until:
        attempts += 1
        if pending_changesets(repo):
            with _finished(context, _READ_TIMEOUT_S) as held:
                if not held:
                    return read()
        before = _directory_mtime(repo)
        answer = read()
        # Two change sets within one tick of the file system's clock leave the same mtime.
        if _directory_mtime(repo) == before and not pending_changesets(repo):
            return answer
    with _finished(context, _READ_TIMEOUT_S):
        return read()


def finish_pending(context: DataContext) -> None:
    """Finish the change sets of dead processes when records are opened, unless another process does that now."""
    if pending_changesets(context.repo):
        with _finished(context, 0.0):
            pass


@contextlib.contextmanager
def _finished(context: DataContext, timeout: float) -> Iterator[bool]:
    """Hold the lock, with pending change sets finished, if it is free in time; yield whether it was."""
    lock = _lock(context.repo)
    held = lock.acquire(timeout)
    try:
        if held:
            # A failure, as on a full disk, does not keep a reader from reading; the next change raises it.
            with contextlib.suppress(BayouError):
                _finish_all(context)
        yield held
    finally:
        if held:
            lock.release()


def _finish_all(context: DataContext) -> None:
    for file in pending_changesets(context.repo):
        datastore, changeset = _read_file(file)
        if datastore != _datastore(context.repo):
            continue  # of a datastore that this repo had before: it waits until the repo has it again
        steps = _Steps(context, changeset)
        if steps.possible():
            steps.run()
        _remove_file(file)


class _Steps:
    """The steps of one change set. `begun` once one of them had an effect, `done` after the last."""

    def __init__(self, context: DataContext, changeset: ChangeSet) -> None:
        self._context = context
        self._changeset = changeset
        self.begun = False
        self.done = False

    def discard(self) -> None:
        """Remove the staged versions."""
        for placement in self._changeset.placements:
            staged = self._context.tree.resume_directory(placement.parent, placement.temporary)
            if staged is not None:
                staged.discard()

    def possible(self) -> bool:
        """Return whether every version is staged or published: if one is lost, no other step must be done either."""
        tree = self._context.tree
        return all(
            tree.resume_directory(placement.parent, placement.temporary) is not None
            or tree.names(f"{placement.parent}/{placement.version}")
            for placement in self._changeset.placements
        )

    def run(self) -> list[Metadata]:
        published = [*self._publish()]
        written = self._write()
        self._delete()
        locations = [version_path(path) for path in self._changeset.deletes if path.endswith(f"/{METADATA}")]
        deleted = [location for location in locations if location is not None]
        self._context.update_versions([*published, *written], deleted)
        self._use_up_inputs()
        self.done = True
        return published

    def _publish(self) -> Iterator[Metadata]:
        tree = self._context.tree
        for placement in self._changeset.placements:
            staged = tree.resume_directory(placement.parent, placement.temporary)
            if staged is not None:  # else it is published already, and the catalog's next refresh finds it
                data = (staged.path / METADATA).read_bytes()
                metadata = Metadata.from_bytes(data, f"{placement.parent}/{placement.temporary}/{METADATA}")
                self.begun = self.begun or bool(placement.clears)
                tree.delete_many(placement.clears)
                try:
                    yield allocate_version(self._context, staged, metadata)
                finally:
                    self.begun = self.begun or tree.resume_directory(placement.parent, placement.temporary) is None

    def _write(self) -> list[Metadata]:
        if not self._changeset.writes:
            return []
        writes = [(path, text.encode()) for path, text in self._changeset.writes]
        try:
            self._context.tree.write_many(writes)
        finally:
            self.begun = self.begun or any(self._context.load(path) == data for path, data in writes)
        return [Metadata.from_bytes(data, path) for path, data in writes]

    def _delete(self) -> None:
        tree = self._context.tree
        present = [path for path in self._changeset.deletes if not self.begun and tree.exists(path)]
        try:
            tree.delete_many(self._changeset.deletes)
        finally:
            self.begun = self.begun or not all(map(tree.exists, present))

    def _use_up_inputs(self) -> None:
        if self._changeset.inputs:
            from bayou.data.spool import remove_input  # noqa: PLC0415  (most changes have none)

            self.begun = True  # the versions are made: from here on only the next process may finish this
            for number in self._changeset.inputs:
                remove_input(self._context.repo, number)


def _lock(repo: Repo) -> FileLock:
    return FileLock(repo.state / "changes.lock")


def _directory_mtime(repo: Repo) -> int | None:
    """Return a number that changes whenever a change set is written or removed."""
    try:
        return os.stat(changes_directory(repo)).st_mtime_ns
    except OSError:
        return None


def _datastore(repo: Repo) -> list[str | None]:
    """Return an identifier of a repo's datastore, which does not change when the repo is moved."""
    config = repo.config.datastore
    return [config.url, config.path, config.namespace]


def _write_file(file: Path, datastore: list[str | None], changeset: ChangeSet) -> None:
    """Write a change set to its file; it is durable, and whole, when this returns."""
    with state_errors(_FAILED):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        placements = [asdict(placement) for placement in changeset.placements]
        fields = {"owner": _owners(file)[:1], "place": datastore, **asdict(changeset), "placements": placements}
        write_file(file, json.dumps(fields).encode(), mode=0o600, temporary=file.with_suffix(".tmp"))


def _read_file(file: Path) -> tuple[list[str | None], ChangeSet]:
    """Return the datastore of a change set, and the change set; `StateError` if the file is damaged or foreign."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        _check_owner(file, found["owner"])
        return found["place"], ChangeSet(
            tuple(Placement(**{**fields, "clears": tuple(fields["clears"])}) for fields in found["placements"]),
            tuple((path, text) for path, text in found["writes"]),
            tuple(found["deletes"]),
            tuple(found.get("inputs", ())),
        )
    except (OSError, ValueError, KeyError, TypeError):
        raise StateError(
            f"the change in {file.name} cannot be read", hint=f"remove .bayou/state/changes/{file.name}: it is lost"
        ) from None


def _remove_file(file: Path) -> None:
    with state_errors(_FAILED), contextlib.suppress(FileNotFoundError):
        file.unlink()
        fsync_directory(file.parent)  # or a power cut would bring it back, to be applied again long after


def _owners(file: Path) -> list[str]:
    return owner_ids(file.parent.with_name(OWNER))


def _check_owner(file: Path, found: list[str]) -> None:
    """Raise unless a change set belongs to the state that it is in: Git may have put it there (V24)."""
    if is_foreign(_owners(file), found):
        raise StateError(
            f"the change in {file.name} was not noted by you on this machine, so it is not made",
            hint=f"look at .bayou/state/changes/{file.name}, and remove it",
        )
