"""Change sets: what changes more than one file, and is done whole or not at all.

A change set is written down, durably, before its first step and removed after its last. Each step may be done twice.
Whoever finds one whose owner has died carries it out, so that a kill at any moment leaves the old state or the new
one (V19). One process of a repo at a time changes what is there already; new versions need no turn (`claim`).

Change sets that a process did not live to carry out: finding them costs next to nothing, so every sync may look.

Change sets on paper: what is to be changed together, written down before it is (`changes`).
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct
from msgspec.structs import asdict

from bayou.config.ownership import OWNER, owner_ids
from bayou.config.trust import trusts_all
from bayou.core.atomic_file import fsync_directory, write_file
from bayou.core.errors import BayouError, StateError
from bayou.core.file_lock import FileLock
from bayou.core.ids import ulid
from bayou.data.allocate import allocate_version
from bayou.data.context import DataContext
from bayou.data.layout import METADATA, version_path
from bayou.data.metadata import Metadata
from bayou.repo import Repo

if TYPE_CHECKING:
    from bayou.state.connection import Connection


def pending_changesets(repo: Repo) -> list[Path]:
    """Return the change sets that were written down and not removed, the oldest first."""
    folder = changes_folder(repo)
    try:
        return [folder / name for name in sorted(os.listdir(folder)) if name.endswith(".json")]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StateError(
            f"cannot read {folder.name}: {error.strerror}", hint="check that this user may read .bayou/state"
        ) from None


def changes_folder(repo: Repo) -> Path:
    """Return where change sets are written down."""
    return repo.state / "changes"


def settle_undone(repo: Repo, connection: Connection | None = None) -> None:
    """Carry out what dead processes left undone, so that no sync takes half of it to others."""
    if pending_changesets(repo):
        from bayou.data.records import Records  # noqa: PLC0415  (hardly ever needed)

        with Records(repo, connection=connection):
            pass


class Placement(Struct, frozen=True):
    """A described version that waits beside its place, and what makes room for it."""

    parent: str
    temporary: str
    version: int
    clears: tuple[str, ...] = ()


class ChangeSet(Struct, frozen=True):
    """New versions that get their places, then metadata that is written, then files that go."""

    placements: tuple[Placement, ...] = ()
    writes: tuple[tuple[str, str], ...] = ()
    deletes: tuple[str, ...] = ()


def place_of(repo: Repo) -> list[str | None]:
    """Return what tells one datastore of a repo from another; a repo that is moved keeps what is its own."""
    config = repo.config.datastore
    return [config.url, config.path, config.namespace]


def note(file: Path, place: list[str | None], wanted: ChangeSet) -> None:
    """Write a change set down; it is durable, and whole, when this returns."""
    with explained():
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        placements = [asdict(one) for one in wanted.placements]
        fields = {"owner": _owners(file)[:1], "place": place, **asdict(wanted), "placements": placements}
        write_file(file, json.dumps(fields).encode(), mode=0o600, temporary=file.with_suffix(".tmp"))


def forget(file: Path) -> None:
    with explained(), contextlib.suppress(FileNotFoundError):
        file.unlink()
        fsync_directory(file.parent)  # or a power cut would bring it back, to be done again long after


def load(file: Path) -> tuple[list[str | None], ChangeSet]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        _check_owner(file, found["owner"])
        return found["place"], ChangeSet(
            tuple(Placement(**{**one, "clears": tuple(one["clears"])}) for one in found["placements"]),
            tuple((path, text) for path, text in found["writes"]),
            tuple(found["deletes"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        raise StateError(
            f"the change in {file.name} cannot be read", hint=f"remove .bayou/state/changes/{file.name}: it is lost"
        ) from None


def _owners(file: Path) -> list[str]:
    return owner_ids(file.parent.with_name(OWNER))


def _check_owner(file: Path, found: list[str]) -> None:
    """Raise unless a change set was written with the state that it lies in: Git may have put it there (V24)."""
    ids = _owners(file)
    if ids and not set(ids) & set(found) and not trusts_all():
        raise StateError(
            f"the change in {file.name} was not noted by you on this machine, so it is not made",
            hint=f"look at .bayou/state/changes/{file.name}, and remove it",
        )


@contextlib.contextmanager
def explained() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StateError(
            f"cannot note a change: {error.strerror}",
            hint="check that this user may write to .bayou, and that its volume has space",
        ) from None


_LOCK = "changes.lock"
_WAIT_S = 60.0
_LOOK_S = 5.0
_LOOKS = 5
T = TypeVar("T")


@contextlib.contextmanager
def exclusive_change(context: DataContext) -> Iterator[None]:
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


def change(context: DataContext, wanted: ChangeSet) -> list[Metadata]:
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


def settle(context: DataContext) -> None:
    """Carry out what dead processes left undone, unless another process is at it; for whoever opens the records."""
    if not pending_changesets(context.repo):
        return
    lock = FileLock(context.repo.state / _LOCK)
    if lock.acquire():
        try:
            # What cannot be done now (a full disk) is no reason not to read; whoever changes data is told.
            with contextlib.suppress(BayouError):
                _finish(context)
        finally:
            lock.release()


def consistent_read(context: DataContext, read: Callable[[], T]) -> T:
    """Return what `read` finds when no change set of this repo is half done: all of it, or nothing of it.

    A reader waits for a change that is under way, and keeps others off if they follow each other faster than it reads.
    Only a single change that takes longer than a reader waits is seen in part.
    """
    repo = context.repo
    until = time.monotonic() + _LOOK_S
    looks = 0
    while looks < _LOOKS or time.monotonic() < until:
        looks += 1
        if pending_changesets(repo):
            with _turn(context) as held:
                if not held:
                    return read()
        before = _stamp(repo)
        answer = read()
        # Two change sets within one tick of the file system's clock leave the same stamp.
        if _stamp(repo) == before and not pending_changesets(repo):
            return answer
    with _turn(context):
        return read()


@contextlib.contextmanager
def _turn(context: DataContext) -> Iterator[bool]:
    """Let the process at work finish, finish what dead ones left, and keep others off; False if that takes too long."""
    lock = FileLock(context.repo.state / _LOCK)
    held = lock.acquire(_LOOK_S)
    try:
        if held:
            with contextlib.suppress(BayouError):
                _finish(context)
        yield held
    finally:
        if held:
            lock.release()


def _stamp(repo: Repo) -> int | None:
    """Return what changes whenever a change set is written down or removed."""
    try:
        return os.stat(changes_folder(repo)).st_mtime_ns
    except OSError:
        return None


class _Steps:
    """The steps of one change set."""

    def __init__(self, context: DataContext, wanted: ChangeSet) -> None:
        self._context = context
        self._wanted = wanted
        self.begun = False
        self.done = False

    def discard(self) -> None:
        """Remove what waits for its place."""
        for one in self._wanted.placements:
            assembly = self._context.tree.resume_directory(one.parent, one.temporary)
            if assembly is not None:
                assembly.discard()

    def possible(self) -> bool:
        """Whether everything that is to get a place waits for it, or has it: else the rest must not be done either."""
        tree = self._context.tree
        return all(
            tree.resume_directory(one.parent, one.temporary) is not None or tree.names(f"{one.parent}/{one.version}")
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
            assembly = self._context.tree.resume_directory(one.parent, one.temporary)
            if assembly is not None:  # else it has its place already, and the catalog hears of it when it catches up
                data = (assembly.path / METADATA).read_bytes()
                described = Metadata.from_bytes(data, f"{one.parent}/{one.temporary}/{METADATA}")
                self.begun = self.begun or bool(one.clears)
                self._context.tree.delete_many(one.clears)
                try:
                    yield allocate_version(self._context, assembly, described)
                finally:
                    self.begun = self.begun or self._context.tree.resume_directory(one.parent, one.temporary) is None

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


def _finish(context: DataContext) -> None:
    for file in pending_changesets(context.repo):
        place, wanted = load(file)
        if place != place_of(context.repo):
            continue  # of a datastore that this repo had before: it waits until the repo has it again
        steps = _Steps(context, wanted)
        if steps.possible():
            steps.carry_out()
        forget(file)
