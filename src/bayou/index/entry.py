"""One row of the index."""

from __future__ import annotations

from bayou.quick import dataclass
from bayou.store import keys


@dataclass(frozen=True, slots=True)
class Entry:
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
