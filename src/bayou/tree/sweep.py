"""Remove temporaries whose writers are gone (V14)."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from bayou.core.errors import BayouError
from bayou.core.ids import ulid_ms
from bayou.tree.draft import made_id
from bayou.tree.ground import Ground
from bayou.tree.spot import Spot


def made_before(temporaries: Iterable[str], moment_ms: int) -> list[str]:
    """Return the temporaries that were begun before a moment, by their names."""
    return [path for path in temporaries if ulid_ms(made_id(path.rpartition("/")[2])) < moment_ms]


def sweep(root: Path, temporaries: Iterable[str], untouched_since_ms: int) -> None:
    """Remove temporaries, files and directories, and the directories that this leaves empty.

    The caller knows that nobody is going to give them their names. One that was written to since then stays all the
    same, as does one that cannot be removed: everybody ignores it.
    """
    ground = Ground(root)
    for path in temporaries:
        with contextlib.suppress(BayouError, OSError), ground.spot(path) as spot:
            _remove(spot, untouched_since_ms)
        ground.prune(path)


def _remove(spot: Spot, untouched_since_ms: int) -> None:
    if _touched_ms(spot) >= untouched_since_ms:
        return
    if stat.S_ISDIR(spot.look().st_mode):
        import shutil  # noqa: PLC0415

        shutil.rmtree(spot.name, dir_fd=spot.directory)
    else:
        os.unlink(spot.name, dir_fd=spot.directory)


def _touched_ms(spot: Spot) -> float:
    """Return when it, or anything in it, was last written to."""
    newest = spot.look().st_mtime
    for _, directories, files, descriptor in os.fwalk(spot.name, dir_fd=spot.directory):
        for name in (*directories, *files):
            newest = max(newest, os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mtime)
    return newest * 1000
