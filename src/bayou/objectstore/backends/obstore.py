"""A transport for S3, GCS, Azure and memory over obstore: each method sends one request, once.

This module also works around three properties of obstore: it fixes a client's timeout when the client is created, its
listings drop a leading `/` of a key and fail on keys that it cannot parse, and it reads a web page as an object or as
the end of a listing.
"""

from __future__ import annotations

import copy
import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import obstore
from obstore import exceptions as obs
from obstore.store import MemoryStore

from bayou.core import activity
from bayou.core.clock import to_ms
from bayou.core.errors import (
    AlreadyExists,
    BadAnswer,
    BayouError,
    DeleteFailed,
    NotFound,
    PreconditionFailed,
    Rejected,
    TooLarge,
)
from bayou.objectstore.backends.obstore_errors import (
    Renewal,
    Request,
    UnparsableKey,
    is_completed_without_etag,
    translate,
)
from bayou.objectstore.transport import (
    Condition,
    Create,
    DirectoryListing,
    GetResult,
    Match,
    ObjectMeta,
    PartTransport,
    PutResult,
)

if TYPE_CHECKING:
    from obstore.store import ObjectStore
    from typing_extensions import Buffer

T = TypeVar("T")

_PAGE = 1000
MAX_WHOLE_BYTES = 256 << 20
"""Above the size of any object that Bayou reads whole: it reads files in spans, and index objects are far smaller."""

Connect = Callable[[float], "ObjectStore"]
"""Make a client that limits each request to this many seconds and never retries."""

ListRaw = Callable[[str, str | None, float], Iterator[list[ObjectMeta]]]
"""List (prefix, after, timeout) without obstore, which fails on a page with a key that it cannot parse."""

_REPLACED = "\N{REPLACEMENT CHARACTER}"

_AFTER_SLASH = "0"
"""The first key, bytewise, after all keys that begin with a `/`."""

_TIMEOUTS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0)

_SHOWN = 256 << 10
"""The progress line shows a response of more bytes while it arrives."""

_TOKIO_THREADS = "TOKIO_WORKER_THREADS"
_runtime_started = threading.Event()
_runtime_lock = threading.Lock()


