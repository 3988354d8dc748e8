"""The store of a simulation: objects in memory, with ETags, conditions, pages of a listing and a clock of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from bayou.core.errors import AlreadyExists, NotFound, PreconditionFailed
from bayou.objectstore.transport import Condition, Create, GetResult, Match, ObjectMeta, PutResult

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass(frozen=True, slots=True)
class Blob:
    """One version of one object."""

    data: bytes
    meta: ObjectMeta


class Watcher(Protocol):
    """Somebody who is told of every change before it is made."""

    def putting(self, who: str, key: str, data: bytes, old: Blob | None) -> None: ...

    def put_done(self, key: str, etag: str | None) -> None: ...

    def deleting(self, who: str, key: str) -> None: ...


@dataclass
class Bucket:
    """Objects by key. `unique_etags`: every write has an ETag of its own (GCS), else equal bytes have one (S3)."""

    unique_etags: bool = False
    page: int = 1000
    delete_batch: int = 1000
    clock: int = 1_700_000_000_000
    objects: dict[str, Blob] = field(default_factory=dict)
    watcher: Watcher | None = None
    writes: int = 0

    def get(
        self, key: str, span: tuple[int, int] | None, if_match: str | None, if_none_match: str | None
    ) -> GetResult | None:
        blob = self._find(key)
        if if_match is not None and if_match != blob.meta.etag:
            raise PreconditionFailed(f"{key} has changed")
        if if_none_match is not None and if_none_match == blob.meta.etag:
            return None
        return GetResult(blob.meta, blob.data if span is None else blob.data[slice(*span)], {})

    def head(self, key: str) -> ObjectMeta:
        return self._find(key).meta

    def put(self, who: str, key: str, data: bytes, condition: Condition | None) -> PutResult:
        old = self.objects.get(key)
        if isinstance(condition, Create):
            if old is not None:
                raise AlreadyExists(f"{key} exists already")
        elif condition is not None and (old is None or old.meta.etag != condition.etag):
            raise PreconditionFailed(f"{key} has changed")
        if self.watcher is not None:
            self.watcher.putting(who, key, data, old)
        self.writes += 1
        etag = f'"{self.writes}"' if self.unique_etags else f'"{hashlib.md5(data).hexdigest()}"'
        version = str(self.writes) if self.unique_etags else None
        self.objects[key] = Blob(data, ObjectMeta(key, len(data), etag, version, self.clock))
        if self.watcher is not None:
            self.watcher.put_done(key, etag)
        return PutResult(etag, version)

    def list_page(self, prefix: str, after: str) -> list[ObjectMeta]:
        """Return what a single request lists; a listing of several pages is no snapshot."""
        found = sorted(key for key in self.objects if key.startswith(prefix) and key > after)
        return [self.objects[key].meta for key in found[: self.page]]

    def delete(self, who: str, key: str) -> None:
        if key in self.objects:
            if self.watcher is not None:
                self.watcher.deleting(who, key)
            del self.objects[key]

    def _find(self, key: str) -> Blob:
        blob = self.objects.get(key)
        if blob is None:
            raise NotFound(f"no such key: {key}")
        return blob


class Gate(Protocol):
    """What every request goes through. `act` is the request's effect on the bucket; the gate decides when, and whether
    anybody hears of it."""

    def sending(self, key: str, data: bytes, etag: str | None) -> None: ...

    def pass_through(self, verb: str, key: str, act: Request) -> object: ...


class Request(Protocol):
    def __call__(self) -> object: ...


class SimTransport:
    """One client's way to the bucket."""

    sorted_listing = True

    def __init__(self, bucket: Bucket, who: str, gate: Gate) -> None:
        self._bucket = bucket
        self._who = who
        self._gate = gate

    @property
    def url(self) -> str:
        return "memory://sim"

    @property
    def delete_batch(self) -> int:
        return self._bucket.delete_batch

    def get(
        self,
        key: str,
        *,
        span: tuple[int, int] | None = None,
        if_match: str | None = None,
        if_none_match: str | None = None,
        timeout: float,
    ) -> GetResult | None:
        found = self._gate.pass_through("get", key, lambda: self._bucket.get(key, span, if_match, if_none_match))
        assert found is None or isinstance(found, GetResult)
        return found

    def head(self, key: str, *, timeout: float) -> ObjectMeta:
        meta = self._gate.pass_through("head", key, lambda: self._bucket.head(key))
        assert isinstance(meta, ObjectMeta)
        return meta

    def put(
        self,
        key: str,
        data: Buffer,
        *,
        condition: Condition | None = None,
        attributes: Mapping[str, str] | None = None,
        timeout: float,
    ) -> PutResult:
        kept = bytes(data)
        self._gate.sending(key, kept, condition.etag if isinstance(condition, Match) else None)
        stored = self._gate.pass_through("put", key, lambda: self._bucket.put(self._who, key, kept, condition))
        assert isinstance(stored, PutResult)
        return stored

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
        return self.put(key, b"".join(chunks), timeout=timeout)

    def list(self, prefix: str, *, after: str | None = None, timeout: float) -> Iterator[Sequence[ObjectMeta]]:
        last = after or ""
        while True:
            page = self._gate.pass_through("list", prefix, lambda last=last: self._bucket.list_page(prefix, last))
            assert isinstance(page, list)
            yield page
            if len(page) < self._bucket.page:
                return
            last = page[-1].key

    def delete(self, keys: Sequence[str], *, timeout: float) -> None:
        doomed = list(keys)

        def act() -> None:
            for key in doomed:
                self._bucket.delete(self._who, key)

        self._gate.pass_through("delete", " ".join(doomed), act)
