"""The functions of `data` that every sync calls. This module imports little, so that a no-op sync starts quickly.

`finish_pending_changesets` finishes what killed processes began (`data.changes`), before a sync looks at the tree.
`renumber` is the rule by which sync resolves two versions with one number (docs/design.md, section 11).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from bayou.core import limits
from bayou.repo import Repo
from bayou.state.freshness import record_names

if TYPE_CHECKING:
    from bayou.state.connection import Connection

_VERSION_LINE = re.compile(rb"^version: *[1-9][0-9]* *\r?$", re.MULTILINE)


def finish_pending_changesets(connection: Connection) -> None:
    """Finish the change sets of dead processes before a sync, so that it pushes no half of a change."""
    if pending_changesets(connection.repo):
        from bayou.data.records import Records  # noqa: PLC0415  (hardly ever needed)

        with Records(connection.repo, connection=connection):
            pass


def pending_changesets(repo: Repo) -> list[Path]:
    """Return the files of change sets that are not finished, the oldest first."""
    directory = changes_directory(repo)
    return [directory / name for name in record_names(directory)]


def changes_directory(repo: Repo) -> Path:
    """Return the directory of change sets that are not finished."""
    return repo.state / "changes"


def renumber(metadata: bytes, version: int) -> bytes | None:
    """Return a `metadata.yaml` with another version number; None if the file has not exactly one line for it.

    None also for a number that is too high for a version (V25).
    """
    if version > limits.VERSION_MAX:
        return None
    renumbered, found = _VERSION_LINE.subn(b"version: %d" % version, metadata)
    return renumbered if found == 1 else None