class RemoteTransport:
    """A transport over an obstore client.

    The transport has one client for each of a few timeouts, and creates it on first use. A request takes the client
    with the longest timeout that is not above its own.
    """

    def __init__(
        self,
        url: str,
        connect: Connect,
        *,
        renewal: Renewal,
        list_raw: ListRaw | None = None,
        delete_batch: int = 1,
        lost_credentials: Callable[[], BayouError | None] = lambda: None,
        address: str | None = None,
        parts: Callable[[], PartTransport | None] = lambda: None,
        unquoted: bool | None = None,
    ) -> None:
        self.unquoted = unquoted
        self._url = url
        self._connect = connect
        self._renewal = renewal
        self._list_raw = list_raw
        self._delete_batch = delete_batch
        self._lost_credentials = lost_credentials
        self._address = address
        self._open_parts = parts
        self._parts: PartTransport | None = None
        self._parts_opened = False
        self._clients: dict[float, ObjectStore] = {}
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return self._url

    def with_unquoted(self) -> RemoteTransport:
        changed = copy.copy(self)
        changed.unquoted = True
        return changed

    @property
    def sorted_listing(self) -> bool:
        return True

    @property
    def delete_batch(self) -> int:
        return self._delete_batch

    def now(self, *, timeout: float) -> int | None:
        """Return the server's time in ms; None if there is no server, or if it does not report its time."""
        if self._address is None:
            return None
        from bayou.objectstore.backends.plain_http import server_time  # noqa: PLC0415  (urllib: rarely needed)

        return server_time(self._address, timeout)

    def parts(self) -> PartTransport | None:
        """Return the resumable uploads of this store, opened at the first call."""
        with self._lock:
            if not self._parts_opened:
                self._parts, self._parts_opened = self._open_parts(), True
            return self._parts

    def get(
        self,
        key: str,
        *,
        span: tuple[int, int] | None = None,
        if_match: str | None = None,
        if_none_match: str | None = None,
        most: int | None = None,
        timeout: float,
    ) -> GetResult | None:
        options: dict[str, Any] = {}
        if span is not None:
            options["range"] = span
        if if_match is not None:
            options["if_match"] = if_match
        if if_none_match is not None:
            options["if_none_match"] = if_none_match
        try:
            result = obstore.get(self._client(timeout), key, options=options or None)  # type: ignore[arg-type]
            meta = self._require_etag(_meta(result.meta, key), "GET")
            limit = MAX_WHOLE_BYTES if most is None else most
            if span is None and meta.size > limit:
                raise TooLarge.of(key, meta.size, limit)
            wanted = meta.size if span is None else max(0, min(span[1], meta.size) - span[0])
            data = _body(result, wanted)
        except obs.NotModifiedError:
            return None
        except BayouError:
            raise
        except (obs.BaseError, OSError, ValueError) as error:
            raise self._translate(error, "GET", key) from None
        if len(data) != wanted:
            received = "more than" if len(data) > wanted else f"{len(data)} bytes of"
            raise BadAnswer(f"GET {key} on {self._url} brought {received} {wanted}", hint="try again")
        return GetResult(meta, data, result.attributes)

    def get_limited(
        self,
        key: str,
        most: int,
        *,
        if_match: str | None = None,
        if_none_match: str | None = None,
        timeout: float,
    ) -> GetResult | None:
        return self.get(key, if_match=if_match, if_none_match=if_none_match, most=most, timeout=timeout)

    def read(self, key: str, span: tuple[int, int], *, timeout: float) -> Buffer:
        try:
            return _body(obstore.get(self._client(timeout), key, options={"range": span}), span[1] - span[0])
        except (obs.BaseError, OSError, ValueError) as error:
            raise self._translate(error, "GET", key) from None

    def head(self, key: str, *, timeout: float) -> ObjectMeta:
        try:
            return self._require_etag(_meta(obstore.head(self._client(timeout), key), key), "HEAD")
        except (obs.BaseError, OSError, ValueError) as error:
            raise self._translate(error, "HEAD", key) from None

    def put(
        self,
        key: str,
        data: Buffer,
        *,
        condition: Condition | None = None,
        attributes: Mapping[str, str] | None = None,
        timeout: float,
    ) -> PutResult:
        try:
            result = obstore.put(
                self._client(timeout),
                key,
                data,
                mode=_mode(condition, unquoted=self.unquoted is True),
                attributes=dict(attributes) if attributes else None,
                use_multipart=False,
            )
        except (obs.BaseError, OSError, ValueError) as error:
            translated = self._translate(error, "PUT", key)
            if isinstance(translated, PreconditionFailed) and isinstance(condition, Create):
                translated = AlreadyExists(f"{key} exists already")
            raise translated from None
        return PutResult(_quoted(result["e_tag"]), result["version"])

    def put_chunks(
        self,
        key: str,
        chunks: Iterable[Buffer],
        *,
        part_size: int,
        parallel: int,
        attributes: Mapping[str, str] | None = None,
        timeout: float,
    ) -> PutResult:
        size = 0

        def counted() -> Iterator[Buffer]:
            nonlocal size
            for chunk in chunks:
                size += len(memoryview(chunk))
                yield chunk

        try:
            result = obstore.put(
                self._client(timeout),
                key,
                counted(),
                attributes=dict(attributes) if attributes else None,
                use_multipart=True,
                chunk_size=part_size,
                max_concurrency=parallel,
            )
        except BayouError:
            raise  # what `chunks` raised
        except (obs.BaseError, OSError, ValueError) as error:
            if is_completed_without_etag(error) and self._has(key, size, timeout):
                return PutResult(None, None)  # V2: an ETag of the HEAD is no ETag of this write
            raise self._translate(error, "PUT", key) from None
        return PutResult(_quoted(result["e_tag"]), result["version"])

    def _has(self, key: str, size: int, timeout: float) -> bool:
        """Return whether an object of this size exists; only this upload, or an equal one, writes to its key (V11)."""
        try:
            return self.head(key, timeout=timeout).size == size
        except NotFound:
            return False

    def list(self, prefix: str, *, after: str | None = None, timeout: float) -> Iterator[Sequence[ObjectMeta]]:
        last, rows = after, 0
        if not prefix and self._list_raw is not None and (after is None or after < _AFTER_SLASH):
            # V21: obstore drops a `/` at the beginning of a key, and so takes `/data/x` for `data/x`. The strict
            # listing lists those keys, and with them the whole of a small store, for as many requests.
            for exact in self._list_raw(prefix, after, timeout):
                yield exact
                if len(exact) == _PAGE and exact[-1].key >= _AFTER_SLASH:
                    last = exact[-1].key
                    break
            else:
                return
        unparsable = False
        try:
            for page in self._pages(prefix, last, timeout):
                if self._list_raw is not None and _has_replaced(page):
                    unparsable = True
                    break
                yield page
                last, rows = page[-1].key, rows + len(page)
        except UnparsableKey as key:
            if self._list_raw is None:
                raise Rejected(f"LIST {prefix} on {self._url}: a key that cannot be listed: {key}") from None
            unparsable = True
        # V4: obstore reads any document without keys, such as a web page, as the end of a listing. Unless the last page
        # has keys and is not full, the strict listing goes on from there.
        if self._list_raw is None or not (unparsable or rows % _PAGE == 0):
            return
        if unparsable or not rows:
            yield ()
        for page in self._list_raw(prefix, last, timeout):
            if page and last is not None and page[0].key <= last:
                raise BadAnswer(
                    f"{self._url} does not list in order", hint="check that the endpoint is an object store"
                )
            yield page

    def list_directory(self, prefix: str, *, timeout: float) -> DirectoryListing | None:
        try:
            found = obstore.list_with_delimiter(self._client(timeout), prefix.rstrip("/") or None, return_arrow=True)
            directories = [f"{directory}/" for directory in found["common_prefixes"]]
            objects = _page(found["objects"], prefix, None)
        except (obs.BaseError, OSError, ValueError) as error:
            translated = translate(error, Request("LIST", prefix, self._url, self._renewal, self._address))
            if isinstance(translated, UnparsableKey):
                return None
            raise (self._lost_credentials() or translated) from None
        # V4: as in `list`, an empty or a full page may have been followed by something else than a listing.
        if (len(directories) + len(objects)) % _PAGE == 0 or not all(name.startswith(prefix) for name in directories):
            return None
        if "/" in directories:  # V21: as in `list`, obstore dropped the leading `/` of some keys
            return None
        if _has_replaced(objects) or any(_REPLACED in name for name in directories):
            return None
        return DirectoryListing(directories, objects)

    def _pages(self, prefix: str, after: str | None, timeout: float) -> Iterator[Sequence[ObjectMeta]]:
        try:
            stream = obstore.list(
                self._client(timeout), prefix.rstrip("/") or None, offset=after, chunk_size=_PAGE, return_arrow=True
            )
            for batch in stream:
                if page := _page(batch, prefix, after):
                    yield page
        except (obs.BaseError, OSError, ValueError) as error:
            translated = translate(error, Request("LIST", prefix, self._url, self._renewal, self._address))
            raise (
                translated if isinstance(translated, UnparsableKey) else self._lost_credentials() or translated
            ) from None

    def delete(self, keys: Sequence[str], *, timeout: float) -> None:
        try:
            obstore.delete(self._client(timeout), [*keys])
            return
        except FileNotFoundError as error:
            translated = self._translate(error, "DELETE", keys[0])
            if isinstance(translated, NotFound) and len(keys) == 1:
                return
        except (obs.BaseError, OSError, ValueError) as error:
            translated = self._translate(error, "DELETE", keys[0])
        raise DeleteFailed(dict.fromkeys(keys, translated))  # type: ignore[arg-type]

    def _require_etag(self, meta: ObjectMeta, verb: str) -> ObjectMeta:
        """Refuse metadata without an ETag: every store sends one, and obstore takes a web page for an object."""
        if meta.etag is None:
            raise BadAnswer(
                f"the answer to {verb} {meta.key} on {self._url} is not an object", hint="check the endpoint"
            )
        return meta

    def _client(self, timeout: float) -> ObjectStore:
        limit = _TIMEOUTS[max(0, bisect_right(_TIMEOUTS, timeout) - 1)]
        client = self._clients.get(limit)
        if client is None:
            with self._lock:
                client = self._clients.get(limit)
                if client is None:
                    _start_runtime()
                    client = self._clients[limit] = self._connect(limit)
        return client

    def _translate(self, error: Exception, verb: str, key: str) -> BayouError:
        lost = self._lost_credentials()
        if lost is not None:
            return lost
        translated = translate(error, Request(verb, key, self._url, self._renewal, self._address))
        if isinstance(translated, UnparsableKey):
            return Rejected(f"{verb} {key!r}: the client library cannot express this key")
        return translated


