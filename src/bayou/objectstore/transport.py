"""The interface of a storage provider: each method sends one request, once.

`Store` adds scope, retries, deadlines, request counts and large files; a transport knows none of these. A transport
takes full keys of the bucket (or paths below the directory) and translates the provider's errors to those of
`bayou.core.errors`; no other module does. Concerns that cut across providers, such as faults in tests or recording, are
transports that wrap a transport.

`RequestCounter` counts the requests that a store really sent (V17).
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
    """The metadata of one object. `modified` is a time of the store's clock, in ms since 1970 UTC."""

    key: str
    size: int
    etag: str | None
    version: str | None
    modified: int


class GetResult(Struct, frozen=True):
    """Bytes, and the metadata that came in the same response (V2)."""

    meta: ObjectMeta
    data: Buffer
    attributes: Mapping[str, str]


class PutResult(SelectiveStruct, frozen=True):
    """The fingerprint that a write returned (V2).

    `repeated`: the client sent the write more than once, and the store may still execute an earlier request, which
    writes the same bytes again.
    """

    uncompared: ClassVar[tuple[str, ...]] = ("repeated",)

    etag: str | None
    version: str | None
    repeated: bool = False


class Create(Struct, frozen=True):
    """Write only if there is no object of this key; otherwise raise `AlreadyExists`."""


class Match(Struct, frozen=True):
    """Write only over this version; otherwise raise `PreconditionFailed`.

    Pass both values as the store returned them.
    """

    etag: str | None
    version: str | None = None


Condition = Create | Match


class DirectoryListing(Struct, frozen=True):
    """The directories (each ends in `/`) and objects directly in one directory.

    `objects` can be iterated once.
    """

    directories: Sequence[str]
    objects: Iterable[ObjectMeta]


class Transport(Protocol):
    """One object store, unscoped. Threads may share a transport; processes may not."""

    @property
    def url(self) -> str:
        """Scheme and bucket (or directory), for messages; never holds a secret."""

    def get(
        self,
        key: str,
        *,
        span: tuple[int, int] | None = None,
        if_match: str | None = None,
        if_none_match: str | None = None,
        timeout: float,
    ) -> GetResult | None:
        """Return the object, or its bytes `span[0] <= i < span[1]`; return None only for "not modified".

        Raise `NotFound` only for a real "no such key" (V4), `PreconditionFailed` if `if_match` does not hold, and
        `BadAnswer` for a body shorter than announced. `meta.size` is the size of the whole object, also with a span.
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
    ) -> PutResult:
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
    ) -> PutResult:
        """Write a large object from parts; it appears whole at the end, or never if `chunks` raises.

        An exception from `chunks` propagates unchanged; the transport then removes the uploaded parts if it can.
        """

    def list(self, prefix: str, *, after: str | None = None, timeout: float) -> Iterator[Sequence[ObjectMeta]]:
        """Yield pages of the objects whose key starts with `prefix` (empty, or ending in `/`), beyond `after`.

        The pages are ordered by key if `sorted_listing`. Keys are exactly those of the store, unusual ones included.
        Each request yields one page, an empty one too: the store counts requests by pages.
        """

    @property
    def sorted_listing(self) -> bool:
        """Whether `list` yields keys in bytewise order, so that `after` can resume it."""

    def delete(self, keys: Sequence[str], *, timeout: float) -> None:
        """Delete up to `delete_batch` objects; deleting a single absent object is no error.

        `DeleteFailed` names the objects that still exist, as far as the response says. A batch may fail with `NotFound`
        as the cause; `Store` then deletes its keys one by one.
        """

    @property
    def delete_batch(self) -> int:
        """How many keys one delete request takes (1: the store has no bulk delete)."""


@runtime_checkable
class SupportsServerTime(Protocol):
    """Optional: a transport that can read the clock from which the store stamps its objects."""

    def now(self, *, timeout: float) -> int | None:
        """Return the store's time in ms, or None if it is unknown; write nothing and raise nothing."""


