"""The directory of a server, its record (`server.json`), and its process: start it detached, signal it, end it.

Each server has a directory of its own in the user's cache, named after the key of its identity. The locks in it are
the only evidence of life: the kernel releases a lock when its holder ends, so that neither a killed server, nor a
reboot, nor a reused process id is taken for a running server.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from msgspec import Struct
from msgspec.structs import asdict

from bayou.config import SparkConfig
from bayou.core.atomic_file import atomic_file
from bayou.core.errors import SparkUnavailable
from bayou.core.file_lock import is_locked
from bayou.core.structs import SelectiveStruct

LONGEST_SOCKET = 100
"""The longest path of a Unix socket in bytes; the limits of systems differ by a few bytes."""

GRACE_S = 5.0
_ARCHIVE_S = 240.0  # a server that has no class archive dumps one when it ends
_KILLED_S = 10.0
_POLL_S = 0.05

# The helper forks in a process without threads and exits, so that init adopts the started process and reaps it.
_START = """
import os, sys
log, command = sys.argv[1], sys.argv[2:]
pid = os.fork()
if pid:
    print(pid)
    sys.exit()
os.setsid()
null, out = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
os.dup2(null, 0), os.dup2(out, 1), os.dup2(out, 2)
try:
    os.execv(command[0], command)
except OSError as error:
    print(f"{command[0]}: {error.strerror}", file=sys.stderr)
    os._exit(127)
"""


def servers_cache(environ: Mapping[str, str] | None = None) -> Path:
    """Return the directory of all servers of this user: `$XDG_CACHE_HOME/bayou/spark`."""
    environ = os.environ if environ is None else environ
    configured = environ.get("XDG_CACHE_HOME", "")
    base = Path(configured) if os.path.isabs(configured) else Path.home() / ".cache"
    return base / "bayou" / "spark"


def is_available(config: SparkConfig) -> bool:
    """Guess from files whether a session opens without a cold start; connect to nothing and start nothing.

    A configured `remote` or `master` counts as available.
    """
    if config.remote is not None or config.master is not None:
        return True
    return any(is_locked(ServerFiles(lock.parent).server_lock) for lock in servers_cache().glob("*/server.lock"))


class ServerFiles(Struct, frozen=True):
    """The directory of one server and the files in it."""

    root: Path

    def make(self) -> None:
        """Create the directory for this user alone; refuse a link and a directory of another user.

        It holds the server's token.
        """
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self.root.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise SparkUnavailable(f"{self.root} is not a folder of yours", hint="remove it, or set XDG_CACHE_HOME")
        if stat.S_IMODE(found.st_mode) != 0o700:
            self.root.chmod(0o700)

    def scratch(self, local_dirs: str) -> list[Path]:
        """Return where Spark keeps its blocks: a directory of the server's own below each of SPARK_LOCAL_DIRS.

        Spark makes block files readable for every user, so a directory above them must be private.
        """
        parents = [Path(parent) for parent in local_dirs.split(",") if os.path.isabs(parent)]
        return [parent / f"bayou-{self.root.name}" for parent in parents] or [self.work]

    def record_session(self) -> None:
        """Count one more session that was opened on this server."""
        with self.sessions.open("ab") as file:
            file.write(b".")

    def session_count(self) -> int:
        """Return how many sessions were opened on this server since it started."""
        try:
            return self.sessions.stat().st_size
        except FileNotFoundError:
            return 0

    @property
    def record(self) -> Path:
        """How to reach the server, and its token (`ServerRecord`)."""
        return self.root / "server.json"

    @property
    def server_lock(self) -> Path:
        """The server itself holds this lock while it lives; the file has its process id."""
        return self.root / "server.lock"

    @property
    def control_lock(self) -> Path:
        """A command holds this lock while it starts or stops the server."""
        return self.root / "turn.lock"

    @property
    def use_lock(self) -> Path:
        """Each open session holds this lock, shared; the file's mtime is the time of the last use."""
        return self.root / "use.lock"

    @property
    def watch_lock(self) -> Path:
        """The watcher holds this lock while it lives."""
        return self.root / "watch.lock"

    @property
    def sessions(self) -> Path:
        """One byte for each session that was opened on the server."""
        return self.root / "sessions"

    @property
    def identity(self) -> Path:
        """The server's `Identity` in full."""
        return self.root / "identity.json"

    @property
    def log(self) -> Path:
        """The output of Spark, its JVM and its Python workers."""
        return self.root / "spark.log"

    @property
    def work(self) -> Path:
        """Spark's temporary files."""
        return self.root / "work"

    @property
    def classes(self) -> Path:
        """The class archive that a server without one dumps when it ends."""
        return self.root / "classes.jsa"


def start_detached(
    command: Sequence[str], *, cwd: Path, log: Path, env: Mapping[str, str], inherit: Sequence[int] = ()
) -> int:
    """Start a process that outlives this one, in a process session of its own; return its id.

    The process appends its output to `log` and inherits the file descriptors `inherit`.
    """
    started = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _START, str(log), *command],
        cwd=cwd,
        env=dict(env),
        pass_fds=inherit,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    return int(started.stdout)


def terminate(files: ServerFiles, *, keep_archive: bool = False) -> bool:
    """End the server, if it runs, and return once it is gone; say whether it ran.

    The server gets SIGTERM at once and SIGKILL after a grace of seconds. A server without a class archive would dump
    one at its end, which takes a minute: this waits for the dump only if `keep_archive` is set.
    """
    if not is_locked(files.server_lock):
        files.record.unlink(missing_ok=True)
        return False
    grace = _ARCHIVE_S if keep_archive and files.classes.exists() else GRACE_S
    for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, _KILLED_S)):
        signal_server(files, number)
        if _wait_for_end(files, seconds):
            break
    files.record.unlink(missing_ok=True)
    return True


def signal_server(files: ServerFiles, number: int) -> None:
    """Send a signal to the server, if it lives. While its lock is held, the recorded process id is the server's."""
    try:
        pid = int(files.server_lock.read_text())
    except (FileNotFoundError, ValueError):
        return  # no server was started, or the starting command died before it wrote the process id
    if is_locked(files.server_lock):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass  # the server ended between the check and the signal


def _wait_for_end(files: ServerFiles, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while is_locked(files.server_lock):
        if time.monotonic() >= end:
            return False
        time.sleep(_POLL_S)
    return True


class ServerRecord(SelectiveStruct, frozen=True):
    """How to reach a running server. A client compares `identity` with what the server itself reports (`IDENTITY`)."""

    unshown: ClassVar[tuple[str, ...]] = ("token",)

    port: int
    pid: int
    identity: str
    token: str

    @property
    def url(self) -> str:
        return f"sc://localhost:{self.port}"


def read_record(files: ServerFiles) -> ServerRecord | None:
    """Return the record of a server; None if there is none, or if it is not well-formed."""
    try:
        found = ServerRecord(**json.loads(files.record.read_text()))
    except (OSError, ValueError, TypeError):
        return None
    kinds = (found.port, int), (found.pid, int), (found.identity, str), (found.token, str)
    return found if all(isinstance(value, kind) for value, kind in kinds) else None


def write_record(files: ServerFiles, record: ServerRecord) -> None:
    """Write the record atomically, readable for this user alone."""
    with atomic_file(files.record, mode=0o600, temporary=files.record.with_suffix(".new")) as file:
        file.write(json.dumps(asdict(record)).encode())
