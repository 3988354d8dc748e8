"""Large files: bounded memory, never a mixture of two versions, and nothing left of what was not finished."""

from __future__ import annotations

import base64
import errno
import hashlib
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bayou.core.deadline import Deadline
from bayou.core.errors import (
    BadAnswer,
    Cancelled,
    ContentChanged,
    DeadlinePassed,
    NotFound,
    PreconditionFailed,
    StoreError,
    TooLarge,
    TreeError,
    Unavailable,
)
from bayou.core.ids import ulid
from bayou.objectstore import Store, open_store
from bayou.objectstore.backends import obstore as remote_module
from bayou.objectstore.backends.directory import LocalTransport
from bayou.objectstore.keys import Key, KeyScope
from bayou.objectstore.link import Link
from bayou.objectstore.multipart import MIB, PARALLEL, THRESHOLD, part_size
from bayou.objectstore.open import open_transport
from bayou.objectstore.transport import GetResult, PutResult
from bayou.objectstore.uploads import Resumable, UploadPart
from bayou.objectstore.url import parse_url
from bayou_testing.azurite import ACCOUNT, ACCOUNT_KEY, AzuriteServer
from bayou_testing.contract import payload
from bayou_testing.faults import Delay, Fail, LoseResponse, Rule, Silent
from bayou_testing.faulty import Fault, FaultyTransport
from bayou_testing.gcs import GcsServer
from bayou_testing.proxy import HttpProxy
from bayou_testing.s3 import S3Endpoint
from tests.objectstore.conftest import BUCKET, QUICK

KEY = payload("data/large/raw")


def block(byte: bytes, mib: int) -> bytes:
    return byte * (mib * MIB)


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


class Source(io.BytesIO):
    """A file that does something when its n-th part is read."""

    name = "source"

    def __init__(self, content: bytes, nth: int = 0, act: Callable[[], object] = lambda: None) -> None:
        super().__init__(content)
        self._left = nth
        self._act = act

    def read(self, size: int | None = -1, /) -> bytes:
        self._left -= 1
        if self._left == 0:
            self._act()
        return super().read(size)


MEASURED = """
import hashlib, resource, sys
from pathlib import Path
from bayou.objectstore import open_store
from bayou_testing.azurite import ACCOUNT, ACCOUNT_KEY, AzuriteServer
from bayou_testing.contract import payload

directory, size = Path(sys.argv[1]), int(sys.argv[2]) << 20
store = open_store((directory / "store").as_uri())
unit = 1024 if sys.platform != "darwin" else 1
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
store.put(payload("data/small"), b"1")
store.get(payload("data/small"))
before = peak()
digest = hashlib.sha256()
with open(directory / "source", "wb") as file:
    for number in range(size >> 20):
        part = number.to_bytes(4, "big") * (1 << 18)
        digest.update(part)
        file.write(part)
with open(directory / "source", "rb") as source:
    stored = store.upload(payload("data/large"), source, size, digest.digest())
with open(directory / "target", "wb") as target:
    came = store.download(payload("data/large"), target, size, if_match=stored.etag)
assert came.sha256 == digest.digest()
print(peak() - before)
"""


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(tmp_path), "200"], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 160 * MIB
    assert (tmp_path / "target").stat().st_size == 200 * MIB


