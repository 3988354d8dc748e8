"""S3, GCS, Azure and memory, through obstore: one request, one attempt, our errors."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import obstore
from obstore import exceptions as obs

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
from bayou.objectstore import threads
from bayou.objectstore.backends.obstore_errors import Renewal, Request, UnparsableKey, translate
from bayou.objectstore.transport import Condition, Create, Fetched, Level, Match, ObjectMeta, Stored

if TYPE_CHECKING:
    from obstore.store import ObjectStore
    from typing_extensions import Buffer

T = TypeVar("T")

_PAGE = 1000
_WHOLE = 256 << 20
"""More than any object that is read whole has: files come in spans, and nothing of the index is nearly as large."""

Connect = Callable[[float], "ObjectStore"]
"""Make a client whose every request ends after so many seconds, and which never repeats one by itself."""

ListRaw = Callable[[str, str | None, float], Iterator[list[ObjectMeta]]]
"""List (prefix, after, timeout) by other means than obstore, which gives up on a page with one odd key."""

_BEHIND_SLASH = "0"
"""The first key, bytewise, that comes after all that begin with a `/`."""

_STEPS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0)


class RemoteTransport:
    """A transport over an obstore client.

    obstore fixes a client's timeout when the client is made; so there is one for each of a few timeouts, made when it
    is first needed, and a request takes the longest that still ends in time.
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
    ) -> None:
        self._url = url
        self._connect = connect
        self._renewal = renewal
        self._list_raw = list_raw
        self._delete_batch = delete_batch
        self._lost_credentials = lost_credentials
        self._address = address
        self._clients: dict[float, ObjectStore] = {}
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return self._url

    @property
    def sorted_listing(self) -> bool:
        return True

    @property
    def delete_batch(self) -> int:
        return self._delete_batch

    def now(self, *, timeout: float) -> int | None:
        """Return the server's time, in ms; None if there is no server, or none that tells it."""
        if self._address is None:
            return None
        from bayou.objectstore.backends.plain_http import served_at  # noqa: PLC0415  (urllib: hardly ever needed)

        return served_at(self._address, timeout)

    def get(
        self,
        key: str,
        *,
        span: tuple[int, int] | None = None,
        if_match: str | None = None,
        if_none_match: str | None = None,
        timeout: float,
    ) -> Fetched | None:
        return self._get(key, span, if_match, if_none_match, None, timeout)

    def get_limited(
        self,
        key: str,
        most: int,
        *,
        if_match: str | None = None,
        if_none_match: str | None = None,
        timeout: float,
    ) -> Fetched | None:
        return self._get(key, None, if_match, if_none_match, most, timeout)

    def _get(
        self,
        key: str,
        span: tuple[int, int] | None,
        if_match: str | None,
        if_none_match: str | None,
        most: int | None,
        timeout: float,
    ) -> Fetched | None:
        options: dict[str, Any] = {}
        if span is not None:
            options["range"] = span
        if if_match is not None:
            options["if_match"] = if_match
        if if_none_match is not None:
            options["if_none_match"] = if_none_match
        try:
            result = obstore.get(self._client(timeout), key, options=options or None)  # type: ignore[arg-type]
            meta = self._real(_meta(result.meta, key), "GET")
            limit = _WHOLE if most is None else most
            if span is None and meta.size > limit:
                raise TooLarge.of(key, meta.size, limit)
            wanted = meta.size if span is None else max(0, min(span[1], meta.size) - span[0])
            data = _body(result, wanted)
        except obs.NotModifiedError:
            return None
        except BayouError:
            raise
        except (obs.BaseError, OSError, ValueError) as error:
            raise self._ours(error, "GET", key) from None
        if len(data) != wanted:
            told = "more than" if len(data) > wanted else f"{len(data)} bytes of"
            raise BadAnswer(f"GET {key} on {self._url} brought {told} {wanted}", hint="try again")
        return Fetched(meta, data, result.attributes)

    def read(self, key: str, span: tuple[int, int], *, timeout: float) -> Buffer:
        try:
            return _body(obstore.get(self._client(timeout), key, options={"range": span}), span[1] - span[0])
        except (obs.BaseError, OSError, ValueError) as error:
            raise self._ours(error, "GET", key) from None

    def head(self, key: str, *, timeout: float) -> ObjectMeta:
        try:
            return self._real(_meta(obstore.head(self._client(timeout), key), key), "HEAD")
        except (obs.BaseError, OSError, ValueError) as error:
            raise self._ours(error, "HEAD", key) from None

    def put(
        self,
        key: str,
        data: Buffer,
        *,
        condition: Condition | None = None,
        attributes: Mapping[str, str] | None = None,
        timeout: float,
    ) -> Stored:
        try:
            result = obstore.put(
                self._client(timeout),
                key,
                data,
                mode=_mode(condition),
                attributes=dict(attributes) if attributes else None,
                use_multipart=False,
            )
        except (obs.BaseError, OSError, ValueError) as error:
            ours = self._ours(error, "PUT", key)
            if isinstance(ours, PreconditionFailed) and isinstance(condition, Create):
                ours = AlreadyExists(f"{key} exists already")
            raise ours from None
        return Stored(result["e_tag"], result["version"])

    def put_chunks(
        self,
        key: str,
        chunks: Iterable[Buffer],
        *,
        part_size: int,
        parallel: int,
        attributes: Mapping[str, str] | None = None,
        timeout: float,
    ) -> Stored:
        try:
            result = obstore.put(
                self._client(timeout),
                key,
                iter(chunks),
                attributes=dict(attributes) if attributes else None,
                use_multipart=True,
                chunk_size=part_size,
                max_concurrency=parallel,
            )
        except BayouError:
            raise  # what `chunks` raised
        except (obs.BaseError, OSError, ValueError) as error:
            raise self._ours(error, "PUT", key) from None
        return Stored(result["e_tag"], result["version"])

    def list(self, prefix: str, *, after: str | None = None, timeout: float) -> Iterator[Sequence[ObjectMeta]]:
        last, rows = after, 0
        if not prefix and self._list_raw is not None and (after is None or after < _BEHIND_SLASH):
            # V21: obstore drops a `/` at the beginning of a key, and so takes `/data/x` for `data/x`. Until they are
            # over, somebody more exact lists; and so also the whole of a small store, for as many requests.
            for exact in self._list_raw(prefix, after, timeout):
                yield exact
                if len(exact) == _PAGE and exact[-1].key >= _BEHIND_SLASH:
                    last = exact[-1].key
                    break
            else:
                return
        odd = False
        try:
            for page in self._pages(prefix, last, timeout):
                yield page
                last, rows = page[-1].key, rows + len(page)
        except UnparsableKey as key:
            if self._list_raw is None:
                raise Rejected(f"LIST {prefix} on {self._url}: a key that cannot be listed: {key}") from None
            odd = True
        # V4: obstore reads any document without keys, a web page say, as the end of a listing. Where the end is not
        # the end of a page that has keys, ask somebody stricter.
        if self._list_raw is None or not (odd or rows % _PAGE == 0):
            return
        if odd or not rows:
            yield ()
        for page in self._list_raw(prefix, last, timeout):
            if page and last is not None and page[0].key <= last:
                raise BadAnswer(
                    f"{self._url} does not list in order", hint="check that the endpoint is an object store"
                )
            yield page

    def level(self, prefix: str, *, timeout: float) -> Level | None:
        try:
            found = obstore.list_with_delimiter(self._client(timeout), prefix.rstrip("/") or None, return_arrow=True)
            directories = [f"{one}/" for one in found["common_prefixes"]]
            objects = _page(found["objects"], prefix, None)
        except (obs.BaseError, OSError, ValueError) as error:
            ours = translate(error, Request("LIST", prefix, self._url, self._renewal))
            if isinstance(ours, UnparsableKey):
                return None
            raise (self._lost_credentials() or ours) from None
        # V4: as in `list`, an end that is not the end of a page may be something else than a listing.
        if (len(directories) + len(objects)) % _PAGE == 0 or not all(one.startswith(prefix) for one in directories):
            return None
        if "/" in directories:  # V21: as in `list`, a `/` was dropped that some keys begin with
            return None
        return Level(directories, objects)

    def _pages(self, prefix: str, after: str | None, timeout: float) -> Iterator[Sequence[ObjectMeta]]:
        try:
            stream = obstore.list(
                self._client(timeout), prefix.rstrip("/") or None, offset=after, chunk_size=_PAGE, return_arrow=True
            )
            for batch in stream:
                if page := _page(batch, prefix, after):
                    yield page
        except (obs.BaseError, OSError, ValueError) as error:
            ours = translate(error, Request("LIST", prefix, self._url, self._renewal))
            raise (ours if isinstance(ours, UnparsableKey) else self._lost_credentials() or ours) from None

    def delete(self, keys: Sequence[str], *, timeout: float) -> None:
        try:
            obstore.delete(self._client(timeout), [*keys])
            return
        except FileNotFoundError as error:
            ours = self._ours(error, "DELETE", keys[0])
            if isinstance(ours, NotFound) and len(keys) == 1:
                return
        except (obs.BaseError, OSError, ValueError) as error:
            ours = self._ours(error, "DELETE", keys[0])
        raise DeleteFailed(dict.fromkeys(keys, ours))  # type: ignore[arg-type]

    def _real(self, meta: ObjectMeta, verb: str) -> ObjectMeta:
        """Refuse what no store sends: obstore takes a web page for an object without an ETag."""
        if meta.etag is None:
            raise BadAnswer(
                f"the answer to {verb} {meta.key} on {self._url} is not an object", hint="check the endpoint"
            )
        return meta

    def _client(self, timeout: float) -> ObjectStore:
        step = _STEPS[max(0, bisect_right(_STEPS, timeout) - 1)]
        client = self._clients.get(step)
        if client is None:
            with self._lock:
                client = self._clients.get(step)
                if client is None:
                    threads.begin()
                    client = self._clients[step] = self._connect(step)
        return client

    def _ours(self, error: Exception, verb: str, key: str) -> BayouError:
        lost = self._lost_credentials()
        if lost is not None:
            return lost
        ours = translate(error, Request(verb, key, self._url, self._renewal))
        if isinstance(ours, UnparsableKey):
            return Rejected(f"{verb} {key!r}: the client library cannot express this key")
        return ours


