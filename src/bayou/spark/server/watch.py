"""The watcher: a small process beside the server that ends the server when it is not needed any more.

    python -m bayou.spark.server.watch DIRECTORY ARCHIVE IDLE_SECONDS SESSIONS

It ends a server that no session has used for an hour (`BAYOU_SPARK_IDLE`), and an unused server on which more than 50
sessions were opened (`BAYOU_SPARK_SESSIONS`). The second limit exists because Spark 4.3 starts a Python daemon (13 to
24 MB) for each Connect session and stops it only with the whole server: no setting and no end of a session does
(SPARK-54055). The next command then starts a new server.

Each open session holds the server's use lock, shared. The watcher takes the same lock exclusively before it ends the
server. So it never ends a server in use, and no session opens meanwhile. The watcher ends with the server.
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
from bayou.spark.server.files import ServerFiles, signal_server, start_detached, terminate
from bayou.spark.server.identity import SOURCE

IDLE_S = 3600.0
SESSIONS = 50
"""How many sessions a server may serve: as many daemons take 0.7 to 1.2 GB, and a cold start takes 8 to 16 s."""

_LONGEST_POLL_S = 5.0
PATIENCE_S = 1.0


def idle_seconds() -> float:
    """Return how long a server may stay unused: an hour, or BAYOU_SPARK_IDLE."""
    text = os.environ.get("BAYOU_SPARK_IDLE", "")
    try:
        seconds = float(text) if text else IDLE_S
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ConfigInvalid(f"BAYOU_SPARK_IDLE is no number of seconds: {text!r}", hint="leave it out for an hour")
    return seconds


def session_limit() -> int:
    """Return how many sessions a server may serve: 50, or BAYOU_SPARK_SESSIONS."""
    text = os.environ.get("BAYOU_SPARK_SESSIONS", "")
    try:
        limit = int(text) if text else SESSIONS
    except ValueError:
        limit = 0
    if limit < 1:
        raise ConfigInvalid(
            f"BAYOU_SPARK_SESSIONS is no number of sessions: {text!r}", hint=f"leave it out for {SESSIONS}"
        )
    return limit


def ensure(files: ServerFiles, archive: Archive) -> None:
    """Start a watcher, unless one runs. The caller holds the use lock, so a running watcher is not about to end."""
    if is_locked(files.watch_lock):
        return
    inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH") if name in os.environ}
    arguments = (files.root, archive.path, idle_seconds(), session_limit())
    start_detached(
        [sys.executable, "-m", __name__, *map(str, arguments)],
        cwd=files.root,
        log=files.root / "watch.log",
        env=inherited | {"PYTHONPATH": str(SOURCE)},
    )


def stop_if_idle(files: ServerFiles, idle_s: float, sessions: int = SESSIONS) -> None:
    """End a server that is unused, and was so for `idle_s` seconds or has served more than `sessions` sessions."""
    use = FileLock(files.use_lock)
    if use.acquire():
        try:
            idle = time.time() - files.use_lock.stat().st_mtime >= idle_s
            if idle or files.session_count() > sessions:
                terminate(files, keep_archive=True)
        finally:
            use.release()


def end_if_unused(files: ServerFiles) -> None:
    """Send SIGTERM to a server that no session uses, and return at once; the server's watcher waits for its end."""
    use = FileLock(files.use_lock)
    if use.acquire():
        try:
            files.record.unlink(missing_ok=True)
            signal_server(files, signal.SIGTERM)
        finally:
            use.release()


def watch(files: ServerFiles, archive: Archive, idle_s: float, sessions: int = SESSIONS) -> None:
    """Watch the server until it has ended; then publish the class archive that it dumped."""
    lock = FileLock(files.watch_lock)
    if not lock.acquire(timeout=PATIENCE_S):
        return  # another watcher holds the lock; a process that only tests the lock holds it for a moment
    last_use = time.monotonic()  # besides the mtime, which a change of the clock makes look old
    while not _finish(files, lock):
        time.sleep(min(_LONGEST_POLL_S, idle_s / 4))
        if _in_use(files):
            last_use = time.monotonic()
        elif time.monotonic() - last_use >= idle_s or files.session_count() > sessions:
            stop_if_idle(files, idle_s, sessions)
    archive.publish(files)


def _in_use(files: ServerFiles) -> bool:
    use = FileLock(files.use_lock)
    free = use.acquire()
    use.release()
    return not free


def _finish(files: ServerFiles, lock: FileLock) -> bool:
    """Release the watch lock and return True if the server has ended and no session can be starting another."""
    if is_locked(files.server_lock):
        return False
    if not files.root.is_dir():
        return True  # the directory was deleted
    use = FileLock(files.use_lock)
    if not use.acquire():
        return False
    try:
        if is_locked(files.server_lock):
            return False
        lock.release()
        return True
    finally:
        use.release()


if __name__ == "__main__":
    watch(ServerFiles(Path(sys.argv[1])), Archive(Path(sys.argv[2])), float(sys.argv[3]), int(sys.argv[4]))
