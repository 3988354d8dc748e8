"""The owner of `.bayou/` (V24): Bayou sets aside state that was made elsewhere, and never applies it.

State that was made here holds a random id in its file `owner`, and this user's own folder holds the same id. A clone,
an unpacked archive or another user's directory cannot know such an id. Bayou moves foreign state to
`.bayou/set-aside/<id>/`; `bayou trust show` says what it would have done, and `bayou trust allow` takes it over. Bayou
never moves payload: `tree/` and `conflicts/` stay where they are.

Containers and restored backups are ordinary cases. A state can have several owners: taking it over adds an id to it, so
that both sides of a mounted directory can use one state.

Git overwrites ignored files silently, so a later commit of a hostile repo could replace single files of the user's own
state. Bayou finds such files in Git's index and moves them away (`git_index`). As a protection against other programs,
the files that Bayou acts upon hold the id themselves: `sync.db`, change sets, the catalog (`owner_ids`).
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from bayou.config.trust import VARIABLE, lies_in, make_private, trusts_all, user_folder, write_private
from bayou.core.errors import StateError
from bayou.core.file_lock import lock_descriptor
from bayou.core.ids import ulid

OWNER = "owner"
ASIDE = "set-aside"
_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
_MAX_BYTES = 4096
_WAIT_S = 60.0
_CATALOG = (
    "catalog.db",
    "catalog.db-wal",
    "catalog.db-shm",
    "catalog.db-journal",
    "catalog.db.lock",
    "catalog.db.owner",
)


_verified: dict[str, tuple[int, int, int]] = {}
"""Owner files that this process has verified as this user's: device, inode and time of change, by path."""


class SetAside(Struct, frozen=True):
    """Foreign state that Bayou moved away: where it is now, and what it was."""

    folder: Path
    what: str = "state that was not made by you on this machine"


def own_state(local: Path) -> Path:
    """Return `.bayou/state`, verified as this user's; create it if it is missing, and set foreign state aside."""
    state = local / "state"
    if not _is_verified(state / OWNER):
        set_aside_foreign(local)
        _prepare(local)
        with _locked(local):
            if not state.is_dir():
                _create(local, state)
            _remember_verified(state / OWNER)
    return state


def own_catalog(local: Path) -> Path:
    """Return `.bayou/catalog.db`; set a foreign catalog aside, to be rebuilt: it is derived (V20)."""
    catalog = local / _CATALOG[0]
    owner = local / _CATALOG[-1]
    if _is_verified(owner):
        return catalog
    _prepare(local)
    with _locked(local):
        if not trusts_all():
            if not _is_verified(local / "state" / OWNER):  # otherwise that happened when the state was verified
                _set_aside_git_files(local)
            if not _is_own(local, owner) or any(os.path.islink(local / name) for name in _CATALOG):
                if any(os.path.lexists(local / name) for name in _CATALOG):
                    _set_aside(local, _CATALOG)
                write_private(owner, register(local))
        _remember_verified(owner)
    return catalog


def find_own_catalog(local: Path) -> Path | None:
    """Return this user's own `.bayou/catalog.db`; None if there is none. Unlike `own_catalog`, this changes nothing."""
    known = not any(os.path.islink(local / name) for name in _CATALOG)
    own = known and (trusts_all() or _is_own(local, local / _CATALOG[-1]))
    return local / _CATALOG[0] if own and (local / _CATALOG[0]).is_file() else None


def set_aside_foreign(local: Path) -> SetAside | None:
    """Move state away that this user did not make, and return where it is now; this user's own stays, or comes back.

    A repo that is used with two homes in turn, as from a container, gets the state of each back.
    """
    state = local / "state"
    if not os.path.lexists(state) or trusts_all():
        return None
    with _locked(local):
        if not os.path.lexists(state):
            return None
        found = os.lstat(state)
        if stat.S_ISDIR(found.st_mode) and _is_own(local, state / OWNER):
            placed = _set_aside_git_files(local)
            _remember_verified(state / OWNER)
            return placed
        if found.st_uid != os.geteuid():
            raise StateError(
                f"{state} belongs to another user of this machine (uid {found.st_uid})",
                hint=f"run this command as that user, or with {VARIABLE}=1 to use it all the same",
            )
        own = next((folder for folder in set_aside_folders(local) if _is_own(local, folder / "state" / OWNER)), None)
        # The catalog derives from the state, so the two move together.
        moved = SetAside(_set_aside(local, ("state", *_CATALOG)))
        if own is not None:
            os.rename(own / "state", state)
        return moved


