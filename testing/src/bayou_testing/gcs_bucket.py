"""A bucket of the GCS test server: objects with generations, their listing, and multipart uploads.

Nothing here locks: `bayou_testing.gcs.GcsServer` calls it under its own lock. Errors are `GcsError`s, which the server
turns into answers.
"""

from __future__ import annotations

import base64
import hashlib
import time
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from datetime import datetime
from xml.etree import ElementTree

from msgspec import Struct, field


class GcsError(Exception):
    """An answer that is an error, with the code and the message of the XML API."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = headers or {}


class Blob(Struct, frozen=True):
    """An object as it was written. `headers` are those that GCS keeps: content type and such, and `x-goog-meta-*`."""

    data: bytes
    generation: int
    etag: str
    modified: datetime
    headers: Mapping[str, str]


class Upload(Struct):
    """An open multipart upload; nothing of it is visible as an object."""

    key: str
    headers: Mapping[str, str]
    parts: dict[int, bytes] = field(default_factory=dict)


class Page(Struct, frozen=True):
    """A page of a listing: `resume` is where the next one starts, None at the end."""

    blobs: Sequence[tuple[str, Blob]]
    prefixes: Sequence[str]
    resume: str | None


class Generations:
    """Generation numbers as GCS gives them: microseconds, and never one twice or a lower one later."""

    def __init__(self) -> None:
        self._last = 0

    def next(self) -> int:
        self._last = max(self._last + 1, time.time_ns() // 1000)
        return self._last


class Bucket:
    """Objects by key, kept in order. Strings compare by code point, which is the order of their UTF-8 bytes."""

    def __init__(self, name: str, generations: Generations) -> None:
        self.name = name
        self.uploads: dict[str, Upload] = {}
        self._generations = generations
        self._blobs: dict[str, Blob] = {}
        self._keys: list[str] = []

    def get(self, key: str) -> Blob | None:
        return self._blobs.get(key)

    def put(
        self, key: str, data: bytes, headers: Mapping[str, str], modified: datetime, *, composite: bool = False
    ) -> Blob:
        """Replace an object. A simple one has the MD5 of its bytes as ETag, so equal bytes have equal ETags."""
        generation = self._generations.next()
        name = (
            "-" + base64.b64encode(generation.to_bytes(8, "big")).decode()
            if composite
            else hashlib.md5(data, usedforsecurity=False).hexdigest()
        )
        blob = Blob(data, generation, f'"{name}"', modified, dict(headers))
        if key not in self._blobs:
            insort(self._keys, key)
        self._blobs[key] = blob
        return blob

    def delete(self, key: str) -> None:
        del self._blobs[key]
        del self._keys[bisect_left(self._keys, key)]

    def snapshot(self) -> dict[str, Blob]:
        return {key: self._blobs[key] for key in self._keys}

    def list(self, prefix: str, delimiter: str, start: str, limit: int) -> Page:
        """Return up to `limit` keys and common prefixes from `start` (inclusive) on."""
        blobs: list[tuple[str, Blob]] = []
        prefixes: list[str] = []
        at = bisect_left(self._keys, max(prefix, start))
        while at < len(self._keys) and self._keys[at].startswith(prefix):
            key = self._keys[at]
            if len(blobs) + len(prefixes) >= limit:
                return Page(blobs, prefixes, key)
            end = key.find(delimiter, len(prefix)) if delimiter else -1
            if end < 0:
                blobs.append((key, self._blobs[key]))
                at += 1
            else:
                group = key[: end + len(delimiter)]
                prefixes.append(group)
                at = self._after(group, at)
        return Page(blobs, prefixes, None)

    def _after(self, group: str, at: int) -> int:
        """Find the first key from `at` on that is not of this group; the group's own keys come first."""
        return bisect_left(self._keys, True, at, key=lambda key: not key.startswith(group))


def check_object_name(key: str) -> None:
    """Raise `GcsError` 400 for a name that the real service does not accept over HTTP."""
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise GcsError(400, "InvalidURI", "Could not parse the specified URI: not UTF-8.") from error
    if size > 1024 or key in (".", "..") or "\r" in key or "\n" in key:
        raise GcsError(400, "InvalidObjectName", "The specified object name is not valid.")


def add_part(upload: Upload, number: str, data: bytes) -> str:
    """Keep a part, replacing an earlier one of its number; return its ETag."""
    if not number.isdecimal() or not 1 <= int(number) <= 10_000:
        raise GcsError(400, "InvalidArgument", f"Invalid part number: {number}")
    upload.parts[int(number)] = data
    return _etag(data)


def assemble(upload: Upload, manifest: bytes, min_part: int) -> bytes:
    """Join the parts that the manifest lists; they must be there, in order, as uploaded, and large enough."""
    listed = _read_manifest(manifest)
    numbers = [number for number, _ in listed]
    if not listed or numbers != sorted(set(numbers)):
        raise GcsError(400, "InvalidPartOrder", "The list of parts was not in ascending order.")
    for number, etag in listed:
        if number not in upload.parts or etag.strip('"') != _etag(upload.parts[number]).strip('"'):
            raise GcsError(400, "InvalidPart", "One or more of the specified parts could not be found.")
    if any(len(upload.parts[number]) < min_part for number in numbers[:-1]):
        raise GcsError(400, "EntityTooSmall", "Your proposed upload is smaller than the minimum object size specified.")
    return b"".join(upload.parts[number] for number in numbers)


def _read_manifest(manifest: bytes) -> list[tuple[int, str]]:
    try:
        root = ElementTree.fromstring(manifest)
        return [(int(part.findtext("{*}PartNumber", "")), part.findtext("{*}ETag", "")) for part in root]
    except (ElementTree.ParseError, ValueError) as error:
        raise GcsError(400, "MalformedCompleteMultipartUploadRequest", "The XML you provided was malformed.") from error


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'
