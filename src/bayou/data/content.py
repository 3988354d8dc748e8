"""Content on its way: hashed and measured while it passes, never held as a whole; and what it seems to be."""

from __future__ import annotations

import codecs
import functools
import hashlib
import json
import mimetypes
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from msgspec import Struct

CHUNK = 1 << 20
_HEAD = 1 << 16

Content = bytes | BinaryIO | Iterable[bytes]


class Measured(Struct, frozen=True):
    """What was found out about content while it passed. `head` is its beginning, or all of it."""

    size: int
    sha256: str
    head: bytes

    def content_type(self, name: str) -> str:
        """Guess what the content is: by the item's name, if it ends like a file's, else by what it begins with."""
        return type_by_name(name) or _by_look(self.head, whole=len(self.head) == self.size)


def chunks(content: Content) -> Iterator[bytes]:
    """Yield content piece by piece, whatever form it has."""
    if isinstance(content, bytes | bytearray | memoryview):
        yield bytes(content)
    elif hasattr(content, "read"):
        while chunk := content.read(CHUNK):
            yield chunk
    else:
        yield from content


def pass_on(content: Content, target: BinaryIO | None = None) -> Measured:
    """Write content to `target`, if there is one, and say what passed."""
    digest, size, head = hashlib.sha256(), 0, bytearray()
    for chunk in chunks(content):
        digest.update(chunk)
        size += len(chunk)
        if len(head) < _HEAD:
            head += chunk[: _HEAD - len(head)]
        if target is not None:
            target.write(chunk)
    return Measured(size, digest.hexdigest(), bytes(head))


@functools.cache
def _types() -> mimetypes.MimeTypes:
    """Python's own table, not this machine's: one content has one type everywhere."""
    return mimetypes.MimeTypes(filenames=())


def type_by_name(name: str) -> str | None:
    """Return what a file of this name is, if its end tells."""
    kind, encoding = _types().guess_type(name.rpartition("/")[2].replace(":", "_"), strict=True)
    # A compressed CSV is not one that a reader of CSV can read.
    return kind if encoding is None else "application/octet-stream"


def _by_look(head: bytes, *, whole: bool) -> str:
    if not head:
        return "application/octet-stream"
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head, final=whole)
    except UnicodeDecodeError:
        return "application/octet-stream"
    if any(char < " " and char not in "\t\n\r\f\x1b" for char in text):
        return "application/octet-stream"
    return "application/json" if _is_json(text, whole=whole) else "text/plain"


def _is_json(text: str, *, whole: bool) -> bool:
    """Whether a text is JSON, or begins as JSON that goes on beyond it would."""
    if not text.lstrip().startswith(("{", "[")):
        return False
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return not whole and (error.msg.startswith("Unterminated string") or error.pos >= len(text.rstrip()))
    except RecursionError:
        return False
    return True