def _body(result: Any, wanted: int) -> bytes:
    """Return the bytes of an answer that should have `wanted`; if it has more, some of them, and one more at least.

    V25: an answer to a request for a span may have any length. A stream is left where it goes on for too long, and
    one whose pieces are larger than what is wanted comes in one piece, for no more time than `bytes` takes.
    """
    return next(result.stream(min_chunk_size=wanted + 1), b"")


def _page(batch: Any, prefix: str, after: str | None) -> list[ObjectMeta]:
    folder = prefix[:-1]  # of which a listing has dropped the last character
    columns = [batch.column(name).to_pylist() for name in ("path", "size", "e_tag", "version", "last_modified")]
    return [
        ObjectMeta(key, size, _quoted(etag), version, to_ms(modified))
        for key, size, etag, version, modified in zip(*columns, strict=True)
        # Not `key > after`: SeaweedFS lists in an order of its own, and goes on in that order.
        if key not in (after, folder)
    ]


def _mode(condition: Condition | None) -> Any:
    match condition:
        case None:
            return "overwrite"
        case Create():
            return "create"
        case Match(etag, version):
            return {name: value for name, value in (("e_tag", etag), ("version", version)) if value is not None}


def _meta(meta: Any, key: str) -> ObjectMeta:
    return ObjectMeta(key, meta["size"], meta["e_tag"], meta["version"], to_ms(meta["last_modified"]))


def _quoted(etag: str | None) -> str | None:
    """Return an ETag as headers have it: Azure's listings leave out the quotes."""
    return etag if etag is None or etag.endswith('"') else f'"{etag}"'
