"""What a server and its Python workers find in their environment: what they need, and no credential.

A server serves many callers. So it inherits nothing by default; what it gets of its first caller's environment is
named here and is part of its identity, so that a caller with other values gets a server of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

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
