"""Many small objects of an S3 bucket by a lane: requests that are signed here, and answers that are plain.

obstore knows where a bucket is, and is asked once; who may ask is known from where it knows that (`credentials`).
"""

from __future__ import annotations

import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from hashlib import md5
from typing import TYPE_CHECKING, TypeVar

import obstore
from obstore import exceptions as obs

from bayou.errors import BayouError, StoreError
from bayou.store.credentials import Keys
from bayou.store.exchange import SUCCESS, Answer, Broken
from bayou.store.failure import Renewal, Request, from_status
from bayou.store.lane import Lane, Method, Order
from bayou.store.signature import Bucket, Signature, Signed
from bayou.store.threads import aside
from bayou.store.transport import Stored, Undone

if TYPE_CHECKING:
    from obstore.store import S3Store

T = TypeVar("T")

_PLAIN = "x"
"""A key of which everybody makes the same address."""

_STALE = b"RequestTimeTooSkewed"
"""What a store says of a request that was signed too long ago, by a machine that was asleep since."""

_OTHER_SUCCESSES = range(201, 300)
_SHUT_S = 60.0
"""How long nobody tries again after this way was found closed."""


class Many:
    """The lanes of one bucket; for many threads, each with a lane of its own."""

    def __init__(
        self, url: str, connect: Callable[[float], S3Store], keys: Callable[[], Keys], renewal: Renewal
    ) -> None:
        self._url = url
        self._connect = connect
        self._keys = keys
        self._renewal = renewal
        self._bucket: Bucket | None = None
        self._idle: list[Lane] = []
        self._lock = threading.Lock()
        self._closed_until = 0.0

    def put_many(
        self, items: Iterator[tuple[T, str, bytes] | None], *, parallel: int, timeout: float, look: Callable[[], object]
    ) -> Iterator[tuple[T, Stored | StoreError | Undone] | None]:
        orders = (Order(one[:2], one[1], _headers(one[2]), one[2]) if one is not None else None for one in items)
        for told in self._send("PUT", orders, parallel, timeout, look):
            if told is None:
                yield None
                continue
            (what, key), found = told
            yield what, found if isinstance(found, Undone) else self._error(found, "PUT", key) or _stored(found)

    def read_many(
        self, items: Iterator[tuple[T, str, int] | None], *, parallel: int, timeout: float, look: Callable[[], object]
    ) -> Iterator[tuple[T, bytes | StoreError | Undone] | None]:
        orders = (Order(one[:2], one[1], wanted=one[2]) if one is not None else None for one in items)
        for told in self._send("GET", orders, parallel, timeout, look):
            if told is None:
                yield None
                continue
            (what, key), found = told
            yield what, found if isinstance(found, Undone) else self._error(found, "GET", key) or found.body

    def _send(
        self,
        method: Method,
        orders: Iterator[Order[T] | None],
        parallel: int,
        timeout: float,
        look: Callable[[], object],
    ) -> Iterator[tuple[T, Answer | Undone] | None]:
        if time.monotonic() < self._closed_until:
            return
        with self._lock:
            lane = self._idle.pop() if self._idle else Lane(partial(self._sign, timeout), parallel, timeout)
        try:
            for told in lane.send(method, orders, look):
                # Until one request has succeeded, a refusal may be meant for this way of asking.
                if told is not None and isinstance(told[1], Answer) and told[1].status != SUCCESS and not lane.proved:
                    told = told[0], Undone.LOST
                yield told
        finally:
            if lane.closed:
                self._closed_until = time.monotonic() + _SHUT_S
                lane.close()
            else:
                with self._lock:
                    self._idle.append(lane)

    def _sign(self, timeout: float, method: Method, orders: Sequence[Order[T]]) -> Sequence[Signed]:
        try:
            # Not on the main thread: fresh credentials may have to be fetched, from somebody who does not answer.
            signature = aside(lambda: Signature.at(self._located(timeout), self._keys()))
        except (obs.BaseError, BayouError, OSError, ValueError) as error:
            raise Broken(type(error).__name__, sent=False) from None
        return signature.sign(method, ((order.key, order.body) for order in orders))

    def _located(self, timeout: float) -> Bucket:
        if self._bucket is None:
            address = obstore.sign(self._connect(timeout), "GET", _PLAIN, timedelta(minutes=1))
            self._bucket = Bucket.of(address, _PLAIN)
        return self._bucket

    def _error(self, answer: Answer, verb: str, key: str) -> StoreError | Undone | None:
        """Return what a refusal means; one that may pass is the ordinary way's to try again. None: it is a success."""
        if answer.status == SUCCESS:
            return None
        if answer.status in _OTHER_SUCCESSES or _STALE in answer.body:
            return Undone.LOST
        about = Request(verb, key, self._url, self._renewal)
        error = from_status(answer.status, answer.body.decode(errors="replace"), about)
        return error if isinstance(error, StoreError) and not error.retryable else Undone.LOST


def _stored(answer: Answer) -> Stored | Undone:
    etag = answer.text(b"etag")
    return Stored(etag, answer.text(b"x-amz-version-id")) if etag else Undone.LOST


def _headers(data: bytes) -> str:
    """Not every store proves the hash that is signed (SeaweedFS does not); they all prove this one."""
    proof = b64encode(md5(data, usedforsecurity=False).digest()).decode()
    return f"Content-Length: {len(data)}\r\nContent-MD5: {proof}\r\n"
