"""What another local process gets from the warm server: nothing, on no socket of it and in no file of it (17.3).

Spark's own transport is spoken here by hand: a frame is its length, a type, a header and a body.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow
import pytest

from bayou.config import SparkConfig
from bayou.core.errors import SparkFailed
from bayou.objectstore.spec import StoreSpec
from bayou.spark.server.control import SparkServer
from bayou.spark.session import spark_session
from tests.spark.conftest import SECRET
from tests.spark.test_server import eventually

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not Path("/proc/self/net/unix").exists(), reason="there is no other way to list sockets"),
]

CHUNK, CHUNK_CAME, RPC, RPC_DONE, RPC_FAILED, STREAM, STREAM_CAME, ONE_WAY = 0, 1, 3, 4, 5, 6, 7, 9
GIVEN = {CHUNK_CAME, RPC_DONE, STREAM_CAME}
"""The types of answers that bring what was asked for."""

IN_KERNEL = "a-key-that-travels-in-a-kernel"
BROADCASTS = 300
LISTENING_TCP, LISTENING_UNIX = "0A", "00010000"


# ---- Spark's transport ----


def text(value: str) -> bytes:
    return struct.pack("!i", len(value)) + value.encode()


def frame(kind: int, header: bytes, body: bytes = b"") -> bytes:
    return struct.pack("!qb", 9 + len(header) + len(body), kind) + header + body


def rpc(body: bytes) -> bytes:
    return frame(RPC, struct.pack("!qi", 1, len(body)), body)


def open_blocks(*names: str) -> bytes:
    """The request for blocks; it is answered with the number of a stream that has them as chunks."""
    return rpc(b"\0" + text("app") + text("driver") + struct.pack("!i", len(names)) + b"".join(map(text, names)))


class Stranger:
    """A process on this machine that knows the port and not the secret."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=20)

    def __enter__(self) -> Stranger:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, message: bytes) -> tuple[int | None, bytes]:
        """Send a frame; return the type and the rest of the answer, or None if the connection is closed instead."""
        try:
            self._socket.sendall(message)
            head = self._read(9)
            size, kind = struct.unpack("!qb", head)
            return kind, self._read(size - 9)
        except (EOFError, ConnectionError):
            return None, b""

    def closed(self) -> bool:
        try:
            return self._socket.recv(1) == b""
        except ConnectionError:
            return True

    def blocks(self) -> Iterator[bytes]:
        """Yield what the server gives away of what it has broadcast to its tasks."""
        for number in range(BROADCASTS):
            kind, answer = self.ask(open_blocks(f"broadcast_{number}_piece0"))
            if kind == RPC_DONE:
                stream = answer[13:21]
                kind, chunk = self.ask(frame(CHUNK, stream + struct.pack("!i", 0)))
                yield chunk
            elif kind is None:
                return

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data


# ---- the processes of a server and their sockets ----


@dataclass(frozen=True)
class Listening:
    process: int
    address: str
    """A path, or a host and a port in hexadecimal digits."""

    @property
    def port(self) -> int | None:
        return None if self.address.startswith("/") else int(self.address.rpartition(":")[2], 16)


def processes_of(warm: SparkServer) -> list[int]:
    """Return the server, its Python daemons and workers: every process that works in its folder or is told of it."""
    found, root = [], os.fsencode(warm.files.root)
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            told = (folder / "environ").read_bytes() + (folder / "cmdline").read_bytes()
            works = os.fsencode(os.readlink(folder / "cwd"))
        except OSError:
            continue  # it has ended, or is somebody else's
        if (root in told or works.startswith(root)) and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


