"""An entry: one row of the index, which describes the object of one path."""

from __future__ import annotations

import re

from msgspec import Struct

from bayou.core import limits, paths
from bayou.objectstore import keys

STORED, DEFLATED = 0, 8
METHODS = (STORED, DEFLATED)
"""How a file's bytes are kept in a pack, by ZIP's numbers."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Entry(Struct, frozen=True):
    """The content that the index has for a path, and the location of its bytes.

    `push` is the id of the push that made the content (None: discovered, at the plain path). `sha256` is 32 bytes, or
    None after discovery until a Bayou client has read the object. `modified` is the file's mtime when it was uploaded,
    in ms since 1970 UTC.

    The other fields say where the bytes are, if not in the object that path and `push` name. `at` is the id in the
    key's `~` directory, where the object was written again. `pack` is the name of a pack that holds the file: `stored`
    bytes from `offset` on, as they are (`method` 0) or deflated (8). Repair and compaction change the location, never
    `push` (P4).
    """

    path: str
    push: str | None
    size: int
    sha256: bytes | None
    etag: str | None
    version: str | None
    modified: int
    at: str | None = None
    pack: str | None = None
    offset: int | None = None
    stored: int | None = None
    method: int | None = None

    @property
    def key(self) -> keys.Key:
        """The key of the object that has the bytes: of this file alone, or a pack of many files."""
        if self.pack is not None:
            return keys.pack(self.pack)
        return keys.payload(self.path, self.at or self.push)

    def same_content(self, other: Entry) -> bool:
        """Return whether two entries are of one push of the same bytes, wherever these are (P5)."""
        return (self.push, self.size, self.sha256, self.modified) == (
            other.push,
            other.size,
            other.sha256,
            other.modified,
        ) and (self.push is not None or (self.etag, self.version) == (other.etag, other.version))

    def refusal(self) -> str | None:
        """Return why no client may act on this row, in a store or on a disk; None if a client can have written it.

        A digest proves that a commit wrote a row, not that the row is harmless (V21, V25). A refused row stays in the
        index, is reported, and `verify --forget` drops it; no client reads, writes or deletes an object because of it.
        """
        why = paths.refusal(self.path)
        if why is not None:
            return why
        if self.push is not None and not keys.is_push_id(self.push):
            return "its push is not an id"
        if not 0 <= self.size <= limits.SIZE_MAX:
            return f"it claims {self.size} bytes"
        if self.modified not in limits.TIME_MS:
            return "its time is none that a calendar has"
        why = self.location_refusal()
        if why is not None:
            return why
        for label in (self.etag, self.version):
            if label is not None and (len(label.encode()) > limits.LABEL_BYTES or _CONTROL.search(label)):
                return "its ETag or version is too long, or has a control character"
        return None

    def location_refusal(self) -> str | None:
        """Return what is wrong with the location of the bytes; None if a client can have written it."""
        if self.at is not None and not keys.is_push_id(self.at):
            return "its location is not an id"
        if self.pack is None:
            bounds = (self.offset, self.stored, self.method)
            return None if bounds == (None, None, None) else "it names a part of no pack"
        size = keys.pack_bytes(self.pack)
        if size is None or self.at is not None:
            return "its pack is not the name of a pack"
        if self.push is None or self.sha256 is None:
            return "it is in a pack, and has no push or no hash"
        if self.offset is None or self.stored is None or not 0 <= self.offset <= self.offset + self.stored <= size:
            return f"it claims bytes outside its pack of {size} bytes"
        if self.method not in METHODS or (self.method == STORED and self.stored != self.size):
            return "its bytes in the pack are of an unknown kind"
        if not self.stored <= self.size <= limits.PACKED_BYTES:
            return f"it claims {self.size} bytes in a pack"
        return None