@runtime_checkable
class SupportsRead(Protocol):
    """Optional: a transport that can read bytes without metadata, at a lower cost than `get`."""

    def read(self, key: str, span: tuple[int, int], *, timeout: float) -> Buffer:
        """Return those of the bytes `span[0] <= i < span[1]` that the object has; raise what `get` raises."""


@runtime_checkable
class SupportsReadLimit(Protocol):
    """Optional: a transport that can refuse a large object before it reads the bytes into memory."""

    def get_limited(
        self,
        key: str,
        most: int,
        *,
        if_match: str | None = None,
        if_none_match: str | None = None,
        timeout: float,
    ) -> GetResult | None:
        """Return the whole object as `get` does; raise `TooLarge` if it has more than `most` bytes (V25)."""


@runtime_checkable
class SupportsUnquotedMatch(Protocol):
    """Optional: a transport to a server that may want ETags without their quotes in conditions, as Ceph before 20 does.

    `unquoted` is None where the form is known to be right; False: with quotes, which is not proved yet; True: without.
    """

    unquoted: bool | None

    def with_unquoted(self) -> Transport:
        """Return a transport to the same server that sends ETags without quotes; this one stays as it is."""


@runtime_checkable
class SupportsDirectoryListing(Protocol):
    """Optional: a transport that can list one directory without the contents of its subdirectories."""

    def list_directory(self, prefix: str, *, timeout: float) -> DirectoryListing | None:
        """Return the content of `prefix` (empty, or ending in `/`); None where only `list` gives an exact answer."""


class UnfinishedUpload(Struct, frozen=True):
    """An upload that was begun at `begun` (ms, by the store's clock), and neither completed nor aborted."""

    key: str
    upload: str
    begun: int


class PartTransport(Protocol):
    """Uploads in parts, whose id outlives the process that began them. Each method sends one request, once."""

    @property
    def least_part(self) -> int:
        """The fewest bytes of a part that is not the last one."""

    @property
    def registered(self) -> bool:
        """Whether the store keeps a record of uploads; otherwise `begin`, `abort` and `unfinished` send no request."""

    def begin(self, key: str, *, timeout: float) -> str:
        """Begin an upload, of which nothing can be seen until it is completed; return its id."""

    def put_part(self, key: str, upload: str, number: int, data: Buffer, *, timeout: float) -> str:
        """Send a part, numbered from 1, over an earlier part of this number; return the tag that `complete` needs.

        Raise `UploadGone` if the store no longer knows the upload.
        """

    def complete(self, key: str, upload: str, tags: Sequence[str], *, timeout: float) -> PutResult:
        """Make the object from its parts, in their order; `UploadGone` if the upload or one of its parts is gone.

        A store that names no ETag in its answer leaves it None; the caller then proves that the object is there.
        """

    def abort(self, key: str, upload: str, *, timeout: float) -> None:
        """Drop an upload and its parts; it is no error if the upload is gone."""

    def unfinished(self, prefix: str, *, timeout: float) -> Iterator[Sequence[UnfinishedUpload]]:
        """Yield pages of the uploads whose key starts with `prefix` and that are neither completed nor aborted."""


@runtime_checkable
class SupportsParts(Protocol):
    """Optional: a transport whose large uploads can be resumed, by this process and by later ones."""

    def parts(self) -> PartTransport | None:
        """Return the access to parts, or None where the provider, its settings or its installed SDK allow none."""


Verb = Literal["get", "put", "head", "list", "delete"]


class Requests(Struct, frozen=True):
    """How many requests of each kind a store sent, retries included, and how many bytes of content it moved."""

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

    def __add__(self, other: Requests) -> Requests:
        return Requests(*(getattr(self, name) + getattr(other, name) for name in Requests.__struct_fields__))

    def __sub__(self, earlier: Requests) -> Requests:
        return Requests(*(getattr(self, name) - getattr(earlier, name) for name in Requests.__struct_fields__))


class RequestCounter:
    """A thread-safe count of requests, which a store shares with all its views."""

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
        """Add the requests that another process sent on behalf of this store."""
        with self._lock:
            for name in Requests.__struct_fields__:
                self._counts[name] += getattr(others, name)

    def read(self) -> Requests:
        with self._lock:
            return Requests(**self._counts)