def sockets_of(warm: SparkServer) -> list[Listening]:
    """Return every socket on which a process of the server listens."""
    found, tables = [], Path("/proc/self/net")  # a process may end while it is looked at; all have the same network
    for process in processes_of(warm):
        try:
            links = [os.readlink(link) for link in Path(f"/proc/{process}/fd").iterdir()]
        except OSError:
            continue
        inodes = {link[8:-1] for link in links if link.startswith("socket:[")}
        for table in ("tcp", "tcp6"):
            for line in (tables / table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTENING_TCP and fields[9] in inodes:
                    found.append(Listening(process, fields[1]))
        for line in (tables / "unix").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING_UNIX and fields[6] in inodes:
                found.append(Listening(process, fields[7] if len(fields) > 7 else "/"))
    return found


@pytest.fixture
def working(warm: SparkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkServer]:
    """A server in the middle of a job whose kernel holds credentials."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "me")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", IN_KERNEL)
    spec = StoreSpec.of("s3://bucket", None, {})

    def wait(batches):
        import time

        assert spec.aws_keys
        spec.open()
        (tmp_path / "running").touch()
        while not (tmp_path / "over").exists():
            time.sleep(0.05)
        yield from batches

    counted: list[int] = []
    with spark_session(SparkConfig()) as spark:
        job = threading.Thread(
            target=lambda: counted.append(len(spark.range(0, 8, 1, 1).mapInArrow(wait, "id long").collect()))
        )
        job.start()
        try:
            eventually((tmp_path / "running").exists)
            yield warm
        finally:
            (tmp_path / "over").touch()
            job.join()
    assert counted == [8], "the job itself works"


def spark_ports(warm: SparkServer) -> list[int]:
    """Return the ports of the JVM that speak Spark's transport: all but that of Connect."""
    record = warm.running()
    assert record is not None
    ports = [one.port for one in sockets_of(warm) if one.process == record.pid]
    return [port for port in ports if port is not None and port != record.port]


def test_17_3_no_socket_but_of_a_known_kind_is_open_and_none_to_the_network(working: SparkServer) -> None:
    found = sockets_of(working)
    over_tcp = [one for one in found if one.port is not None]
    record = working.running()
    assert record is not None

    assert {one.process for one in over_tcp} == {record.pid}
    assert len(over_tcp) == 3, "Connect, RPC and blocks; no user interface, no debugger"
    assert {one.address.rpartition(":")[0][-8:] for one in over_tcp} == {"0100007F"}
    files = [Path(one.address) for one in found if one.port is None]
    assert files, "a daemon's"
    assert all(file.is_relative_to(working.files.root) for file in files)
    for folder in {working.files.root, working.files.work, working.files.root.parent}:
        found_stat = folder.stat()
        assert found_stat.st_uid == os.getuid()
        if folder != working.files.root.parent:
            assert stat.S_IMODE(found_stat.st_mode) == 0o700


def test_17_3_a_stranger_reads_no_block_of_a_running_job(working: SparkServer) -> None:
    """Before Spark authenticated its callers, a kernel came back, and the key of its spec in it."""
    for port in spark_ports(working):
        with Stranger(port) as stranger:
            given = list(stranger.blocks())
            assert not [block for block in given if IN_KERNEL.encode() in block]
            assert given == []
        with Stranger(port) as stranger:
            assert stranger.ask(open_blocks())[0] not in GIVEN


def test_17_3_a_stranger_s_request_is_refused_before_it_is_read(working: SparkServer) -> None:
    """Spark's requests are serialised Java objects: to read one is to obey it."""
    ports = spark_ports(working)
    assert len(ports) == 2
    for port in ports:
        for body in (b"", b"anything at all", b"\0" + text("app"), b"\xea" + bytes(64)):
            with Stranger(port) as stranger:
                kind, answer = stranger.ask(rpc(body))
                assert kind in (RPC_FAILED, None)
                assert kind is None or b"challenge" in answer.lower()
                assert stranger.closed()
        with Stranger(port) as stranger:
            kind, answer = stranger.ask(frame(ONE_WAY, struct.pack("!i", 8), b"anything") + rpc(b"and more"))
            assert kind not in GIVEN


def test_17_3_the_file_server_has_nothing_to_give(warm: SparkServer) -> None:
    """Spark answers requests for files before it knows who asks. So there must be none, nor a way to others."""
    up = "../" * 20
    names = ["/files/a", "/jars/a", "/artifacts/a", f"/artifacts/{up}etc/passwd", "/artifacts/../../server.json"]
    names += ["1_0", "/artifacts//etc/passwd", f"/classes/{up}etc/passwd"]
    with spark_session(SparkConfig()) as spark:  # what does not fit into a plan is sent as an artifact
        rows = pyarrow.table({"id": range(500_000)})
        assert spark.createDataFrame(rows).count() == 500_000
    for port in spark_ports(warm):
        for name in names:
            with Stranger(port) as stranger:
                assert stranger.ask(frame(STREAM, text(name)))[0] not in GIVEN
        with Stranger(port) as stranger:
            assert stranger.ask(frame(CHUNK, struct.pack("!qi", 1, 0)))[0] not in GIVEN
    served = [file for folder in warm.files.work.glob("artifacts-*") for file in folder.rglob("*") if file.is_file()]
    assert served == []


@pytest.mark.parametrize("headers", [(), (("authorization", "Bearer guessed"),), (("authorization", "Bearer "),)])
def test_17_3_connect_answers_nobody_without_the_token(
    working: SparkServer, headers: tuple[tuple[str, str], ...]
) -> None:
    import grpc

    record = working.running()
    assert record is not None
    service = "/spark.connect.SparkConnectService/"
    methods = (
        "ExecutePlan",
        "AnalyzePlan",
        "Config",
        "ArtifactStatus",
        "Interrupt",
        "ReattachExecute",
        "FetchErrorDetails",
    )
    with grpc.insecure_channel(f"127.0.0.1:{record.port}", options=[("grpc.enable_http_proxy", 0)]) as channel:
        for method in (
            *(service + name for name in methods),
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        ):
            with pytest.raises(grpc.RpcError) as refused:
                list(channel.unary_stream(method)(b"", metadata=headers, timeout=30))
            assert refused.value.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED)


def test_17_3_no_process_and_no_file_of_the_server_shows_a_credential(working: SparkServer) -> None:
    record = working.running()
    assert record is not None
    with spark_session(SparkConfig()) as spark:
        for name in ("spark.authenticate.secret", "spark.connect.authenticate.token"):
            assert spark.conf.get(name, None) is None, "not even a session sees it"
    assert not (working.files.root / "spark.properties").exists(), "what told the server its secrets is gone"
    secrets = [secret.encode() for secret in (SECRET, IN_KERNEL, record.token)]
    seen = processes_of(working)
    assert record.pid in seen
    assert len(seen) >= 3, "the server, a daemon and a worker at least"
    for process in seen:
        try:
            told = Path(f"/proc/{process}/environ").read_bytes() + Path(f"/proc/{process}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue  # a worker that has ended
        assert not [secret for secret in secrets if secret in told]
    for file in working.files.root.rglob("*"):
        if file.is_file() and file != working.files.record:
            try:
                data = file.read_bytes()
            except FileNotFoundError:
                continue  # a block that is not needed any more
            assert not [secret for secret in secrets if secret in data], file


def test_17_3_a_job_that_fails_logs_no_credential(warm: SparkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "me")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", IN_KERNEL)
    spec = StoreSpec.of("s3://bucket", None, {})

    def fail(batches):
        raise ValueError(f"it fails on {spec}")

    with pytest.raises(SparkFailed) as caught, spark_session(SparkConfig()) as spark:
        spark.range(1).mapInArrow(fail, "id long").collect()

    said = str(caught.value) + warm.files.log.read_text()
    assert "it fails on StoreSpec" in said
    assert IN_KERNEL not in said
