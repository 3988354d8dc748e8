"""What the tests of the test servers talk with: plain HTTP, and obstore without retries of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from threading import Barrier
from typing import NamedTuple, TypeVar
from urllib.parse import quote

from obstore.store import GCSStore, S3Store

from bayou_testing.gcs import GcsServer
from bayou_testing.s3 import S3Endpoint

T = TypeVar("T")


class Answer(NamedTuple):
    status: int
    body: bytes
    headers: dict[str, str]


class Http:
    """One keep-alive connection; header names of answers in lower case."""

    def __init__(self, port: int) -> None:
        self.connection = HTTPConnection("127.0.0.1", port, timeout=10)

    def __call__(self, method: str, target: str, body: bytes | None = None, **headers: str) -> Answer:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        self.connection.request(method, target, body, names)
        response = self.connection.getresponse()
        return Answer(response.status, response.read(), {k.lower(): v for k, v in response.getheaders()})

    def close(self) -> None:
        self.connection.close()


def target(key: str, bucket: str = "b") -> str:
    return f"/{bucket}/{quote(key, safe='')}"


def gcs_store(server: GcsServer, bucket: str = "b", timeout: str = "10s") -> GCSStore:
    return GCSStore(
        bucket,
        service_account_key=server.service_account_key(),
        client_options={"allow_http": True, "timeout": timeout},
        retry_config={"max_retries": 0},
    )


def s3_store(s3: S3Endpoint, bucket: str, *, url: str | None = None, secret: str | None = None) -> S3Store:
    return S3Store(
        bucket,
        endpoint=url or s3.url,
        access_key_id=s3.access_key,
        secret_access_key=secret or s3.secret_key,
        region=s3.region,
        client_options={"allow_http": True, "timeout": "60s"},
        retry_config={"max_retries": 0},
    )


def race(count: int, attempt: Callable[[int], T]) -> list[T | Exception]:
    """Make so many attempts at one moment, each in a thread; return what each came to."""
    start = Barrier(count)

    def run(number: int) -> T | Exception:
        start.wait(10)
        try:
            return attempt(number)
        except Exception as error:  # noqa: BLE001 - the losers' errors are what a race is about
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def parts_then_failure(part: bytes, count: int) -> Iterator[bytes]:
    for _ in range(count):
        yield part
    raise RuntimeError("the source broke")
