"""Content of a version: copied in chunks and hashed on the way, never held as a whole; and a guess of its type."""

from __future__ import annotations

import codecs
import functools
import json
import mimetypes
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from msgspec import Struct

CHUNK = 1 << 20
_HEAD = 1 << 16
DIRECTORY_TYPE = "inode/directory"
"""The content type of a version of many files, unless the caller has one."""

Content = bytes | BinaryIO | Iterable[bytes]


class ContentInfo(Struct, frozen=True):
    """Size, hash and type of content, found while it was copied. `head` is its beginning, or all of it."""

    size: int
    sha256: str
    head: bytes
    files: int | None = None
    """How many files, of a version of many files; `sha256` is then that of the manifest."""

    def content_type(self, name: str) -> str:
        """Guess the content type: by the suffix of the item's name, else by the first bytes."""
        if self.files is not None:
            return DIRECTORY_TYPE
        return type_by_name(name) or _type_by_bytes(self.head, whole=len(self.head) == self.size)


def chunks(content: Content) -> Iterator[bytes]:
    """Yield content in chunks, whatever form it has."""
    if isinstance(content, bytes | bytearray | memoryview):
        yield bytes(content)
    elif hasattr(content, "read"):
        while chunk := content.read(CHUNK):
            yield chunk
    else:
        yield from content


def copy_measured(content: Content, target: BinaryIO | None = None) -> ContentInfo:
    """Copy content to `target`, if it is given, and return its size, hash and first bytes."""
    import hashlib  # noqa: PLC0415  (a list reads no content)

    digest, size, head = hashlib.sha256(), 0, bytearray()
    for chunk in chunks(content):
        digest.update(chunk)
        size += len(chunk)
        if len(head) < _HEAD:
            head += chunk[: _HEAD - len(head)]
        if target is not None:
            target.write(chunk)
    return ContentInfo(size, digest.hexdigest(), bytes(head))


_MORE_TYPES = {
    ".parquet": "application/vnd.apache.parquet",
    ".arrow": "application/vnd.apache.arrow.file",
    ".feather": "application/vnd.apache.arrow.file",
    ".arrows": "application/vnd.apache.arrow.stream",
    ".avro": "application/vnd.apache.avro",
    ".orc": "application/vnd.apache.orc",
    ".jsonl": "application/x-ndjson",
    ".ndjson": "application/x-ndjson",
    ".geojson": "application/geo+json",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
    ".toml": "application/toml",
    ".md": "text/markdown",
    ".log": "text/plain",
    ".sql": "application/sql",
    ".sqlite": "application/vnd.sqlite3",
    ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    ".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
}
"""Types that Python's table lacks, or has only in some versions."""

_MAGIC = (
    (b"PAR1", "application/vnd.apache.parquet"),
    (b"ARROW1\0\0", "application/vnd.apache.arrow.file"),
    (b"Obj\x01", "application/vnd.apache.avro"),
    (b"ORC", "application/vnd.apache.orc"),
    (b"SQLite format 3\0", "application/vnd.sqlite3"),
    (b"%PDF-", "application/pdf"),
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
    (b"(\xb5/\xfd", "application/zstd"),
)
"""The first bytes of binary content, by its type."""

_COMPRESSED = {"gzip": "application/gzip", "bzip2": "application/x-bzip2", "xz": "application/x-xz"}
"""The types of Python's encodings."""


@functools.cache
def _types() -> mimetypes.MimeTypes:
    """Return Python's own table and ours, not this machine's: content has the same type everywhere."""
    table = mimetypes.MimeTypes(filenames=())
    for ending, kind in _MORE_TYPES.items():
        table.add_type(kind, ending)
    return table


def type_by_name(name: str) -> str | None:
    """Return the content type of a file with this name; None if its suffix does not say."""
    kind, encoding = _types().guess_type(name.rpartition("/")[2].replace(":", "_"), strict=True)
    # A CSV reader cannot read a compressed CSV.
    return kind if encoding is None else _COMPRESSED.get(encoding, "application/octet-stream")


def _type_by_bytes(head: bytes, *, whole: bool) -> str:
    if not head:
        return "application/octet-stream"
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head, final=whole)
    except UnicodeDecodeError:
        return _type_by_magic(head)
    if any(char < " " and char not in "\t\n\r\f\x1b" for char in text):
        return _type_by_magic(head)
    return "application/json" if _is_json(text, whole=whole) else "text/plain"


def _type_by_magic(head: bytes) -> str:
    """Return the type of binary content by its first bytes."""
    known = (kind for magic, kind in _MAGIC if head.startswith(magic))
    return next(known, "application/octet-stream")


def _is_json(text: str, *, whole: bool) -> bool:
    """Return whether a text is JSON or, if it is not the whole content, begins like JSON."""
    if not text.lstrip().startswith(("{", "[")):
        return False
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return not whole and (error.msg.startswith("Unterminated string") or error.pos >= len(text.rstrip()))
    except RecursionError:
        return False
    return True