def take_over(local: Path, folder: Path) -> str:
    """Make state that was set aside the state of this repo again, and return the new id of this user in it.

    This removes the state in use: the caller has made sure that it holds no pending work.
    """
    state = local / "state"
    source = folder / "state"
    if any(not stat.S_ISDIR(os.lstat(directory).st_mode) for directory in (local / ASIDE, folder, source)):
        raise StateError(f"{source} is no directory, or a link leads to it", hint="remove it")
    with _locked(local):
        if os.path.lexists(state):
            import shutil  # noqa: PLC0415

            shutil.rmtree(state)
        for name in _CATALOG:
            (local / name).unlink(missing_ok=True)
        made = register(local)
        write_private(source / OWNER, *owner_ids(source / OWNER)[: _MAX_BYTES // 64], made)
        os.rename(source, state)
    _verified.clear()
    return made


def set_aside_folders(local: Path) -> list[Path]:
    """Return the directories of set-aside state, newest first, without links."""
    folder = local / ASIDE
    if os.path.islink(folder):
        return []
    try:
        names = sorted(os.listdir(folder), reverse=True)
    except OSError:
        return []
    folders = [folder / name for name in names if not os.path.islink(folder / name)]
    return [inner for inner in folders if os.path.isdir(inner / "state") and not os.path.islink(inner / "state")]


def set_aside_damaged(local: Path, files: Iterable[Path]) -> Path:
    """Move damaged files of the state unchanged to a new directory, and return it.

    `bayou trust` does not offer them: no command takes a damaged file over.
    """
    folder = _new_aside(local)
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            os.rename(file, folder / file.name)
    return folder


def owner_ids(owner: Path) -> list[str]:
    """Return the ids in an owner file, or an empty list if there is no such file."""
    try:
        descriptor = os.open(owner, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return []
    with open(descriptor, "rb") as opened:
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            return []
        text = opened.read(_MAX_BYTES).decode(errors="replace")
    return [word for word in text.split() if _ID.fullmatch(word)]


def is_foreign(ids: Collection[str], found: Collection[str]) -> bool:
    """Return whether a file has none of the `ids` of the state that it is in: Git may have put it there (V24)."""
    return bool(ids) and set(ids).isdisjoint(found) and not trusts_all()


def register(local: Path) -> str:
    """Make a new id, and record it in this user's own folder."""
    made = os.urandom(16).hex()
    folder = _id_folder()
    if lies_in(folder, local.parent):
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


def create_private(database: Path) -> None:
    """Create an empty database file that only this user can read; SQLite gives its log the same mode.

    This never opens an existing file: closing it would release all locks of this process on it, also those of SQLite's
    other connections, because POSIX locks belong to a process and not to a descriptor.
    """
    with contextlib.suppress(FileExistsError):
        os.close(os.open(database, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _create(local: Path, state: Path) -> None:
    """Create an empty state of this user; of several processes that try at once, one succeeds."""
    _prepare(local)
    temporary = local / f".bayou-{ulid()}.tmp"
    os.mkdir(temporary, 0o700)
    try:
        write_private(temporary / OWNER, register(local))
        os.rename(temporary, state)
    except OSError as error:
        if not state.is_dir():
            raise StateError(f"cannot make {state}: {error.strerror}") from None
        # Another process was faster; use its state.
    finally:
        if temporary.is_dir():
            (temporary / OWNER).unlink(missing_ok=True)
            temporary.rmdir()
    if not _is_own(local, state / OWNER) and not trusts_all():
        raise StateError(f"{state} was replaced while it was made", hint="try again")
    _remember_verified(state / OWNER)


def _prepare(local: Path) -> None:
    """Create `.bayou/`, readable for this user only, if it is missing."""
    try:
        local.mkdir(mode=0o700, exist_ok=True)
        if stat.S_IMODE(local.stat().st_mode) & 0o077 and local.stat().st_uid == os.geteuid():
            local.chmod(0o700)  # no other user may read it
        ignore = local / ".gitignore"
        if not os.path.lexists(ignore):
            write_private(ignore, "*")
    except OSError as error:
        raise StateError(
            f"cannot write to {local}: {error.strerror}", hint="check that this user may write to it"
        ) from None


@contextlib.contextmanager
def _locked(local: Path) -> Iterator[None]:
    """Let one process at a time check and change the owner of the state."""
    try:
        descriptor = os.open(local, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise StateError(f"cannot open {local}: {error.strerror}") from None
    try:
        if not lock_descriptor(descriptor, _WAIT_S):  # V12; a holder needs the lock for a few renames
            raise StateError(f"another process has held {local} for {_WAIT_S:.0f} s", hint="end it, and try again")
        yield
    finally:
        os.close(descriptor)


def _set_aside_git_files(local: Path) -> SetAside | None:
    """Move files away that Git wrote into `.bayou/`; payload and kept conflict copies are data, and stay."""
    from bayou.config.git_index import placed_by_git  # noqa: PLC0415

    kept = (f"{local.name}/tree/", f"{local.name}/conflicts/", f"{local.name}/{ASIDE}/", f"{local.name}/.gitignore")
    placed = [path for path in placed_by_git(local.parent, local.name) if not path.startswith(kept)]
    if not placed:
        return None
    folder = _new_aside(local)
    for number, path in enumerate(placed):
        with contextlib.suppress(FileNotFoundError):
            os.rename(local.parent / path, folder / f"{number}-{path.rpartition('/')[2]}")
    return SetAside(folder, f"{len(placed)} files that a commit of this repo has put into .bayou/")


def _new_aside(local: Path) -> Path:
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


def _set_aside(local: Path, names: tuple[str, ...]) -> Path:
    folder = _new_aside(local)
    try:
        for name in names:
            if os.path.lexists(local / name):
                os.rename(local / name, folder / name)
    except OSError as error:
        raise StateError(
            f"{local} was made elsewhere, and its state cannot be set aside: {error.strerror}",
            hint="check that this user may write to it",
        ) from None
    _verified.pop(str(local / "state" / OWNER), None)
    _verified.pop(str(local / _CATALOG[-1]), None)
    return folder


def _id_folder() -> Path:
    return user_folder() / "state"


def _is_own(local: Path, owner: Path) -> bool:
    folder = _id_folder()
    if lies_in(folder, local.parent):
        return False  # the clone itself may contain the proof
    return any((folder / owner_id).is_file() for owner_id in owner_ids(owner))


def _remember_verified(owner: Path) -> None:
    if (found := _identity(owner)) is not None:
        _verified[str(owner)] = found


def _is_verified(owner: Path) -> bool:
    known = _verified.get(str(owner))
    return known is not None and known == _identity(owner)


def _identity(owner: Path) -> tuple[int, int, int] | None:
    try:
        found = os.lstat(owner)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns
