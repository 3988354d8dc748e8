"""A standalone Spark cluster of processes: a master and two workers, from the Spark that pip has brought.

The workers have another home and working directory than we, and file systems of their own: where a run of tests keeps
its files, they find an empty directory, as on another machine. Master and workers are started without Spark's scripts,
which start a JVM to print a command line.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

from bayou.spark.java import find_java
from bayou.spark.server.identity import SOURCE, find_spark
from bayou.spark.server.options import _JVM
from bayou_testing.processes import ServerProcess

WORKERS = 2
_START_S = 150.0
_ON = ("--host", "127.0.0.1", "--webui-port", "0")

_APART = """
import ctypes, os, sys
hidden, command = sys.argv[1], sys.argv[2:]
libc, user, group = ctypes.CDLL(None, use_errno=True), os.getuid(), os.getgid()
NEW_FILE_SYSTEMS, NEW_USERS, PRIVATE = 0x20000, 0x10000000, 1 << 14 | 1 << 18
def check(result):
    if result != 0:
        sys.exit(os.strerror(ctypes.get_errno()))
check(libc.unshare(NEW_FILE_SYSTEMS if user == 0 else NEW_FILE_SYSTEMS | NEW_USERS))
if user != 0:
    for name, text in ("uid_map", f"0 {user} 1"), ("setgroups", "deny"), ("gid_map", f"0 {group} 1"):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
check(libc.mount(b"none", b"/", None, PRIVATE, None))
check(libc.mount(b"tmpfs", os.fsencode(hidden), b"tmpfs", 0, None))
os.execv(command[0], command)
"""
"""Runs in a worker before it becomes one: whatever this machine has at a directory, the worker has nothing there."""

_DEFAULTS = """\
spark.driver.host 127.0.0.1
spark.driver.bindAddress 127.0.0.1
spark.executor.cores 1
spark.executor.memory 512m
spark.executor.extraJavaOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
spark.sql.shuffle.partitions 4
spark.scheduler.minRegisteredResourcesRatio 1.0
spark.scheduler.maxRegisteredResourcesWaitingTime 60s
spark.task.maxFailures 4
"""


_AUTHENTICATED = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}


@dataclass(frozen=True)
class Cluster:
    """A running cluster. `conf` is its SPARK_CONF_DIR, as an administrator would hand it out."""

    url: str
    conf: Path
    homes: Sequence[Path]

    def executors(self) -> list[str]:
        """Return what each executor has logged."""
        return [log.read_text(errors="replace") for home in self.homes for log in home.glob("work/*/*/stderr")]

    def tasks(self) -> list[int]:
        """Return how many tasks each executor has run."""
        return [len(re.findall(r"Running task \d", log)) for log in self.executors()]


def apart(hidden: Path, command: Sequence[str]) -> list[str]:
    """Return a command that runs another one, to which a directory of ours is an empty one."""
    return [sys.executable, "-I", "-S", "-c", _APART, str(hidden), *command]


def can_be_apart(directory: Path) -> bool:
    """Say whether this system lets us keep a directory from a process."""
    return subprocess.run(apart(directory, ["/bin/true"]), check=False, capture_output=True).returncode == 0


@contextmanager
def cluster(root: Path, hidden: Path, secret: str | None = None) -> Iterator[Cluster]:
    """Start a cluster whose log files are in `root`, and whose workers do not see `hidden`.

    One with a `secret` obeys only who knows it; its administrator hands that out with the rest of the configuration.
    """
    (root / "conf").mkdir()
    settings = {} if secret is None else {**_AUTHENTICATED, "spark.authenticate.secret": secret}
    told = _DEFAULTS + "".join(f"{name} {value}\n" for name, value in settings.items())
    (root / "conf" / "spark-defaults.conf").write_text(told)
    with ExitStack() as ends:
        own = _start(ends, root, "master", [*_ON, "--port", "0"], root, settings=settings)
        url = _said(own, root / "master.log", r"Starting Spark master at (spark://\S+)")[0]
        homes = [Path(ends.enter_context(TemporaryDirectory(prefix="bayou-worker-"))) for _ in range(WORKERS)]
        for number, home in enumerate(homes):
            options = [*_ON, "--cores", "1", "--memory", "600m", "--work-dir", str(home / "work"), url]
            _start(ends, root, f"worker{number}", options, home, hidden, settings)
        _said(own, root / "master.log", r"Registering worker", WORKERS)
        yield Cluster(url, root / "conf", homes)


def _start(
    ends: ExitStack,
    root: Path,
    name: str,
    options: Sequence[str],
    home: Path,
    hidden: Path | None = None,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> ServerProcess:
    java, spark = find_java(), find_spark()
    kind = "master.Master" if hidden is None else "worker.Worker"
    command = [
        str(java.binary),
        *(one for one in _JVM if not one.startswith("-Xlog")),
        "-Xmx256m",
        "-Dspark.master.rest.enabled=false",
        *(f"-D{setting}={value}" for setting, value in settings.items()),
    ]
    command += ["-cp", f"{spark.root / 'jars'}/*", f"org.apache.spark.deploy.{kind}", *options]
    if hidden is not None:
        command = apart(hidden, command)
    environ = {
        "HOME": str(home),
        "JAVA_HOME": str(java.home),
        "SPARK_HOME": str(spark.root),
        "SPARK_SCALA_VERSION": "2.13",  # else its own launcher looks for a build tree
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": str(SOURCE),  # Bayou, where the workers' environment has it
    }
    process = ServerProcess(command, log=root / f"{name}.log", cwd=home, env=environ)
    ends.callback(process.kill)
    return process


def _said(process: ServerProcess, log: Path, pattern: str, times: int = 1) -> list[str]:
    """Wait until a log has a text so many times."""
    until = time.monotonic() + _START_S
    while True:
        found = re.findall(pattern, log.read_text(errors="replace"))
        if len(found) >= times:
            return found
        if not process.alive() or time.monotonic() > until:
            raise AssertionError(f"no {pattern!r} in {log}:\n{process.log_tail()}")
        time.sleep(0.05)
