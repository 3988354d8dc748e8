"""One row of the index."""

from __future__ import annotations

import re

from msgspec import Struct

from bayou.core import limits, paths
from bayou.objectstore import keys

_ODD = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Entry(Struct, frozen=True):
    """What the index says of one path.

    `push` is the id of the push that wrote the object (None: discovered, at the plain path). `sha256` is 32 bytes, or
    None after discovery until somebody of ours has read the object. `modified` is the file's mtime when it was
    uploaded, in ms since 1970 UTC.
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
        """Say why nothing may be done by this row, in the store or on a disk; None if it can be what a client wrote.

        A node can be proved to be what its commit wrote, and a row of it still be made to do harm (V21, V25). Such a
        row is carried along, reported and forgotten on request; nobody reads, writes or deletes an object by it.
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
            if label is not None and (len(label.encode()) > limits.LABEL_BYTES or _ODD.search(label)):
                return "its ETag or version is too long, or has a control character"
        return None
