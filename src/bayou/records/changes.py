"""Change sets: what changes more than one file, and is done whole or not at all.

A change set is written down, durably, before its first step and removed after its last. Each step may be done twice.
Whoever finds one whose owner has died carries it out, so that a kill at any moment leaves the old state or the new
one (V19). One process of a repo at a time changes what is there already; new versions need no turn (`claim`).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from bayou.core.errors import BayouError, StateError
from bayou.core.file_lock import FileLock
from bayou.core.ids import ulid
from bayou.records.changeset import ChangeSet, explained, forget, load, note, place_of
from bayou.records.claim import claim
from bayou.records.context import Context
from bayou.records.layout import METADATA, version_path
from bayou.records.metadata import Metadata
from bayou.records.undone import changes_folder, undone
from bayou.repo import Repo

_LOCK = "changes.lock"
_WAIT_S = 60.0
_LOOK_S = 5.0
_LOOKS = 5
T = TypeVar("T")


@contextlib.contextmanager
def turn(context: Context) -> Iterator[None]:
    """Have the existing versions of this repo's datastore to oneself; what a dead process left undone is done first."""
    lock = FileLock(context.repo.state / _LOCK)
    with explained():
        context.repo.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        held = lock.acquire(_WAIT_S)
    if not held:
        raise StateError(
            "another process of this repo has been changing data for a minute", hint="wait for it, and try again"
        )
    try:
        _finish(context)
        yield
    finally:
        lock.release()


def change(context: Context, wanted: ChangeSet) -> list[Metadata]:
    """Carry out a change set, in one's turn; return the metadata of what was placed.

    If it fails before its first step, nothing is left of it; after that, the next turn does the rest.
    """
    file = changes_folder(context.repo) / f"{ulid()}.json"
    steps = _Steps(context, wanted)
    try:
        note(file, place_of(context.repo), wanted)
        return steps.carry_out()
    except BaseException:
        if not steps.begun:
            # The first error is the one to tell. What cannot be forgotten is done by the next turn; what a power cut
            # brings back is not, since nothing waits for a place any more.
            with contextlib.suppress(BayouError, OSError):
                file.unlink(missing_ok=True)
                steps.discard()
        raise
    finally:
        if steps.done:
            forget(file)


def settle(context: Context) -> None:
    """Carry out what dead processes left undone, unless another process is at it; for whoever opens the records."""
    if not undone(context.repo):
        return
    lock = FileLock(context.repo.state / _LOCK)
    if lock.acquire():
        try:
            # What cannot be done now (a full disk) is no reason not to read; whoever changes data is told.
            with contextlib.suppress(BayouError):
                _finish(context)
        finally:
            lock.release()


def steadily(context: Context, read: Callable[[], T]) -> T:
    """Return what `read` finds when no change set of this repo is half done: all of it, or nothing of it.

    A reader waits for a change that is under way, but not for ever: one that takes its time is better seen in part.
    """
    repo = context.repo
    until = time.monotonic() + _LOOK_S
    looks = 0
    while looks < _LOOKS or time.monotonic() < until:
        looks += 1
        if undone(repo) and not _wait(context):
            break
        before = _stamp(repo)
        answer = read()
        if _stamp(repo) == before:
            return answer
    return read()


def _wait(context: Context) -> bool:
    """Let whoever is at work finish, or finish it in its place; say no if that takes too long."""
    lock = FileLock(context.repo.state / _LOCK)
    if not lock.acquire(_LOOK_S):
        return False
    try:
        with contextlib.suppress(BayouError):
            _finish(context)
    finally:
        lock.release()
    return True


def _stamp(repo: Repo) -> int | None:
    """Return what changes whenever a change set is written down or removed."""
    try:
        return os.stat(changes_folder(repo)).st_mtime_ns
    except OSError:
        return None


class _Steps:
    """The steps of one change set."""

    def __init__(self, context: Context, wanted: ChangeSet) -> None:
        self._context = context
        self._wanted = wanted
        self.begun = False
        self.done = False

    def discard(self) -> None:
        """Remove what waits for its place."""
        for one in self._wanted.placements:
            assembly = self._context.tree.assembled(one.parent, one.temporary)
            if assembly is not None:
                assembly.discard()

    def possible(self) -> bool:
        """Whether everything that is to get a place waits for it, or has it: else the rest must not be done either."""
        tree = self._context.tree
        return all(
            tree.assembled(one.parent, one.temporary) is not None or tree.names(f"{one.parent}/{one.version}")
            for one in self._wanted.placements
        )

    def carry_out(self) -> list[Metadata]:
        placed = [*self._place()]
        written = self._write()
        self._delete()
        places = [version_path(path) for path in self._wanted.deletes if path.endswith(f"/{METADATA}")]
        self._context.told([*placed, *written], [place for place in places if place is not None])
        self.done = True
        return placed

    def _place(self) -> Iterator[Metadata]:
        for one in self._wanted.placements:
            assembly = self._context.tree.assembled(one.parent, one.temporary)
            if assembly is not None:  # else it has its place already, and the catalog hears of it when it catches up
                data = (assembly.path / METADATA).read_bytes()
                described = Metadata.from_bytes(data, f"{one.parent}/{one.temporary}/{METADATA}")
                self.begun = self.begun or bool(one.clears)
                self._context.tree.delete_many(one.clears)
                try:
                    yield claim(self._context, assembly, described)
                finally:
                    self.begun = self.begun or self._context.tree.assembled(one.parent, one.temporary) is None

    def _write(self) -> list[Metadata]:
        if not self._wanted.writes:
            return []
        writes = [(path, text.encode()) for path, text in self._wanted.writes]
        try:
            self._context.tree.write_many(writes)
        finally:
            self.begun = self.begun or any(self._context.load(path) == data for path, data in writes)
        return [Metadata.from_bytes(data, path) for path, data in writes]

    def _delete(self) -> None:
        here = [path for path in self._wanted.deletes if not self.begun and self._context.tree.exists(path)]
        try:
            self._context.tree.delete_many(self._wanted.deletes)
        finally:
            self.begun = self.begun or not all(map(self._context.tree.exists, here))


def _finish(context: Context) -> None:
    for file in undone(context.repo):
        place, wanted = load(file)
        if place != place_of(context.repo):
            continue  # of a datastore that this repo had before: it waits until the repo has it again
        steps = _Steps(context, wanted)
        if steps.possible():
            steps.carry_out()
        forget(file)