def _body(result: Any, wanted: int) -> bytes:
    """Return the body of a response that should have `wanted` bytes; of a longer body, at least one byte more.

    V25: the response to a request for a span may have any length, and this function stops reading soon after `wanted`
    bytes. The chunk size makes a body of the right length one chunk, which costs no more than `result.bytes`; a large
    body whose bytes a person watches comes in several.
    """
    if wanted < _SHOWN or not activity.is_watched():
        return next(result.stream(min_chunk_size=wanted + 1), b"")
    chunks, size = [], 0
    for chunk in result.stream(min_chunk_size=_SHOWN):
        chunks.append(chunk)
        size += len(chunk)
        activity.arrived(len(chunk))
        if size > wanted:
            break
    return b"".join(chunks)


def _page(batch: Any, prefix: str, after: str | None) -> list[ObjectMeta]:
    folder = prefix[:-1]  # obstore drops the `/` at the end of a key
    columns = [batch.column(name).to_pylist() for name in ("path", "size", "e_tag", "version", "last_modified")]
    return [
        ObjectMeta(key, size, _quoted(etag), version, to_ms(modified))
        for key, size, etag, version, modified in zip(*columns, strict=True)
        # Not `key > after`: SeaweedFS lists, and resumes, in an order of its own.
        if key not in (after, folder)
    ]


