"""Responses of the GCS test server: reads of an object (preconditions, then the range), and the XML documents."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from email.utils import format_datetime, parsedate_to_datetime
from urllib.parse import quote

from bayou_testing.gcs_bucket import Blob, GcsError, Page
from bayou_testing.wire import Request, Response, answer

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_DECLARATION = "<?xml version='1.0' encoding='UTF-8'?>"
_NAMESPACE = "http://doc.s3.amazonaws.com/2006-03-01"
# XML has no way to write most control characters; like the real services, write the reference all the same.
_ESCAPED = re.compile("[&<>\"'\\x00-\\x1f\\x7f-\\x9f\\ufffe\\uffff]")


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
    if not _preconditions_hold(request.headers, blob):
        raise GcsError(412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold.")
    if _not_modified(request.headers, blob):
        return answer(304, headers=headers)
    size = len(blob.data)
    byte_range = _requested_range(request.headers.get("range", ""), size)
    if byte_range is None:
        return answer(200, blob.data, headers)
    start, end = byte_range
    if start >= end:
        whole = {"Content-Range": f"bytes */{size}"}
        raise GcsError(416, "InvalidRange", "The requested range cannot be satisfied.", whole)
    return answer(206, blob.data[start:end], headers | {"Content-Range": f"bytes {start}-{end - 1}/{size}"})


def escape(text: str) -> str:
    """Write text so that a parser gives back each character, line ends and control characters included."""
    return _ESCAPED.sub(lambda match: f"&#{ord(match.group())};", text)


def error_xml(code: str, message: str) -> bytes:
    return _document("Error", [("Code", escape(code)), ("Message", escape(message))])


def listing_xml(
    bucket: str, page: Page, *, prefix: str, delimiter: str, limit: int, token: str | None, url: bool
) -> bytes:
    """Render a page. `url`: keys are percent-encoded, as `encoding-type=url` asks for."""

    def name(text: str) -> str:
        return quote(text, safe="/") if url else escape(text)

    fields = [
        ("Name", escape(bucket)),
        ("Prefix", name(prefix)),
        ("KeyCount", str(len(page.blobs) + len(page.prefixes))),
        ("MaxKeys", str(limit)),
        ("IsTruncated", "true" if page.resume is not None else "false"),
    ]
    if delimiter:
        fields.append(("Delimiter", name(delimiter)))
    if url:
        fields.append(("EncodingType", "url"))
    if token is not None:
        fields.append(("NextContinuationToken", escape(token)))
    for key, blob in page.blobs:
        modified = blob.modified.strftime("%Y-%m-%dT%H:%M:%S.") + f"{blob.modified.microsecond // 1000:03}Z"
        rows = [
            ("Key", name(key)),
            ("Generation", str(blob.generation)),
            ("MetaGeneration", "1"),
            ("LastModified", modified),
            ("ETag", escape(blob.etag)),
            ("Size", str(len(blob.data))),
        ]
        fields.append(("Contents", _elements(rows)))
    fields += [("CommonPrefixes", _elements([("Prefix", name(group))])) for group in page.prefixes]
    return _document("ListBucketResult", fields)


def upload_started_xml(bucket: str, key: str, upload: str) -> bytes:
    fields = [("Bucket", escape(bucket)), ("Key", escape(key)), ("UploadId", escape(upload))]
    return _document("InitiateMultipartUploadResult", fields)


def upload_completed_xml(bucket: str, key: str, etag: str) -> bytes:
    fields = [("Bucket", escape(bucket)), ("Key", escape(key)), ("ETag", escape(etag))]
    return _document("CompleteMultipartUploadResult", fields)


def _preconditions_hold(headers: Mapping[str, str], blob: Blob) -> bool:
    wanted = headers.get("x-goog-if-generation-match")
    if wanted is not None and wanted != str(blob.generation):
        return False
    if "if-match" in headers:
        return _matches_etag(headers["if-match"], blob.etag)
    since = _parse_date(headers.get("if-unmodified-since"))
    return since is None or blob.modified.replace(microsecond=0) <= since


def _not_modified(headers: Mapping[str, str], blob: Blob) -> bool:
    if "if-none-match" in headers:
        return _matches_etag(headers["if-none-match"], blob.etag)
    since = _parse_date(headers.get("if-modified-since"))
    return since is not None and blob.modified.replace(microsecond=0) <= since


def _matches_etag(etags: str, etag: str) -> bool:
    return any(each.strip() in ("*", etag) for each in etags.split(","))


def _parse_date(text: str | None) -> datetime | None:
    try:
        return None if text is None else parsedate_to_datetime(text)
    except ValueError:
        return None  # As RFC 9110 has it: a date that cannot be read is no condition.


def _requested_range(header: str, size: int) -> tuple[int, int] | None:
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


def _document(root: str, fields: Iterable[tuple[str, str]]) -> bytes:
    opening = root if root == "Error" else f"{root} xmlns='{_NAMESPACE}'"
    return f"{_DECLARATION}<{opening}>{_elements(fields)}</{root}>".encode("utf-8", "surrogateescape")


def _elements(fields: Iterable[tuple[str, str]]) -> str:
    return "".join(f"<{tag}>{text}</{tag}>" for tag, text in fields)
