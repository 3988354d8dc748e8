"""Change sets on paper: what is to be changed together, written down before it is (`changes`)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict

from bayou.config.ownership import OWNER, owner_ids
from bayou.config.trust import trusts_all
from bayou.core.atomic_file import fsync_directory, write_file
from bayou.core.errors import StateError
from bayou.repo import Repo


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
