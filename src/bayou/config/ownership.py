"""Whose `.bayou/` this is (V24): state that was made elsewhere is set aside, and never applied.

State made here holds a random id, in its file `owner`; the same id lies in this user's own folder. A clone, an unpacked
archive or another user's directory cannot know such an id. Foreign state is moved to `.bayou/set-aside/<id>/`, where
`bayou trust show` says what it would have done and `bayou trust allow` takes it over. Payload is never moved: `tree/`
and `conflicts/` stay where they are.

Containers and restored backups are everyday cases. A state can have several owners: taking it over adds an id to it, so
that both sides of a mounted directory go on using one state.

Git overwrites ignored files without a word, so a later commit of a hostile repo could replace single files of a state
that is ours. What Git has put there is found in its index and moved away (`git_index`); and what is acted upon holds
the id itself, for whatever else may put files there: `sync.db`, change sets, the catalog (`owner_ids`).
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from bayou.config.trust import VARIABLE, make_private, trusts_all, user_folder, write_private
from bayou.core.errors import StateError
from bayou.core.file_lock import lock_descriptor
from bayou.core.ids import ulid

OWNER = "owner"
ASIDE = "set-aside"
_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
_MOST_BYTES = 4096
_WAIT_S = 60.0
_CATALOG = (
    "catalog.db",
    "catalog.db-wal",
    "catalog.db-shm",
    "catalog.db-journal",
    "catalog.db.lock",
    "catalog.db.owner",
)


class SetAside(Struct, frozen=True):
    """What was found here and is not this user's: where it lies now, and what it was."""

    folder: Path
    what: str = "state that was not made by you on this machine"


_proved: dict[str, tuple[int, int, int]] = {}
"""Owner files that this process has proved to be this user's: device, inode and time of change, by path."""


def own_state(local: Path) -> Path:
    """Return `.bayou/state`, proved to be this user's: made if it is not there, set aside if it is foreign."""
    state = local / "state"
    if not _is_proved(state / OWNER):
        set_aside_foreign(local)
        _prepare(local)
        with _alone(local):
            if not state.is_dir():
                _make(local, state)
            _prove(state / OWNER)
    return state


def own_catalog(local: Path) -> Path:
    """Return `.bayou/catalog.db`; one that this user did not make is set aside, and rebuilt: it is derived (V20)."""
    catalog = local / _CATALOG[0]
    owner = local / _CATALOG[-1]
    if _is_proved(owner):
        return catalog
    _prepare(local)
    with _alone(local):
        if not trusts_all():
            if not _is_proved(local / "state" / OWNER):  # or that was done when the state was proved
                _move_placed(local)
            if not _is_ours(local, owner) or any(os.path.islink(local / name) for name in _CATALOG):
                if any(os.path.lexists(local / name) for name in _CATALOG):
                    _move(local, _CATALOG)
                write_private(owner, register(local))
        _prove(owner)
    return catalog


def set_aside_foreign(local: Path) -> SetAside | None:
    """Move away what of the state this user did not make; say where it lies now. What is ours stays, or comes back.

    A repo that is used with another home in turn, as from a container, finds its own state again each time.
    """
    state = local / "state"
    if not os.path.lexists(state) or trusts_all():
        return None
    with _alone(local):
        if not os.path.lexists(state):
            return None
        found = os.lstat(state)
        if stat.S_ISDIR(found.st_mode) and _is_ours(local, state / OWNER):
            placed = _move_placed(local)
            _prove(state / OWNER)
            return placed
        if found.st_uid != os.geteuid():
            raise StateError(
                f"{state} belongs to another user of this machine (uid {found.st_uid})",
                hint=f"run this command as that user, or with {VARIABLE}=1 to use it all the same",
            )
        ours = next((one for one in set_aside_folders(local) if _is_ours(local, one / "state" / OWNER)), None)
        # The catalog follows what the state says, so the two go together.
        moved = SetAside(_move(local, ("state", *_CATALOG)))
        if ours is not None:
            os.rename(ours / "state", state)
        return moved


def take_over(local: Path, folder: Path) -> str:
    """Make state that was set aside the state of this repo again, and return the id of this user that it has now.

    The state that is in use is removed: the caller has made sure that nothing in it is still to be done.
    """
    state = local / "state"
    source = folder / "state"
    if any(not stat.S_ISDIR(os.lstat(one).st_mode) for one in (local / ASIDE, folder, source)):
        raise StateError(f"{source} is no directory, or a link leads to it", hint="remove it")
    with _alone(local):
        if os.path.lexists(state):
            import shutil  # noqa: PLC0415

            shutil.rmtree(state)
        for name in _CATALOG:
            (local / name).unlink(missing_ok=True)
        made = register(local)
        write_private(source / OWNER, *owner_ids(source / OWNER)[: _MOST_BYTES // 64], made)
        os.rename(source, state)
    _proved.clear()
    return made


def set_aside_folders(local: Path) -> list[Path]:
    """Return what was set aside and still lies there, newest first; nothing that a link leads to."""
    folder = local / ASIDE
    if os.path.islink(folder):
        return []
    try:
        names = sorted(os.listdir(folder), reverse=True)
    except OSError:
        return []
    found = [folder / name for name in names if not os.path.islink(folder / name)]
    return [one for one in found if os.path.isdir(one / "state") and not os.path.islink(one / "state")]


def register(local: Path) -> str:
    """Make a new id and remember it in this user's own folder."""
    made = os.urandom(16).hex()
    folder = _ids()
    if Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(local.parent)):
        if trusts_all():
            return made
        raise StateError(
            f"{folder} lies in the repo itself, so it proves nothing",
            hint=f"set XDG_CONFIG_HOME to a directory outside of it, or {VARIABLE}=1",
        )
    try:
        make_private(folder)
        write_private(folder / made, os.path.realpath(local.parent))
    except OSError as error:
        if trusts_all():
            return made
        raise StateError(
            f"cannot write to {folder}, where Bayou notes which state is yours: {error.strerror}",
            hint=f"make it writable, set XDG_CONFIG_HOME to another directory, or {VARIABLE}=1",
        ) from None
    return made


def _make(local: Path, state: Path) -> None:
    """Make an empty state that is ours; of several processes that try at once, one succeeds."""
    _prepare(local)
    temporary = local / f".bayou-{ulid()}.tmp"
    os.mkdir(temporary, 0o700)
    try:
        write_private(temporary / OWNER, register(local))
        os.rename(temporary, state)
    except OSError as error:
        if not state.is_dir():
            raise StateError(f"cannot make {state}: {error.strerror}") from None
        # Another process was faster, so its state is used.
    finally:
        if temporary.is_dir():
            (temporary / OWNER).unlink(missing_ok=True)
            temporary.rmdir()
    if not _is_ours(local, state / OWNER) and not trusts_all():
        raise StateError(f"{state} was replaced while it was made", hint="try again")
    _prove(state / OWNER)


def _prepare(local: Path) -> None:
    """Make `.bayou/`, for this user only, if it is not there."""
    try:
        local.mkdir(mode=0o700, exist_ok=True)
        if stat.S_IMODE(local.stat().st_mode) & 0o077 and local.stat().st_uid == os.geteuid():
            local.chmod(0o700)  # no other user reads what is kept here
        ignore = local / ".gitignore"
        if not os.path.lexists(ignore):
            write_private(ignore, "*")
    except OSError as error:
        raise StateError(
            f"cannot write to {local}: {error.strerror}", hint="check that this user may write to it"
        ) from None


@contextlib.contextmanager
def _alone(local: Path) -> Iterator[None]:
    """Let one process at a time look at whose state this is, and change it."""
    try:
        descriptor = os.open(local, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise StateError(f"cannot open {local}: {error.strerror}") from None
    try:
        if not lock_descriptor(descriptor, _WAIT_S):  # V12; the holder needs it for a few renames
            raise StateError(f"another process has held {local} for {_WAIT_S:.0f} s", hint="end it, and try again")
        yield
    finally:
        os.close(descriptor)


def _move_placed(local: Path) -> SetAside | None:
    """Move away files of `.bayou/` that Git has put among ours; payload and kept copies are data, and stay."""
    from bayou.config.git_index import placed_by_git  # noqa: PLC0415

    kept = (f"{local.name}/tree/", f"{local.name}/conflicts/", f"{local.name}/{ASIDE}/", f"{local.name}/.gitignore")
    placed = [path for path in placed_by_git(local.parent, local.name) if not path.startswith(kept)]
    if not placed:
        return None
    folder = _aside(local)
    for number, path in enumerate(placed):
        with contextlib.suppress(FileNotFoundError):
            os.rename(local.parent / path, folder / f"{number}-{path.rpartition('/')[2]}")
    return SetAside(folder, f"{len(placed)} files that a commit of this repo has put into .bayou/")


def set_aside_damaged(local: Path, files: Iterable[Path]) -> Path:
    """Move files of the state that are damaged, byte for byte, to a new directory; return it.

    `bayou trust` does not offer them: nothing takes a damaged file over.
    """
    folder = _aside(local)
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            os.rename(file, folder / file.name)
    return folder


def _aside(local: Path) -> Path:
    folder = local / ASIDE / ulid()
    try:
        _prepare(local)
        (local / ASIDE).mkdir(mode=0o700, exist_ok=True)
        if os.path.islink(local / ASIDE):
            raise StateError(f"{local / ASIDE} is a link", hint="remove it")
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise StateError(
            f"{local} holds what cannot be used, and it cannot be set aside: {error.strerror}",
            hint="check that this user may write to it",
        ) from None
    return folder


def _move(local: Path, names: tuple[str, ...]) -> Path:
    folder = _aside(local)
    try:
        for name in names:
            if os.path.lexists(local / name):
                os.rename(local / name, folder / name)
    except OSError as error:
        raise StateError(
            f"{local} was made elsewhere, and its state cannot be set aside: {error.strerror}",
            hint="check that this user may write to it",
        ) from None
    _proved.pop(str(local / "state" / OWNER), None)
    _proved.pop(str(local / _CATALOG[-1]), None)
    return folder


def _ids() -> Path:
    return user_folder() / "state"


def owner_ids(owner: Path) -> list[str]:
    """Return the ids in an owner file; none where there is none, as in a directory that is no repo's state."""
    try:
        descriptor = os.open(owner, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return []
    with open(descriptor, "rb") as opened:
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            return []
        text = opened.read(_MOST_BYTES).decode(errors="replace")
    return [one for one in text.split() if _ID.fullmatch(one)]


def _is_ours(local: Path, owner: Path) -> bool:
    folder = _ids()
    if Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(local.parent)):
        return False  # the clone brought along what should prove it
    return any((folder / one).is_file() for one in owner_ids(owner))


def _prove(owner: Path) -> None:
    if (found := _look(owner)) is not None:
        _proved[str(owner)] = found


def _is_proved(owner: Path) -> bool:
    known = _proved.get(str(owner))
    return known is not None and known == _look(owner)


def _look(owner: Path) -> tuple[int, int, int] | None:
    try:
        found = os.lstat(owner)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns


def create_private(database: Path) -> None:
    """Make an empty file that only this user can read, for SQLite to fill: its log gets the mode that it has.

    A file that is there is never opened here. Closing it would release all locks that this process has on it, among
    them those of SQLite's other connections: POSIX locks belong to a process, not to a descriptor.
    """
    with contextlib.suppress(FileExistsError):
        os.close(os.open(database, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