@given(st.integers(1, 5 << 40), st.none() | st.floats(1, 1e10))
@example(5 << 40, None)
@example(THRESHOLD + 1, 1e3)
@example(9_000 * 16 * MIB, 1e9)
@example(9_000 * 16 * MIB + 1, 1e9)
def test_a_file_of_any_size_fits_into_the_parts_that_stores_allow_on_any_link(size: int, rate: float | None) -> None:
    link = Link()
    link.up._rate = rate
    part = part_size(size, link)
    assert -(-size // part) <= 10_000
    assert part % MIB == 0
    assert 5 * MIB <= part <= 5 << 30
    assert PARALLEL * part <= 3 << 30


@pytest.fixture
def faulty() -> FaultyTransport:
    return FaultyTransport(open_transport(parse_url(f"memory://{ulid()}"), {}))


@pytest.fixture
def store(faulty: FaultyTransport) -> Store:
    return Store(faulty, KeyScope.of("p", None), policy=QUICK)


@pytest.mark.parametrize("nth", [2, 3, 5])
def test_v2_an_object_that_is_replaced_while_it_is_read_is_never_mixed(
    store: Store, faulty: FaultyTransport, nth: int
) -> None:
    old, new = block(b"o", 40), block(b"n", 40)
    store.put(KEY, old)

    def replaced() -> StoreError:
        faulty.inner.put(f"p/{KEY}", new, timeout=5)
        return Unavailable("503")

    faulty.faults.append(Fault("get", nth=nth, error=replaced))
    target = io.BytesIO()
    with pytest.raises(PreconditionFailed):
        store.download(KEY, target, len(old))
    assert set(target.getvalue()) <= set(b"o")


class Careless(FaultyTransport):
    """A store that does not look at If-Match."""

    def get(
        self,
        key: str,
        *,
        span: tuple[int, int] | None = None,
        if_match: str | None = None,
        if_none_match: str | None = None,
        timeout: float,
    ) -> GetResult | None:
        return super().get(key, span=span, timeout=timeout)


def test_v2_a_store_that_does_not_look_at_conditions_is_looked_at_itself() -> None:
    careless = Careless(open_transport(parse_url(f"memory://{ulid()}"), {}))
    store = Store(careless, KeyScope.of("p", None), policy=QUICK)
    old, new = block(b"o", 20), block(b"n", 20)
    first = store.put(KEY, old)

    def replaced() -> StoreError:
        careless.inner.put(f"p/{KEY}", new, timeout=5)
        return Unavailable("503")

    careless.faults.append(Fault("get", nth=2, error=replaced))
    target = io.BytesIO()
    with pytest.raises(PreconditionFailed):
        store.download(KEY, target, len(old))
    assert set(target.getvalue()) <= set(b"o")
    with pytest.raises(PreconditionFailed):
        store.get(KEY, if_match=first.etag)


def test_v2_a_discovered_object_that_changed_since_it_was_listed_is_not_read(store: Store) -> None:
    first = store.put(KEY, block(b"o", 20))
    store.put(KEY, block(b"n", 20))
    target = io.BytesIO()
    with pytest.raises(PreconditionFailed):
        store.download(KEY, target, 20 * MIB, if_match=first.etag)
    assert target.getvalue() == b""


def test_an_object_that_has_grown_since_it_was_indexed_is_not_read_whole(gcs_remote: Remote) -> None:
    gcs_remote.store.put(KEY, block(b"x", 10))
    target = io.BytesIO()
    with pytest.raises(BadAnswer):
        gcs_remote.store.download(KEY, target, 1_000)
    assert target.getvalue() == b""
    assert sum(row.sent for row in gcs_remote.log.rows(method="GET")) == 1_000


def test_no_answer_can_fill_the_memory(gcs_remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_module, "MAX_WHOLE_BYTES", 1 << 20)
    gcs_remote.store.put(KEY, block(b"x", 2))
    with pytest.raises(TooLarge, match="2097152 bytes"):
        gcs_remote.store.get(KEY)
    found = gcs_remote.store.get(KEY, span=(0, 2 * MIB))
    assert found is not None


@pytest.mark.parametrize("size", [0, 1, THRESHOLD, THRESHOLD + 1])
def test_files_of_any_size_come_back(store: Store, faulty: FaultyTransport, size: int) -> None:
    content = b"x" * size
    store.put(KEY, content)
    target = io.BytesIO()
    assert store.download(KEY, target, size).sha256 == sha256(content)
    assert target.getvalue() == content
    assert len([request for request in faulty.seen if request.verb == "get"]) == (1 if size <= THRESHOLD else 3)


def test_a_file_that_cannot_be_read_is_no_failure_of_the_store(store: Store, faulty: FaultyTransport) -> None:
    def broken() -> None:
        raise OSError(errno.EIO, "Input/output error")

    for mib in (1, 40):
        content = block(b"x", mib)
        with pytest.raises(TreeError, match="source: Input/output error"):
            store.upload(KEY, Source(content, nth=1, act=broken), len(content), sha256(content))
    with pytest.raises(NotFound):
        store.head(KEY)
    assert len([request for request in faulty.seen if request.verb == "put"]) == 1, "and is not tried again"


def test_a_file_without_a_name_will_do(store: Store) -> None:
    content = block(b"x", 17)
    store.upload(KEY, io.BytesIO(content), len(content), sha256(content))
    assert store.head(KEY).size == len(content)


def test_v12_an_upload_into_a_directory_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path.as_uri())
    deadline = Deadline.after(60)
    content = block(b"x", 40)
    with pytest.raises(Cancelled):
        store.within(deadline).upload(KEY, Source(content, 2, deadline.cancel), len(content), sha256(content))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


class Remote:
    """A server that can be told to misbehave, and what it has kept of unfinished uploads.

    `part(number)` is a pattern of the query of a request with that part.
    """

    completion = ("POST", "uploadId=")
    """The method of the request that completes an upload, and a pattern of its query."""

    def __init__(self, store: Store, server: GcsServer | HttpProxy, unfinished: Callable[[], list[str]]) -> None:
        self.store = store
        self.faults = server.faults
        self.log = server.log
        self.unfinished = unfinished

    def part(self, number: int | None = None) -> str:
        return "partNumber=" if number is None else rf"partNumber={number}\b"

    def dropped(self) -> bool:
        """Return whether nothing is left of an upload that was given up."""
        return self.unfinished() == []

    def objects(self) -> list[str]:
        self.faults.clear()
        return [meta.key for page in self.store.list() for meta in page]


