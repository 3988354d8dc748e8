"""Where a server keeps what belongs to it: a folder of this user's own, in the user's cache.

Ending a server's process, and no other.

Whether Spark can be had at once.
"""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from bayou.config import SparkConfig
from bayou.core.errors import SparkUnavailable
from bayou.core.file_lock import is_locked

LONGEST_SOCKET = 100
"""Bytes of a socket's path; systems differ by a few."""


def cache(environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder of all servers of this user, made for nobody else."""
    environ = os.environ if environ is None else environ
    told = environ.get("XDG_CACHE_HOME", "")
    base = Path(told) if os.path.isabs(told) else Path.home() / ".cache"
    return base / "bayou" / "spark"


class ServerFiles(Struct, frozen=True):
    """The folder of one server. Its name is the key of the server's identity."""

    root: Path

    def make(self) -> None:
        """Create it, or refuse one that others could read or write: it holds the server's token."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self.root.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise SparkUnavailable(f"{self.root} is not a folder of yours", hint="remove it, or set XDG_CACHE_HOME")
        if stat.S_IMODE(found.st_mode) != 0o700:
            self.root.chmod(0o700)

    def scratch(self, told: str) -> list[Path]:
        """Return where Spark keeps blocks: in the server's own folder, or in one of its own in each that it is told.

        Spark lets everybody read the blocks that it writes to a disk, so the folder above them must not.
        """
        folders = [Path(folder) for folder in told.split(",") if os.path.isabs(folder)]
        return [folder / f"bayou-{self.root.name}" for folder in folders] or [self.work]

    @property
    def record(self) -> Path:
        """How to reach the server, and its token."""
        return self.root / "server.json"

    @property
    def alive(self) -> Path:
        """Locked by the server itself for as long as it lives; holds its process id."""
        return self.root / "server.lock"

    @property
    def turn(self) -> Path:
        """Locked by whoever starts or stops the server."""
        return self.root / "turn.lock"

    @property
    def use(self) -> Path:
        """Locked by every session, together, while it is open; its time is that of the last use."""
        return self.root / "use.lock"

    @property
    def watched(self) -> Path:
        """Locked by the watcher for as long as it lives."""
        return self.root / "watch.lock"

    @property
    def identity(self) -> Path:
        """Whose server this is, in full."""
        return self.root / "identity.json"

    @property
    def log(self) -> Path:
        """What Spark, its JVM and its Python workers have to say."""
        return self.root / "spark.log"

    @property
    def work(self) -> Path:
        """Spark's own temporary files."""
        return self.root / "work"

    @property
    def classes(self) -> Path:
        """The class archive that a server without one leaves when it ends."""
        return self.root / "classes.jsa"


_GRACE_S = 5.0
_ARCHIVE_S = 240.0  # a server that had no class archive writes one at its end
_KILLED_S = 10.0
_POLL_S = 0.05


def terminate(place: ServerFiles, *, keep_archive: bool = False) -> bool:
    """Stop the server of a place, if one lives there, and return when it is gone; say whether there was one.

    The server gets SIGTERM at once and SIGKILL after a grace of seconds. A server that had no class archive would write
    one at its end, which takes a minute: only a caller that asks to `keep_archive` waits for it.
    The process id is the server's own, for the server lives as long as its lock is held.
    """
    if not is_locked(place.alive):
        place.record.unlink(missing_ok=True)
        return False
    grace = _ARCHIVE_S if keep_archive and place.classes.exists() else _GRACE_S
    for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, _KILLED_S)):
        signal_server(place, number)
        if _gone(place, seconds):
            break
    place.record.unlink(missing_ok=True)
    return True


def signal_server(place: ServerFiles, number: int) -> None:
    """Send a signal to the server, if it lives."""
    try:
        pid = int(place.alive.read_text())
    except (FileNotFoundError, ValueError):
        return  # there never was one, or its starter died before it wrote that down
    if is_locked(place.alive):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass  # it has ended in this moment


def _gone(place: ServerFiles, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while is_locked(place.alive):
        if time.monotonic() >= end:
            return False
        time.sleep(_POLL_S)
    return True


def is_available(config: SparkConfig) -> bool:
    """Say whether some server runs already, here or elsewhere; a guess that takes no time, and starts nothing."""
    if config.remote is not None or config.master is not None:
        return True
    return any(is_locked(ServerFiles(lock.parent).alive) for lock in cache().glob("*/server.lock"))
