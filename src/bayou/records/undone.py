"""Change sets that a process did not live to carry out: finding them costs next to nothing, so every sync may look."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from bayou.core.errors import StateError
from bayou.repo import Repo

if TYPE_CHECKING:
    from bayou.state.connection import Connection


def undone(repo: Repo) -> list[Path]:
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
    if undone(repo):
        from bayou.records.records import Records  # noqa: PLC0415  (hardly ever needed)

        with Records(repo, connection=connection):
            pass