@pytest.fixture
def gcs_remote(monkeypatch: pytest.MonkeyPatch) -> Iterator[Remote]:
    with GcsServer(buckets=["bayou"]) as server:
        for name, value in server.env().items():
            monkeypatch.setenv(name, value)
        yield Remote(open_store("gs://bayou/p", policy=QUICK), server, lambda: [*server.open_uploads()])


@pytest.fixture
def s3_remote(proxied: Store, proxy: HttpProxy, s3_env: S3Endpoint) -> Remote:
    prefix = proxied.url.removeprefix(f"s3://{BUCKET}/")
    return Remote(
        proxied, proxy, lambda: [key for key in s3_env.open_uploads(BUCKET) if key.removeprefix("/").startswith(prefix)]
    )


class AzureRemote(Remote):
    completion = ("PUT", "comp=blocklist")

    def part(self, number: int | None = None) -> str:
        return "blockid=" if number is None else f"blockid={base64.b64encode(b'%06d' % number).decode()}"

    def dropped(self) -> bool:
        return True  # Azure drops blocks by itself, after a week


@pytest.fixture
def azure_remote(azure_env: AzuriteServer) -> Iterator[Remote]:
    from azure.core.exceptions import ResourceNotFoundError
    from azure.storage.blob import ContainerClient

    prefix = ulid()
    container = ContainerClient(azure_env.url, "bayou", ACCOUNT_KEY)

    def unfinished() -> list[str]:
        try:
            return [block.id for block in container.get_blob_client(f"{prefix}/{KEY}").get_block_list("uncommitted")[1]]
        except ResourceNotFoundError:
            return []

    with container, HttpProxy(azure_env.host, azure_env.port) as proxy:
        options = {"endpoint": f"{proxy.url}/{ACCOUNT}"}
        yield AzureRemote(open_store(f"az://bayou/{prefix}", options=options, policy=QUICK), proxy, unfinished)


@pytest.fixture(
    params=[
        pytest.param("gcs_remote", marks=pytest.mark.gcs),
        pytest.param("s3_remote", marks=pytest.mark.s3),
        pytest.param("azure_remote", marks=pytest.mark.azure),
    ]
)
def remote(request: pytest.FixtureRequest) -> Remote:
    found: Remote = request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize("trouble", [Silent(), Delay(3.5)])
def test_v12_a_deadline_that_passes_in_an_upload_stops_it_and_leaves_nothing(
    remote: Remote, trouble: Silent | Delay
) -> None:
    content = block(b"x", 36)
    remote.faults.add(Rule(trouble, method="PUT", query=remote.part()))
    with pytest.raises(DeadlinePassed) as caught:
        remote.store.within(Deadline.after(2.5)).upload(KEY, io.BytesIO(content), len(content), sha256(content))
    assert "2.5 s" in caught.value.message
    assert remote.objects() == []
    assert remote.dropped()


def test_an_upload_that_is_cancelled_leaves_nothing(remote: Remote) -> None:
    deadline = Deadline.after(60)
    content = block(b"x", 100)
    with pytest.raises(Cancelled):
        remote.store.within(deadline).upload(KEY, Source(content, 3, deadline.cancel), len(content), sha256(content))
    assert remote.objects() == []
    assert remote.dropped()


def test_a_part_that_fails_in_passing_makes_the_upload_begin_anew(remote: Remote) -> None:
    content = os.urandom(MIB) * 17
    remote.faults.add(Rule(Fail(503), method="PUT", query=remote.part(2), times=1))
    stored = remote.store.upload(KEY, io.BytesIO(content), len(content), sha256(content))
    assert remote.unfinished() == []
    target = io.BytesIO()
    came = remote.store.download(KEY, target, len(content), if_match=stored.etag)
    assert came.sha256 == sha256(content)
    assert target.getvalue() == content


def test_a_part_that_is_refused_ends_the_upload_and_leaves_nothing(remote: Remote) -> None:
    content = block(b"x", 17)
    remote.faults.add(Rule(Fail(403), method="PUT", query=remote.part(2)))
    with pytest.raises(StoreError, match="403"):
        remote.store.upload(Key("data/refused"), io.BytesIO(content), len(content), sha256(content))
    assert remote.objects() == []
    assert remote.dropped()


class MemoryLog:
    """A record of one upload that outlives a failed call, as that of `sync.db` outlives a process."""

    def __init__(self) -> None:
        self.kept: Resumable | None = None

    def resumable(self) -> Resumable | None:
        return self.kept

    def begun(self, upload: str, part_size: int) -> None:
        self.kept = Resumable(upload, part_size, {})

    def acknowledged(self, part: UploadPart) -> None:
        assert self.kept is not None
        self.kept = Resumable(self.kept.upload, self.kept.part_size, {**self.kept.parts, part.number: part})

    def forget(self) -> None:
        self.kept = None


