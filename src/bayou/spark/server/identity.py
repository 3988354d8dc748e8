"""The identity of a server: everything that makes two servers different, so that no command uses a wrong one.

A server serves many commands of one user. It therefore inherits nothing from the environment of the command that starts
it, except the variables named here. They hold no credentials (V26) and are part of the identity, so that a command with
other values gets a server of its own. This module also finds the Spark that is installed with pyspark, without
importing pyspark.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict

from bayou.core.errors import SparkUnavailable
from bayou.core.extras import SPARK
from bayou.spark.java import Java

LOCAL_DIRS = "SPARK_LOCAL_DIRS"
"""The variable that tells Spark where to keep blocks: directories, separated by commas."""

_NEEDED = ("HOME", "USER", "LD_LIBRARY_PATH", "PYTHONPATH", LOCAL_DIRS, "SSL_CERT_DIR", "SSL_CERT_FILE")
_PROXIES = ("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY")
_CLUSTER = ("HADOOP_CONF_DIR", "HADOOP_USER_NAME", "KRB5CCNAME", "KRB5_CONFIG", "SPARK_CONF_DIR", "YARN_CONF_DIR")

LOCAL_ADDRESS = "127.0.0.1"

SOURCE = Path(__file__).resolve().parents[3]
"""The directory from which workers import Bayou."""


def is_local(master: str) -> bool:
    """Return whether a master runs all tasks on this machine, inside the server."""
    return master.startswith("local") and not master.startswith("local-cluster")


def inherited(master: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a server inherits from its caller; a proxy only if its URL has no password."""
    names = _NEEDED if is_local(master) else _NEEDED + _CLUSTER
    found = {name: environ[name] for name in names if environ.get(name)}
    for name in (*_PROXIES, *map(str.lower, _PROXIES)):
        if environ.get(name) and "@" not in environ[name]:
            found[name] = environ[name]
    return found


def server_environment(
    master: str, variables: Mapping[str, str], *, java_home: Path, spark_home: Path, scratch: Sequence[Path]
) -> dict[str, str]:
    """Return the whole environment of a server that keeps its blocks in the directories `scratch`."""
    environment = {
        **variables,
        LOCAL_DIRS: ",".join(map(str, scratch)),
        "PATH": os.defpath.lstrip(":"),
        "LANG": "C.UTF-8",
        "JAVA_HOME": str(java_home),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(SOURCE), variables.get("PYTHONPATH")))),
        # Threads of obstore in each worker: there is a worker for each core already.
        "TOKIO_WORKER_THREADS": "1",
    }
    if is_local(master):
        # Without SPARK_HOME workers import the installed, compiled pyspark instead of the one in Spark's zip file.
        environment["SPARK_LOCAL_IP"] = LOCAL_ADDRESS
    else:
        environment["SPARK_HOME"] = str(spark_home)
    return environment


class SparkHome(Struct, frozen=True):
    """An installed Spark."""

    root: Path
    version: str

    @property
    def jars(self) -> list[Path]:
        """The class path, always in the same order: a class archive fits one order."""
        return sorted((self.root / "jars").glob("*.jar"))


def find_spark() -> SparkHome:
    """Return the Spark of this Python environment; `SparkUnavailable` if only a client is installed."""
    spec = find_spec("pyspark")
    assert spec is not None  # `bayou.spark` cannot be imported without it
    home = SparkHome(Path((spec.submodule_search_locations or [""])[0]), spark_version())
    if not (home.root / "jars").is_dir():
        raise SparkUnavailable(
            f"{home.root} has no Spark of its own, only its client",
            hint=f"{SPARK.hint.partition(',')[0]}, or set [spark] remote in bayou.toml",
        )
    return home


def spark_version() -> str:
    """Return the version of Spark's Python package: the whole Spark, or only its client."""
    try:
        return version("pyspark")
    except PackageNotFoundError:
        return version("pyspark-client")


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
        """Return whether `other` differs only in versions: no command of this environment uses such a server again."""
        return self != other and self._environment == other._environment

    @property
    def _environment(self) -> tuple[object, ...]:
        return (self.uid, self.prefix, self.python, self.source, self.master, dict(self.inherited))

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Identity:
        """Read an identity; `ValueError` if the text is none."""
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
        bayou=bayou_version(),
        code=files_digest(
            sorted(Path(__file__).parent.glob("*.py"))
        ),  # not of kernels: each session's workers load them anew
    )


def files_digest(files: Iterable[Path]) -> str:
    """Return a digest that changes when the size or the mtime of a file does."""
    found = []
    for file in files:
        try:
            stat = file.stat()
        except FileNotFoundError:
            continue  # a concurrent replacement of the file; the next call sees the new one
        found.append((str(file), stat.st_size, stat.st_mtime_ns))
    return _digest(json.dumps(found))


def bayou_version() -> str:
    try:
        return version("bayou")
    except PackageNotFoundError:
        return ""  # Bayou runs from its source, which `code` identifies


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
