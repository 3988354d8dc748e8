"""How a server is told to run: three files that its JVM reads while it starts."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from uuid import UUID

from bayou.spark.server import identity as machine
from bayou.spark.server.files import LONGEST_SOCKET, ServerFiles
from bayou.spark.server.identity import LOCAL_ADDRESS, is_local

IDENTITY = "spark.bayou.identity"
"""The setting by which a client knows that it talks to the server that it was looking for."""

_SUBMIT = "org.apache.spark.deploy.SparkSubmit"
_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
LISTENS = "Spark Connect server started at: "
"""What the server logs once it listens, before its address."""

# What Spark's own launcher opens (org.apache.spark.launcher.JavaModuleOptions), but for the modules of its ML library.
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
    # Start-up before peak speed: the records are worked on in Python, the JVM only moves them.
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:MetaspaceSize=256m",  # else the classes of Spark cause four full collections before it listens
    "-XX:-UsePerfData",
    "-Xlog:disable",
    "-Xlog:all=error:stderr",
    "-Duser.timezone=UTC",
    "-Djava.net.preferIPv4Stack=true",
    "-XX:+ExitOnOutOfMemoryError",
)

_LOGGING = f"""\
rootLogger.level = warn
rootLogger.appenderRef.err.ref = err
appender.err.type = Console
appender.err.name = err
appender.err.target = SYSTEM_ERR
appender.err.layout.type = PatternLayout
appender.err.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
# Says where the server listens: "{LISTENS}…".
logger.server.name = {_SERVER}
logger.server.level = info
# Repeats to the log what the client is told anyway, and what a closed session leaves unanswered.
logger.answers.name = org.apache.spark.sql.connect.utils.ErrorUtils
logger.answers.level = off
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
"""


def main_class(master: str, settings: Path) -> list[str]:
    """Return the rest of the command line: Spark's own way to start a server with the settings of a file.

    In front of a cluster, what its administrator has put into `spark-defaults.conf` (SPARK_CONF_DIR) counts too.
    """
    defaults = [] if is_local(master) else ["--load-spark-defaults"]
    return [_SUBMIT, "--properties-file", str(settings), *defaults, "--class", _SERVER, "spark-internal"]


def write_logging(place: ServerFiles) -> Path:
    """Write how to log: warnings and errors, to the server's stderr, which is its log file."""
    return _write(place.root / "log4j2.properties", _LOGGING)


def write_java(place: ServerFiles, jars: Iterable[Path], extra: Iterable[str]) -> Path:
    """Write the JVM's command line up to its main class; the class path alone would fill a screen."""
    heap = machine.heap(machine.memory(), machine.cores())
    lines = [
        *_JVM,
        f"-Xms{min(heap, 256 << 20)}",
        f"-Xmx{heap}",
        f"-Djava.io.tmpdir={place.work}",
        f"-Dlog4j2.configurationFile={write_logging(place).as_uri()}",
        *extra,
        "-cp",
        ":".join(map(str, jars)),
    ]
    return _write(place.root / "java.args", "\n".join(map(_java_quoted, lines)) + "\n")


def write_spark(place: ServerFiles, master: str, *, token: str, identity: str) -> Path:
    """Write Spark's settings, the token among them: so it stands on nobody's command line."""
    lines = (f"{key}={_property(value)}" for key, value in _settings(place, master, token, identity).items())
    return _write(place.root / "spark.properties", "\n".join(lines) + "\n")


def _settings(place: ServerFiles, master: str, token: str, identity: str) -> Mapping[str, str]:
    found = {
        "spark.master": master,
        "spark.app.name": "bayou",
        IDENTITY: identity,
        "spark.connect.authenticate.token": token,
        "spark.connect.grpc.binding.address": LOCAL_ADDRESS,
        "spark.connect.grpc.binding.port": "0",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": (place.work / "warehouse").as_uri(),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.runSQLOnFiles": "false",  # V23: a query reads no file of this machine,
        "spark.sql.variable.substitute": "false",  # and no ${env:…}
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.pyspark.fallback.enabled": "false",
        "spark.python.worker.faulthandler.enabled": "true",
    }
    if is_local(master):
        found |= {
            "spark.driver.bindAddress": LOCAL_ADDRESS,
            "spark.driver.host": LOCAL_ADDRESS,
            # V26: blocks hold kernels, and kernels hold credentials. Spark obeys nobody on either of its ports (RPC and
            # blocks) who does not know the secret. Nobody else has to: the executor is in the same process.
            "spark.authenticate": "true",
            "spark.authenticate.secret": secrets.token_hex(32),
            "spark.network.crypto.enabled": "true",
            "spark.network.crypto.saslFallback": "false",
            # Over TCP every task waits for 40 ms: what the JVM writes in small pieces is held back until the first is
            # acknowledged, and nobody hurries to do that.
            "spark.python.unix.domain.socket.enabled": str(_has_room(place)).lower(),
            # Two for each core, so that an uneven one does not leave the others without work.
            "spark.sql.shuffle.partitions": str(2 * machine.cores()),
        }
    return found


def _has_room(place: ServerFiles) -> bool:
    """Whether the name of a socket (a UUID with a dot before and an ending) fits behind that of the folder for them."""
    return len(os.fsencode(place.work)) + len(f"/.{UUID(int=0)}.sock") <= LONGEST_SOCKET


def _write(path: Path, text: str) -> Path:
    path.unlink(missing_ok=True)
    with open(path, "x", encoding="utf-8", opener=private) as file:
        file.write(text)
    return path


def private(path: str, flags: int) -> int:
    """Open a file that only this user may read."""
    return os.open(path, flags, 0o600)


def _java_quoted(argument: str) -> str:
    return json.dumps(argument, ensure_ascii=False)


def _property(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")