def failed_upload(remote: Remote, content: bytes, log: MemoryLog) -> int:
    """Begin an upload whose last part the store refuses; return the bytes that it has acknowledged."""
    remote.faults.add(Rule(Fail(403), method="PUT", query=remote.part(4)))
    with pytest.raises(StoreError, match="403"):
        remote.store.upload(KEY, io.BytesIO(content), len(content), sha256(content), log=log)
    remote.faults.clear()
    assert log.kept is not None
    assert remote.unfinished() != []
    return sum(min(log.kept.part_size, len(content) - (n - 1) * log.kept.part_size) for n in log.kept.parts)


def test_the_next_upload_sends_only_what_the_store_has_not_acknowledged(remote: Remote) -> None:
    content, log = os.urandom(MIB) * 26, MemoryLog()
    moved: list[int] = []
    had: list[int] = []
    there = failed_upload(remote, content, log)
    assert there >= 8 * MIB
    before = remote.store.requests.bytes_out

    stored = remote.store.upload(
        KEY, io.BytesIO(content), len(content), sha256(content), log=log, moved=moved.append, had=had.append
    )

    assert remote.store.requests.bytes_out - before == len(content) - there
    assert (sum(moved), sum(had)) == (len(content) - there, there)
    assert (log.kept, remote.unfinished(), stored.repeated) == (None, [], True)
    target = io.BytesIO()
    assert remote.store.download(KEY, target, len(content), if_match=stored.etag).sha256 == sha256(content)


def test_v11_parts_whose_bytes_are_not_those_of_the_file_any_more_are_sent_again(remote: Remote) -> None:
    """The file was written to while it was sent, and has its old content again."""
    content, log = os.urandom(26 * MIB), MemoryLog()
    torn = bytearray(content)
    torn[MIB] ^= 1
    failed_upload(remote, bytes(torn), log)

    remote.store.upload(KEY, io.BytesIO(content), len(content), sha256(content), log=log)

    target = io.BytesIO()
    assert remote.store.download(KEY, target, len(content)).sha256 == sha256(content)


def test_v11_a_file_that_has_changed_is_not_completed_and_its_parts_are_dropped(remote: Remote) -> None:
    content, log = os.urandom(MIB) * 26, MemoryLog()
    failed_upload(remote, content, log)
    with pytest.raises(ContentChanged):
        remote.store.upload(KEY, io.BytesIO(content[::-1]), len(content), sha256(content), log=log)
    assert log.kept is None
    assert remote.dropped()
    assert remote.objects() == []


def test_an_upload_whose_completion_was_not_answered_is_complete(remote: Remote) -> None:
    content, log = os.urandom(MIB) * 17, MemoryLog()
    method, query = remote.completion
    remote.faults.add(Rule(LoseResponse(), method=method, query=query, times=1))
    stored = remote.store.upload(KEY, io.BytesIO(content), len(content), sha256(content), log=log)
    assert (log.kept, stored.repeated) == (None, True)
    target = io.BytesIO()
    assert remote.store.download(KEY, target, len(content), if_match=stored.etag).sha256 == sha256(content)


def test_where_uploads_cannot_be_resumed_a_failed_one_starts_again_and_counts_once(
    store: Store, faulty: FaultyTransport
) -> None:
    content, moved = block(b"x", 33), [0]

    def count(size: int) -> None:
        moved[0] += size

    faulty.faults.append(Fault("put", nth=1, error=lambda: Unavailable("503")))
    stored = store.upload(KEY, io.BytesIO(content), len(content), sha256(content), moved=count)
    assert (stored.repeated, moved) == (True, [len(content)])


def test_a_part_that_a_transport_merely_holds_does_not_count_as_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transport that sends all parts itself takes some ahead, as many as it sends at once."""
    content = os.urandom(MIB) * 80
    moved: list[int] = []
    counts: list[tuple[int, int]] = []

    def put_chunks(
        _: LocalTransport, key: str, chunks: Iterable[bytes], *, part_size: int, parallel: int, **__: object
    ) -> PutResult:
        taken = 0
        for chunk in chunks:
            taken += len(chunk)
            counts.append((sum(moved), taken - parallel * part_size))
        return PutResult('"etag"', None)

    monkeypatch.setattr(LocalTransport, "put_chunks", put_chunks)
    store = open_store(tmp_path.as_uri())

    store.upload(KEY, io.BytesIO(content), len(content), sha256(content), moved=moved.append)

    assert all(told <= max(0, sent) for told, sent in counts), counts
    assert counts[-1][0] > 0
    assert sum(moved) == len(content)
