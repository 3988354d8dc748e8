"""Whose server it is: one that differs in any of this is another server, and is never used by mistake.

What a server and its Python workers find in their environment: what they need, and no credential.

A server serves many callers. So it inherits nothing by default; what it gets of its first caller's environment is
named here and is part of its identity, so that a caller with other values gets a server of its own.

The Spark that came with pyspark, found without importing it.

How much of this machine, or of this container, a server may take.

Processes that outlive the command that starts them.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict

from bayou.core.errors import SparkUnavailable
from bayou.spark.java import Java

LOCAL_DIRS = "SPARK_LOCAL_DIRS"
"""Tells Spark where to keep blocks; several directories have commas between them."""

_NEEDED = ("HOME", "USER", "LD_LIBRARY_PATH", "PYTHONPATH", LOCAL_DIRS, "SSL_CERT_DIR", "SSL_CERT_FILE")
_PROXIES = ("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY")
_CLUSTER = ("HADOOP_CONF_DIR", "HADOOP_USER_NAME", "KRB5CCNAME", "KRB5_CONFIG", "SPARK_CONF_DIR", "YARN_CONF_DIR")

LOCAL_ADDRESS = "127.0.0.1"

SOURCE = Path(__file__).resolve().parents[3]
"""From where workers import Bayou."""


def is_local(master: str) -> bool:
    """Say whether a master runs everything on this machine, inside the server."""
    return master.startswith("local") and not master.startswith("local-cluster")


def inherited(master: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what a server takes over from its caller. A proxy that is named with a password is not."""
    names = _NEEDED if is_local(master) else _NEEDED + _CLUSTER
    found = {name: environ[name] for name in names if environ.get(name)}
    for name in (*_PROXIES, *map(str.lower, _PROXIES)):
        if environ.get(name) and "@" not in environ[name]:
            found[name] = environ[name]
    return found


def server_environment(
    master: str, taken: Mapping[str, str], *, java_home: Path, spark_home: Path, scratch: Sequence[Path]
) -> dict[str, str]:
    """Return the whole environment of a server that keeps its blocks in `scratch`."""
    made = {
        **taken,
        LOCAL_DIRS: ",".join(map(str, scratch)),
        "PATH": os.defpath.lstrip(":"),
        "LANG": "C.UTF-8",
        "JAVA_HOME": str(java_home),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(SOURCE), taken.get("PYTHONPATH")))),
        # Of obstore's threads that drive connections: there is a worker for each core already.
        "TOKIO_WORKER_THREADS": "1",
    }
    if is_local(master):
        # Without SPARK_HOME workers import pyspark from where it is installed, compiled, and not out of a zip file.
        made["SPARK_LOCAL_IP"] = LOCAL_ADDRESS
    else:
        made["SPARK_HOME"] = str(spark_home)
    return made


class SparkHome(Struct, frozen=True):
    """An installed Spark."""

    root: Path
    version: str

    @property
    def jars(self) -> list[Path]:
        """Its classes, in the same order every time: an archive of them is good for one order."""
        return sorted((self.root / "jars").glob("*.jar"))


def find_spark() -> SparkHome:
    """Return the Spark of this Python environment."""
    spec = find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise SparkUnavailable("pyspark is not installed here", hint="install Bayou again, with what it depends on")
    home = SparkHome(Path(spec.submodule_search_locations[0]), version("pyspark"))
    if not (home.root / "jars").is_dir():
        raise SparkUnavailable(
            f"{home.root} has no Spark of its own, only its client",
            hint="install the package pyspark, or set [spark] remote in bayou.toml",
        )
    return home


class Identity(Struct, frozen=True):
    """The user, the Python environment, the programs and the settings that a server was started with."""

    uid: int
    prefix: str
    python: str
    source: str
    master: str
    inherited: Mapping[str, str]
    java_home: str
    java: str
    spark_home: str
    spark: str
    bayou: str
    code: str

    @property
    def key(self) -> str:
        return _digest(json.dumps(asdict(self), sort_keys=True))

    def outdates(self, other: Identity) -> bool:
        """Say whether `other` is this one with other versions: once nobody uses it, nobody will."""
        return self != other and self._place == other._place

    @property
    def _place(self) -> tuple[object, ...]:
        return (self.uid, self.prefix, self.python, self.source, self.master, dict(self.inherited))

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Identity:
        """Read it back; `ValueError` if it is something else."""
        try:
            return cls(**json.loads(text))
        except TypeError as error:
            raise ValueError(str(error)) from None


def identify(master: str, java: Java, spark: SparkHome, environ: Mapping[str, str] | None = None) -> Identity:
    """Return the identity of a server that this process would start for `master`."""
    return Identity(
        uid=os.getuid(),
        prefix=sys.prefix,
        python=sys.executable,
        source=str(SOURCE),
        master=master,
        inherited=inherited(master, os.environ if environ is None else environ),
        java_home=str(java.home),
        java=java.version,
        spark_home=str(spark.root),
        spark=spark.version,
        bayou=_bayou_version(),
        code=files_digest(sorted(Path(__file__).parent.glob("*.py"))),  # kernels may change: their workers are new
    )


def files_digest(files: Iterable[Path]) -> str:
    """Return a digest that changes when one of the files does, by size and time."""
    found = []
    for file in files:
        try:
            stat = file.stat()
        except FileNotFoundError:
            continue  # renamed away a moment ago; what came in its place counts the next time
        found.append((str(file), stat.st_size, stat.st_mtime_ns))
    return _digest(json.dumps(found))


def _bayou_version() -> str:
    try:
        return version("bayou")
    except PackageNotFoundError:
        return ""  # run from its source, which `code` stands for


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


_MIB = 1 << 20
_LEAST_HEAP = 512 * _MIB
_HEAP = 1024 * _MIB
_HEAP_PER_CORE = 256 * _MIB
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def cores() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory() -> int:
    """Return the memory of this machine in bytes, or less where a container is given less."""
    known = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for file in _LIMITS:
        try:
            known.append(int(Path(file).read_text()))
        except (OSError, ValueError):  # no such limit; "max"
            continue
    return min(known)


def heap(memory: int, cores: int) -> int:
    """Return the largest heap for Spark, in bytes.

    It grows with the cores, each of which works on a partition, up to a quarter of the memory: the Python workers,
    one for each core, hold the records and need the rest.
    """
    wanted = min(memory // 4, _HEAP + cores * _HEAP_PER_CORE)
    return max(_LEAST_HEAP, wanted) // _MIB * _MIB


# Forks in a process that has no threads; what is started is nobody's child, so nobody has to wait for its end.
_START = """
import os, sys
log, command = sys.argv[1], sys.argv[2:]
pid = os.fork()
if pid:
    print(pid)
    sys.exit()
os.setsid()
nowhere, out = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
os.dup2(nowhere, 0), os.dup2(out, 1), os.dup2(out, 2)
try:
    os.execv(command[0], command)
except OSError as error:
    print(f"{command[0]}: {error.strerror}", file=sys.stderr)
    os._exit(127)
"""


def start_detached(
    command: Sequence[str], *, cwd: Path, log: Path, env: Mapping[str, str], inherit: Sequence[int] = ()
) -> int:
    """Start a process in a session of its own, away from this terminal; return its id. `log` gets what it prints."""
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


def watch_environment() -> dict[str, str]:
    """Return the little that a watcher needs."""
    return {name: os.environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH") if name in os.environ}
