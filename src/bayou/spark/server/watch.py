"""The watcher: a small process beside the server that stops it when nobody has used it for an hour.

    python -m bayou.spark.server.watch PLACE ARCHIVE SECONDS

A session holds the lock `use` of the server's place while it is open. The watcher asks for the same lock for itself
alone, so it can never stop a server that is in use, and no session begins while it does. It ends with the server.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from bayou.core.errors import ConfigInvalid
from bayou.core.file_lock import FileLock, is_locked
from bayou.spark.server.class_archive import Archive
from bayou.spark.server.files import ServerFiles, signal_server, terminate
from bayou.spark.server.identity import SOURCE, start_detached, watch_environment

IDLE_S = 3600.0
_SLOWEST_S = 5.0
_PATIENCE_S = 1.0


def idle_seconds() -> float:
    """Return how long a server may be idle: an hour, or BAYOU_SPARK_IDLE."""
    told = os.environ.get("BAYOU_SPARK_IDLE", "")
    try:
        seconds = float(told) if told else IDLE_S
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ConfigInvalid(f"BAYOU_SPARK_IDLE is no number of seconds: {told!r}", hint="leave it out for an hour")
    return seconds


def ensure(place: ServerFiles, archive: Archive) -> None:
    """Start a watcher for the server of a place, unless it has one. The caller holds `use`, so it cannot be leaving."""
    if is_locked(place.watched):
        return
    start_detached(
        [sys.executable, "-m", __name__, str(place.root), str(archive.path), str(idle_seconds())],
        cwd=place.root,
        log=place.root / "watch.log",
        env=watch_environment() | {"PYTHONPATH": str(SOURCE)},
    )


def stop_if_idle(place: ServerFiles, idle_s: float) -> None:
    """Stop a server that nobody uses, nor has used for so long."""
    use = FileLock(place.use)
    if use.acquire():
        try:
            if time.time() - place.use.stat().st_mtime >= idle_s:
                terminate(place, keep_archive=True)
        finally:
            use.release()


def dismiss(place: ServerFiles) -> None:
    """Tell a server that nobody uses to end, and do not wait for that; its own watcher does."""
    use = FileLock(place.use)
    if use.acquire():
        try:
            place.record.unlink(missing_ok=True)
            signal_server(place, signal.SIGTERM)
        finally:
            use.release()


def watch(place: ServerFiles, archive: Archive, idle_s: float) -> None:
    """Watch until the server has ended."""
    watched = FileLock(place.watched)
    if not watched.acquire(timeout=_PATIENCE_S):
        return  # there is another watcher, and not only somebody who looked
    seen = time.monotonic()
    while not _over(place, watched):
        time.sleep(min(_SLOWEST_S, idle_s / 4))
        if _used(place):
            seen = time.monotonic()
        elif time.monotonic() - seen >= idle_s:
            stop_if_idle(place, idle_s)
    archive.publish(place)


def _used(place: ServerFiles) -> bool:
    use = FileLock(place.use)
    free = use.acquire()
    use.release()
    return not free


def _over(place: ServerFiles, watched: FileLock) -> bool:
    """Say whether there is nothing left to watch; then stop watching, while no session can begin."""
    if is_locked(place.alive):
        return False
    if not place.root.is_dir():
        return True  # somebody has tidied up
    use = FileLock(place.use)
    if not use.acquire():
        return False
    try:
        if is_locked(place.alive):
            return False
        watched.release()
        return True
    finally:
        use.release()


if __name__ == "__main__":
    watch(ServerFiles(Path(sys.argv[1])), Archive(Path(sys.argv[2])), float(sys.argv[3]))