def _has_replaced(page: Sequence[ObjectMeta]) -> bool:
    """Return whether the server may have replaced characters of a key that XML cannot express, as SeaweedFS does."""
    return any(_REPLACED in meta.key for meta in page)


def _mode(condition: Condition | None, *, unquoted: bool) -> Any:
    match condition:
        case None:
            return "overwrite"
        case Create():
            return "create"
        case Match(etag, version):
            etag = etag.strip('"') if unquoted and etag is not None else etag
            return {name: value for name, value in (("e_tag", etag), ("version", version)) if value is not None}


def _meta(meta: Any, key: str) -> ObjectMeta:
    return ObjectMeta(key, meta["size"], _quoted(meta["e_tag"]), meta["version"], to_ms(meta["last_modified"]))


def _quoted(etag: str | None) -> str | None:
    """Return an ETag with quotes; Azure's listings and some servers' headers omit them. None if there is none."""
    return (etag if etag.endswith('"') else f'"{etag}"') if etag else None


def _start_runtime() -> None:
    """Start obstore's threads before the first request, with half as many threads as cores.

    A request runs on the thread that calls obstore; the threads of obstore's runtime only serve the connections. One
    per core, obstore's default, wake each other up needlessly: with half as many, ten thousand small files take a tenth
    less time. A number in this process's environment takes precedence.
    """
    if _runtime_started.is_set():
        return
    with _runtime_lock:
        if not _runtime_started.is_set():
            if _TOKIO_THREADS not in os.environ:
                # Set the variable only for this moment: programs that Bayou starts may use obstore too.
                os.environ[_TOKIO_THREADS] = str(max(1, _cores() // 2))
                try:
                    obstore.list(MemoryStore()).collect()
                finally:
                    del os.environ[_TOKIO_THREADS]
            _runtime_started.set()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
