"""The settings of a server: the JVM options, Spark properties and logging configuration that it reads at its start.

The server reads them from three files in its directory, so that no secret and no long class path is on a command line.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from uuid import UUID

from bayou.spark.server.files import LONGEST_SOCKET, ServerFiles
from bayou.spark.server.identity import LOCAL_ADDRESS, is_local

IDENTITY = "spark.bayou.identity"
"""The Spark property by which a client checks that it talks to the server of the record."""

_SUBMIT = "org.apache.spark.deploy.SparkSubmit"
_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
LISTENS = "Spark Connect server started at: "
"""The words that the server logs before its address, once it listens."""

# The packages that Spark's own launcher opens (org.apache.spark.launcher.JavaModuleOptions), without those for its ML.
_OPENED = (
    *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util"),
    *("java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref", "sun.nio.ch", "sun.nio.cs"),
    *("sun.security.action", "sun.util.calendar"),
)
_JVM = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
    "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    "--enable-native-access=ALL-UNNAMED",
    "--sun-misc-unsafe-memory-access=allow",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    # A fast start counts more than peak speed: Python workers process the records, the JVM only moves them.
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:MetaspaceSize=256m",  # otherwise Spark's classes cause four full collections before it listens
    "-XX:-UsePerfData",
    "-Xlog:disable",
    "-Xlog:all=error:stderr",
    "-Duser.timezone=UTC",
    "-Djava.net.preferIPv4Stack=true",
    "-XX:+ExitOnOutOfMemoryError",
)

_MIB = 1 << 20
_LEAST_HEAP = 512 * _MIB
_HEAP = 1024 * _MIB
_HEAP_PER_CORE = 256 * _MIB
_MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")

_LOGGING = f"""\
rootLogger.level = warn
rootLogger.appenderRef.err.ref = err
appender.err.type = Console
appender.err.name = err
appender.err.target = SYSTEM_ERR
appender.err.layout.type = PatternLayout
appender.err.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
# Logs where the server listens: "{LISTENS}…".
logger.server.name = {_SERVER}
logger.server.level = info
# Would log the errors that the client receives anyway, and the calls that a closed session leaves unanswered.
logger.answers.name = org.apache.spark.sql.connect.utils.ErrorUtils
logger.answers.level = off
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
"""


def main_class(master: str, settings: Path) -> list[str]:
    """Return the end of the command line: the main class, which starts a Connect server with the properties of a file.

    For a cluster, Spark also reads the administrator's `spark-defaults.conf` (SPARK_CONF_DIR).
    """
    defaults = [] if is_local(master) else ["--load-spark-defaults"]
    return [_SUBMIT, "--properties-file", str(settings), *defaults, "--class", _SERVER, "spark-internal"]


def write_logging(files: ServerFiles) -> Path:
    """Write the logging configuration: warnings and errors go to stderr, which is the server's log file."""
    return _write(files.root / "log4j2.properties", _LOGGING)


def write_java(files: ServerFiles, jars: Iterable[Path], extra: Iterable[str]) -> Path:
    """Write the JVM's command line up to its main class, heap size and class path included."""
    heap = heap_size(memory(), cores())
    lines = [
        *_JVM,
        f"-Xms{min(heap, 256 << 20)}",
        f"-Xmx{heap}",
        f"-Djava.io.tmpdir={files.work}",
        f"-Dlog4j2.configurationFile={write_logging(files).as_uri()}",
        *extra,
        "-cp",
        ":".join(map(str, jars)),
    ]
    return _write(files.root / "java.args", "\n".join(map(_java_quoted, lines)) + "\n")


def write_spark(files: ServerFiles, master: str, *, token: str, identity: str) -> Path:
    """Write the Spark properties, the token among them: other users can read command lines, but not this file."""
    lines = (f"{key}={_property(value)}" for key, value in _settings(files, master, token, identity).items())
    return _write(files.root / "spark.properties", "\n".join(lines) + "\n")


def cores() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory() -> int:
    """Return the memory of this machine, or of this container if that has less, in bytes."""
    known = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for file in _MEMORY_LIMITS:
        try:
            known.append(int(Path(file).read_text()))
        except (OSError, ValueError):  # there is no such limit, or it is "max"
            continue
    return min(known)


def heap_size(memory: int, cores: int) -> int:
    """Return the largest heap of the JVM in bytes.

    It grows with the cores, each of which works on a partition, up to a quarter of the memory: the Python workers, one
    for each core, hold the records and need the rest.
    """
    wanted = min(memory // 4, _HEAP + cores * _HEAP_PER_CORE)
    return max(_LEAST_HEAP, wanted) // _MIB * _MIB


def _settings(files: ServerFiles, master: str, token: str, identity: str) -> Mapping[str, str]:
    settings = {
        "spark.master": master,
        "spark.app.name": "bayou",
        IDENTITY: identity,
        "spark.connect.authenticate.token": token,
        "spark.connect.grpc.binding.address": LOCAL_ADDRESS,
        "spark.connect.grpc.binding.port": "0",
        "spark.ui.enabled": "false",
        # On a new server, the answer to a task that asks for a class is sometimes lost; not to wait 120 s for it.
        "spark.files.io.connectionTimeout": "10s",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": (files.work / "warehouse").as_uri(),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.runSQLOnFiles": "false",  # V23: a query reads no file of this machine
        "spark.sql.variable.substitute": "false",  # V23: and no variable of the server, ${env:…}
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.pyspark.fallback.enabled": "false",
        "spark.python.worker.faulthandler.enabled": "true",
    }
    if is_local(master):
        settings |= {
            "spark.driver.bindAddress": LOCAL_ADDRESS,
            "spark.driver.host": LOCAL_ADDRESS,
            # V26: blocks hold kernels, and kernels hold credentials. On its ports for RPC and blocks Spark serves only
            # clients that know this secret. None has to know it: the executor is in the server's own process.
            "spark.authenticate": "true",
            "spark.authenticate.secret": secrets.token_hex(32),
            "spark.network.crypto.enabled": "true",
            "spark.network.crypto.saslFallback": "false",
            # Over TCP every task waits 40 ms: the JVM writes small pieces, and the kernel delays the second one until
            # the (also delayed) acknowledgement of the first (Nagle's algorithm).
            "spark.python.unix.domain.socket.enabled": str(_has_room(files)).lower(),
            # Two for each core, so that one long task leaves no core idle.
            "spark.sql.shuffle.partitions": str(2 * cores()),
        }
    return settings


def _has_room(files: ServerFiles) -> bool:
    """Return whether the path of a socket, `.UUID.sock` in the work directory, is short enough."""
    return len(os.fsencode(files.work)) + len(f"/.{UUID(int=0)}.sock") <= LONGEST_SOCKET


def _write(path: Path, text: str) -> Path:
    path.unlink(missing_ok=True)
    with open(path, "x", encoding="utf-8", opener=_private) as file:
        file.write(text)
    return path


def _private(path: str, flags: int) -> int:
    """Open a file that only this user may read (an `opener` for `open`)."""
    return os.open(path, flags, 0o600)


def _java_quoted(argument: str) -> str:
    return json.dumps(argument, ensure_ascii=False)


def _property(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")
