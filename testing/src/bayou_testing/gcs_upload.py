"""Multipart uploads of the GCS test server: what a part is, and when the whole is complete."""

from __future__ import annotations

import hashlib
from xml.etree import ElementTree

from bayou_testing.gcs_bucket import Upload
from bayou_testing.gcs_read import GcsError


def add_part(upload: Upload, number: str, data: bytes) -> str:
    """Keep a part, replacing an earlier one of its number; return its ETag."""
    if not number.isdecimal() or not 1 <= int(number) <= 10_000:
        raise GcsError(400, "InvalidArgument", f"Invalid part number: {number}")
    upload.parts[int(number)] = data
    return _etag(data)


def assemble(upload: Upload, manifest: bytes, min_part: int) -> bytes:
    """Join the parts that the manifest lists; they must be there, in order, as uploaded, and large enough."""
    listed = _read(manifest)
    numbers = [number for number, _ in listed]
    if not listed or numbers != sorted(set(numbers)):
        raise GcsError(400, "InvalidPartOrder", "The list of parts was not in ascending order.")
    for number, etag in listed:
        if number not in upload.parts or etag.strip('"') != _etag(upload.parts[number]).strip('"'):
            raise GcsError(400, "InvalidPart", "One or more of the specified parts could not be found.")
    if any(len(upload.parts[number]) < min_part for number in numbers[:-1]):
        raise GcsError(400, "EntityTooSmall", "Your proposed upload is smaller than the minimum object size specified.")
    return b"".join(upload.parts[number] for number in numbers)


def _read(manifest: bytes) -> list[tuple[int, str]]:
    try:
        root = ElementTree.fromstring(manifest)
        return [(int(part.findtext("{*}PartNumber", "")), part.findtext("{*}ETag", "")) for part in root]
    except (ElementTree.ParseError, ValueError) as error:
        raise GcsError(400, "MalformedCompleteMultipartUploadRequest", "The XML you provided was malformed.") from error


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'
