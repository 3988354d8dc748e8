"""An entry: one row of the index, which describes the object of one path."""

from __future__ import annotations

import re

from msgspec import Struct

from bayou.core import limits, paths
from bayou.objectstore import keys

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Entry(Struct, frozen=True):
    """The object that the index has for a path.

    `push` is the id of the push that wrote the object (None: discovered, at the plain path). `sha256` is 32 bytes, or
    None after discovery until a Bayou client has read the object. `modified` is the file's mtime when it was uploaded,
    in ms since 1970 UTC.
    """

    path: str
    push: str | None
    size: int
    sha256: bytes | None
    etag: str | None
    version: str | None
    modified: int

    @property
    def key(self) -> keys.Key:
        """The key of this entry's object."""
        return keys.payload(self.path, self.push)

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
        for label in (self.etag, self.version):
            if label is not None and (len(label.encode()) > limits.LABEL_BYTES or _CONTROL.search(label)):
                return "its ETag or version is too long, or has a control character"
        return None
