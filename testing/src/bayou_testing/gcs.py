"""A Google Cloud Storage server (XML API) in this process, with the semantics that a store client relies on.

    with GcsServer(buckets=["b"]) as server:
        GCSStore("b", service_account_key=server.service_account_key(), client_options={"allow_http": True})

Every write gets a new generation, and a write with `x-goog-if-generation-match` checks it and takes effect in one
step. `conditions` makes a server that breaks this promise, to test that a client notices.
"""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from threading import Lock
from typing import Literal

from bayou_testing.faults import Faults
from bayou_testing.gcs_bucket import Blob, Bucket, GcsError, Generations, Upload, add_part, assemble, check_object_name
from bayou_testing.gcs_responses import error_xml, listing_xml, read_blob, upload_completed_xml, upload_started_xml
from bayou_testing.server import LoopbackServer
from bayou_testing.wire import Request, Response, answer

Conditions = Literal["honour", "ignore", "create-only", "racy"]

_KEPT = frozenset({"cache-control", "content-disposition", "content-encoding", "content-language", "content-type"})
_XML = {"Content-Type": "application/xml; charset=UTF-8"}
_RACE_WINDOW = 0.02


class GcsServer(LoopbackServer):
    """Buckets in memory. Without a `bucket` argument, methods use the first bucket.

    `conditions`: "honour" them; "ignore" them all; "create-only" honours generation 0 and lets stale swaps pass;
    "racy" checks, pauses, and writes, so that both of two racing clients win. `min_part` is the least size of a part
    that is not the last; the real one is 5 MiB. A page of a listing has up to `page` rows. `clock` gives the time of a
    write. A test may replace `page` and `clock` at any time.
    """

    def __init__(
        self,
        buckets: Iterable[str] = ("bucket",),
        *,
        conditions: Conditions = "honour",
        faults: Faults | None = None,
        min_part: int = 5 << 20,
        page: int = 1000,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.clock = clock
        self.page = page
        self._lock = Lock()
        self._generations = Generations()
        self._buckets = {name: Bucket(name, self._generations) for name in buckets}
        self._conditions = conditions
        self._min_part = min_part
        super().__init__(faults)

    def service_account_key(self) -> str:
        """Return the key that makes obstore's `GCSStore` speak to this server, without OAuth."""
        names = {"client_email": "", "private_key": "", "private_key_id": ""}
        return json.dumps({"gcs_base_url": self.url, "disable_oauth": True, **names})

    def env(self) -> dict[str, str]:
        """Return the environment in which a client finds this server; plain HTTP it must allow by itself."""
        return {"GOOGLE_SERVICE_ACCOUNT_KEY": self.service_account_key()}

    def create_bucket(self, name: str) -> None:
        with self._lock:
            self._buckets.setdefault(name, Bucket(name, self._generations))

    def put_raw(
        self, key: str, data: bytes, *, bucket: str | None = None, headers: Mapping[str, str] | None = None
    ) -> Blob:
        """Place an object under any key, also one that no client could send."""
        kept = headers or {"content-type": "application/octet-stream"}
        with self._lock:
            return self._bucket(bucket).put(key, data, kept, self.clock())

    def get_raw(self, key: str, *, bucket: str | None = None) -> Blob | None:
        with self._lock:
            return self._bucket(bucket).get(key)

    def delete_raw(self, key: str, *, bucket: str | None = None) -> None:
        """Remove an object; `KeyError` if there is none."""
        with self._lock:
            self._bucket(bucket).delete(key)

    def objects(self, bucket: str | None = None) -> dict[str, Blob]:
        """Return what is there now, in bytewise order of the keys."""
        with self._lock:
            return self._bucket(bucket).snapshot()

    def open_uploads(self, bucket: str | None = None) -> Sequence[str]:
        """Return the key of every multipart upload that was neither completed nor aborted."""
        with self._lock:
            return [upload.key for upload in self._bucket(bucket).uploads.values()]

    def respond(self, request: Request) -> Response:
        name, _, key = request.path.removeprefix("/").partition("/")
        try:
            bucket = self._buckets.get(name)
            if bucket is None:
                raise GcsError(404, "NoSuchBucket", "The specified bucket does not exist.")
            if not key:
                return self._on_bucket(request, bucket)
            check_object_name(key)
            if "uploadId" in request.query or "uploads" in request.query:
                return self._on_upload(request, bucket, key)
            return self._on_object(request, bucket, key)
        except GcsError as error:
            return answer(error.status, error_xml(error.code, error.message), {**_XML, **error.headers})

    def _bucket(self, name: str | None) -> Bucket:
        return next(iter(self._buckets.values())) if name is None else self._buckets[name]

    def _on_bucket(self, request: Request, bucket: Bucket) -> Response:
        if request.method == "HEAD":
            return answer(200)
        if request.method != "GET":
            raise _not_allowed()
        query = request.query
        if query.get("list-type") != "2":
            raise GcsError(501, "NotImplemented", "Only list-type=2 is served here.")
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        most = query.get("max-keys") or str(self.page)
        if not most.isdecimal():
            raise GcsError(400, "InvalidArgument", f"Invalid argument: max-keys={most}")
        limit = min(int(most), self.page)
        if "continuation-token" in query:
            start = _read_token(query["continuation-token"])
        else:
            # The least string above `start-after`: a page starts at a key, not behind one.
            start = query["start-after"] + "\0" if query.get("start-after") else ""
        with self._lock:
            page = bucket.list(prefix, delimiter, start, limit)
        body = listing_xml(
            bucket.name,
            page,
            prefix=prefix,
            delimiter=delimiter,
            limit=limit,
            token=None if page.resume is None else _token(page.resume),
            url=query.get("encoding-type") == "url",
        )
        return answer(200, body, _XML)

    def _on_object(self, request: Request, bucket: Bucket, key: str) -> Response:
        match request.method:
            case "GET" | "HEAD":
                with self._lock:
                    blob = bucket.get(key)
                return read_blob(request, blob)
            case "PUT" if "x-goog-copy-source" in request.headers:
                raise GcsError(501, "NotImplemented", "Copying is not served here.")
            case "PUT" | "DELETE":
                return self._change(request, bucket, key)
        raise _not_allowed()

    def _change(self, request: Request, bucket: Bucket, key: str) -> Response:
        """Check the condition and write; both under one lock, unless this is to be a store that gets it wrong."""
        wanted = request.headers.get("x-goog-if-generation-match")
        if wanted is not None and not wanted.isdecimal():
            raise GcsError(400, "InvalidArgument", f"Invalid argument: {wanted}")
        if self._conditions == "ignore" or (self._conditions == "create-only" and wanted != "0"):
            wanted = None
        if self._conditions == "racy" and wanted is not None:
            with self._lock:
                _check_generation(bucket.get(key), wanted)
            time.sleep(_RACE_WINDOW)
            wanted = None
        with self._lock:
            _check_generation(bucket.get(key), wanted)
            if request.method == "PUT":
                blob = bucket.put(key, request.body, _kept(request), self.clock())
                return answer(200, headers=_written(blob))
            found = bucket.get(key)
            if found is None or request.query.get("generation") not in (None, str(found.generation)):
                raise GcsError(404, "NoSuchKey", "The specified key does not exist.")
            bucket.delete(key)
            return answer(204)

    def _on_upload(self, request: Request, bucket: Bucket, key: str) -> Response:
        if "x-goog-if-generation-match" in request.headers:
            raise GcsError(400, "InvalidArgument", "Multipart uploads take no preconditions.")
        with self._lock:
            if request.method == "POST" and "uploads" in request.query:
                identity = uuid.uuid4().hex
                bucket.uploads[identity] = Upload(key, _kept(request))
                return answer(200, upload_started_xml(bucket.name, key, identity), _XML)
            identity = request.query.get("uploadId", "")
            upload = bucket.uploads.get(identity)
            if upload is None or upload.key != key:
                raise GcsError(404, "NoSuchUpload", "The requested upload was not found.")
            match request.method:
                case "PUT":
                    etag = add_part(upload, request.query.get("partNumber", ""), request.body)
                    return answer(200, headers={"ETag": etag})
                case "POST":
                    data = assemble(upload, request.body, self._min_part)
                    blob = bucket.put(key, data, upload.headers, self.clock(), composite=True)
                    del bucket.uploads[identity]
                    return answer(200, upload_completed_xml(bucket.name, key, blob.etag), _XML | _written(blob))
                case "DELETE":
                    del bucket.uploads[identity]
                    return answer(204)
        raise _not_allowed()


def _check_generation(blob: Blob | None, wanted: str | None) -> None:
    if wanted is not None and int(wanted) != (blob.generation if blob else 0):
        raise GcsError(412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold.")


def _kept(request: Request) -> Mapping[str, str]:
    return {k: v for k, v in request.headers.items() if k in _KEPT or k.startswith("x-goog-meta-")}


def _written(blob: Blob) -> dict[str, str]:
    return {"ETag": blob.etag, "x-goog-generation": str(blob.generation), "x-goog-metageneration": "1"}


def _token(key: str) -> str:
    return base64.urlsafe_b64encode(key.encode()).decode()


def _read_token(token: str) -> str:
    try:
        return base64.urlsafe_b64decode(token).decode()
    except ValueError as error:
        raise GcsError(400, "InvalidArgument", "Invalid continuation token.") from error


def _not_allowed() -> GcsError:
    return GcsError(405, "MethodNotAllowed", "The specified method is not allowed against this resource.")
