"""Where a server keeps what belongs to it: a folder of this user's own, in the user's cache."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from bayou.core.errors import SparkUnavailable

LONGEST_SOCKET = 100
"""Bytes of a socket's path; systems differ by a few."""


def cache(environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder of all servers of this user, made for nobody else."""
    environ = os.environ if environ is None else environ
    told = environ.get("XDG_CACHE_HOME", "")
    base = Path(told) if os.path.isabs(told) else Path.home() / ".cache"
    return base / "bayou" / "spark"


class Place(Struct, frozen=True):
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
