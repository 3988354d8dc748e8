"""The XML that Google Cloud Storage answers with."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import quote

from bayou_testing.gcs_bucket import Page

_DECLARATION = "<?xml version='1.0' encoding='UTF-8'?>"
_NAMESPACE = "http://doc.s3.amazonaws.com/2006-03-01"
# XML has no way to write most control characters; like the real services, write the reference all the same.
_ESCAPED = re.compile("[&<>\"'\\x00-\\x1f\\x7f-\\x9f\\ufffe\\uffff]")


def escape(text: str) -> str:
    """Write text so that a parser gives back each character, line ends and control characters included."""
    return _ESCAPED.sub(lambda match: f"&#{ord(match.group())};", text)


def error(code: str, message: str) -> bytes:
    return _document("Error", [("Code", escape(code)), ("Message", escape(message))])


def listing(bucket: str, page: Page, *, prefix: str, delimiter: str, limit: int, token: str | None, url: bool) -> bytes:
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


def upload_started(bucket: str, key: str, upload: str) -> bytes:
    fields = [("Bucket", escape(bucket)), ("Key", escape(key)), ("UploadId", escape(upload))]
    return _document("InitiateMultipartUploadResult", fields)


def upload_completed(bucket: str, key: str, etag: str) -> bytes:
    fields = [("Bucket", escape(bucket)), ("Key", escape(key)), ("ETag", escape(etag))]
    return _document("CompleteMultipartUploadResult", fields)


def _document(root: str, fields: Iterable[tuple[str, str]]) -> bytes:
    opening = root if root == "Error" else f"{root} xmlns='{_NAMESPACE}'"
    return f"{_DECLARATION}<{opening}>{_elements(fields)}</{root}>".encode("utf-8", "surrogateescape")


def _elements(fields: Iterable[tuple[str, str]]) -> str:
    return "".join(f"<{tag}>{text}</{tag}>" for tag, text in fields)
