"""What a provider must be able to do: one method, one request, one attempt.

`Store` puts scope, retries, deadlines, counting and large files on top; a transport knows none of these. Its keys are
whole keys of the bucket (or paths below the directory), its errors are those of `bayou.core.errors`, mapped here and
nowhere else. Everything that cuts across (faults in tests, recording) is a transport around a transport.

Counts of what was really sent to a store (V17).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

from msgspec import Struct

from bayou.core.structs import SelectiveStruct

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")


class ObjectMeta(Struct, frozen=True):
    """What a store says of one object. `modified` is the store's clock, in ms since 1970 UTC."""

    key: str
    size: int
    etag: str | None
    version: str | None
    modified: int


class Fetched(Struct, frozen=True):
    """Bytes and the metadata that came in the same response (V2)."""

    meta: ObjectMeta
    data: Buffer
    attributes: Mapping[str, str]


class Stored(SelectiveStruct, frozen=True):
    """The fingerprint that our own write returned (V2).

    `repeated`: it took more than one request, and an earlier one may still be under way to write the same bytes again.
    """

    uncompared: ClassVar[tuple[str, ...]] = ("repeated",)

    etag: str | None
    version: str | None
    repeated: bool = False


class Create(Struct, frozen=True):
    """Write only if there is no such object; else `AlreadyExists`."""


class Match(Struct, frozen=True):
    """Write only over this version; else `PreconditionFailed`. Give both as a store returned them."""

    etag: str | None
    version: str | None = None


Condition = Create | Match


class Level(Struct, frozen=True):
    """What lies directly in one directory: directories, each with a `/` at its end, and objects, to be read once."""

    directories: Sequence[str]
    objects: Iterable[ObjectMeta]


class Transport(Protocol):
    """One object store, unscoped. Safe to use from many threads; not shared between processes."""

    @property
    def url(self) -> str:
        """Scheme and bucket (or directory), for people; never a secret."""

    def get(
        self,
        key: str,
        *,
        span: tuple[int, int] | None = None,
        if_match: str | None = None,
        if_none_match: str | None = None,
        timeout: float,
    ) -> Fetched | None:
        """Return the object, or its bytes `span[0] <= i < span[1]`; None only for "not modified".

        `NotFound` only for a real "no such key" (V4). `PreconditionFailed` when `if_match` does not hold. A body
        shorter than announced is `BadAnswer`. `meta.size` is the size of the whole object, also with a span.
        """

    def head(self, key: str, *, timeout: float) -> ObjectMeta:
        """Return the metadata of an object."""

    def put(
        self,
        key: str,
        data: Buffer,
        *,
        condition: Condition | None = None,
        attributes: Mapping[str, str] | None = None,
        timeout: float,
    ) -> Stored:
        """Write an object whole or not at all. The condition and the write are one atomic step of the store."""

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
        """Write a large object from parts; it appears whole at the end, or, if `chunks` raises, never.

        What `chunks` raises comes out unchanged, and nothing of the upload stays behind as far as that can be helped.
        """

    def list(self, prefix: str, *, after: str | None = None, timeout: float) -> Iterator[Sequence[ObjectMeta]]:
        """Yield pages of the objects whose key starts with `prefix` (empty, or ending in `/`), beyond `after`.

        Ordered by key if `sorted_listing`. Keys come exactly as they are in the store, odd ones included. One page
        for each request, empty ones too: that is how requests are counted.
        """

    @property
    def sorted_listing(self) -> bool:
        """Whether `list` yields keys in bytewise order, so that `after` can resume it."""

    def delete(self, keys: Sequence[str], *, timeout: float) -> None:
        """Delete up to `delete_batch` objects; a single one that is not there is no error.

        `DeleteFailed` names those that are still there, as far as the store tells; a batch may fail with `NotFound`
        as the cause, and is then repeated one by one.
        """

    @property
    def delete_batch(self) -> int:
        """How many keys one delete request takes (1: there is no bulk request)."""


@runtime_checkable
class SupportsServerTime(Protocol):
    """A transport that also knows what time it is where its objects get theirs. None has to."""

    def now(self, *, timeout: float) -> int | None:
        """Return that time in ms, or None; write nothing, and raise nothing."""


@runtime_checkable
class Reads(Protocol):
    """A transport that can also bring bytes alone, for less than `get` does. None has to."""

    def read(self, key: str, span: tuple[int, int], *, timeout: float) -> Buffer:
        """Return those of the bytes `span[0] <= i < span[1]` that the object has; errors as of `get`."""


@runtime_checkable
class LimitsReads(Protocol):
    """A transport that can also refuse a large object before its bytes are in memory. None has to."""

    def get_limited(
        self,
        key: str,
        most: int,
        *,
        if_match: str | None = None,
        if_none_match: str | None = None,
        timeout: float,
    ) -> Fetched | None:
        """Return the whole object as `get` does; `TooLarge` if it has more than `most` bytes (V25)."""


@runtime_checkable
class ListsLevels(Protocol):
    """A transport that can also list one directory without what is below its directories. None has to."""

    def level(self, prefix: str, *, timeout: float) -> Level | None:
        """Return what lies directly in `prefix` (empty, or ending in `/`); None where only `list` can tell exactly."""


Verb = Literal["get", "put", "head", "list", "delete"]


class Requests(Struct, frozen=True):
    """How many requests of each kind were sent, retries included, and how many bytes of content moved."""

    get: int = 0
    put: int = 0
    head: int = 0
    list: int = 0
    delete: int = 0
    bytes_in: int = 0
    bytes_out: int = 0

    @property
    def total(self) -> int:
        return self.get + self.put + self.head + self.list + self.delete

    def __sub__(self, earlier: Requests) -> Requests:
        return Requests(*(getattr(self, name) - getattr(earlier, name) for name in Requests.__struct_fields__))


class RequestCounter:
    """A thread-safe tally. One belongs to each store and to all its views."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(Requests.__struct_fields__, 0)

    def sent(self, verb: Verb, requests: int = 1, *, bytes_in: int = 0, bytes_out: int = 0) -> None:
        with self._lock:
            self._counts[verb] += requests
            self._counts["bytes_in"] += bytes_in
            self._counts["bytes_out"] += bytes_out

    def received(self, bytes_in: int) -> None:
        with self._lock:
            self._counts["bytes_in"] += bytes_in

    def add(self, others: Requests) -> None:
        """Count what somebody else has sent for us."""
        with self._lock:
            for name in Requests.__struct_fields__:
                self._counts[name] += getattr(others, name)

    def read(self) -> Requests:
        with self._lock:
            return Requests(**self._counts)
