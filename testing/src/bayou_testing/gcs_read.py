"""How the GCS test server answers a read: preconditions, then the range."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from email.utils import format_datetime, parsedate_to_datetime

from bayou_testing.gcs_bucket import Blob
from bayou_testing.wire import Request, Response, answer

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


class GcsError(Exception):
    """An answer that is an error, in the words of the XML API."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = headers or {}


def refuse(key: str) -> None:
    """Raise for a name that the real service does not accept over HTTP."""
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise GcsError(400, "InvalidURI", "Could not parse the specified URI: not UTF-8.") from error
    if size > 1024 or key in (".", "..") or "\r" in key or "\n" in key:
        raise GcsError(400, "InvalidObjectName", "The specified object name is not valid.")


def read_blob(request: Request, blob: Blob | None) -> Response:
    """Answer GET or HEAD of this object with 200, 206 or 304; `GcsError` 404, 412 or 416."""
    if blob is None or request.query.get("generation") not in (None, str(blob.generation)):
        raise GcsError(404, "NoSuchKey", "The specified key does not exist.")
    headers = {
        **blob.headers,
        "ETag": blob.etag,
        "Last-Modified": format_datetime(blob.modified, usegmt=True),
        "Accept-Ranges": "bytes",
        "x-goog-generation": str(blob.generation),
        "x-goog-metageneration": "1",
        "x-goog-stored-content-length": str(len(blob.data)),
    }
    if not _as_demanded(request.headers, blob):
        raise GcsError(412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold.")
    if _not_modified(request.headers, blob):
        return answer(304, headers=headers)
    size = len(blob.data)
    span = _span(request.headers.get("range", ""), size)
    if span is None:
        return answer(200, blob.data, headers)
    start, end = span
    if start >= end:
        unit = {"Content-Range": f"bytes */{size}"}
        raise GcsError(416, "InvalidRange", "The requested range cannot be satisfied.", unit)
    return answer(206, blob.data[start:end], headers | {"Content-Range": f"bytes {start}-{end - 1}/{size}"})


def _as_demanded(headers: Mapping[str, str], blob: Blob) -> bool:
    wanted = headers.get("x-goog-if-generation-match")
    if wanted is not None and wanted != str(blob.generation):
        return False
    if "if-match" in headers:
        return _names(headers["if-match"], blob.etag)
    since = _date(headers.get("if-unmodified-since"))
    return since is None or blob.modified.replace(microsecond=0) <= since


def _not_modified(headers: Mapping[str, str], blob: Blob) -> bool:
    if "if-none-match" in headers:
        return _names(headers["if-none-match"], blob.etag)
    since = _date(headers.get("if-modified-since"))
    return since is not None and blob.modified.replace(microsecond=0) <= since


def _names(etags: str, etag: str) -> bool:
    return any(each.strip() in ("*", etag) for each in etags.split(","))


def _date(text: str | None) -> datetime | None:
    try:
        return None if text is None else parsedate_to_datetime(text)
    except ValueError:
        return None  # As RFC 9110 has it: a date that cannot be read is no condition.


def _span(header: str, size: int) -> tuple[int, int] | None:
    """Return the bytes asked for; None for the whole, empty if there are none of them."""
    match = _RANGE.fullmatch(header.strip())
    if match is None or match.group(0) == "bytes=-":
        return None
    first, last = match.groups()
    if not first:
        return max(0, size - int(last)), size
    if last and int(last) < int(first):
        return None
    return int(first), min(size, int(last) + 1) if last else size
