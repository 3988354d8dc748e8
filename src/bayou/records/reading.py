"""Reading content: fetched if it is not here, and proved when it was read in full."""

from __future__ import annotations

import hashlib
import io
from typing import TYPE_CHECKING, BinaryIO

from bayou.core.errors import ContentDamaged, NotFound, RecordError
from bayou.records.context import Context
from bayou.records.item import Item
from bayou.records.metadata import Metadata

if TYPE_CHECKING:
    from typing_extensions import Buffer

_BUFFER = 1 << 17


def open_content(context: Context, item: Item) -> BinaryIO:
    """Open the content of a version; whoever reads to the end knows that it is whole, or gets `ContentDamaged`."""
    fetch(context, item.path)
    try:
        file = context.tree.open(item.path)
    except FileNotFoundError:
        raise _gone(context, item.path) from None
    return io.BufferedReader(_Proved(file, item.metadata, item.path), _BUFFER)


def fetch(context: Context, path: str, within: str | None = None) -> None:
    """Bring content here, if it is not; with `within`, all that is missing of a directory, at once."""
    if context.tree.exists(path):
        return
    if context.repo.offline and context.repo.config.datastore.url is not None:
        raise RecordError(
            f"the content of {path} is not here, and this is offline", hint=f"bayou datastore hydrate {path}"
        )
    try:
        context.sync.hydrate(within or path)
    except NotFound:
        raise _gone(context, path) from None
    if not context.tree.exists(path):
        raise _gone(context, path)


def _gone(context: Context, path: str) -> ContentDamaged:
    shared = context.repo.config.datastore.url is not None
    return ContentDamaged(
        f"the content of {path} is missing",
        hint="bayou datastore verify shows what is damaged"
        if shared
        else "bring the file back from a backup, or delete the version: bayou data delete",
    )


class _Proved(io.RawIOBase):
    """A file that is hashed while it is read, and compared with its metadata when its end is reached.

    What lies beyond the size that the metadata tells is not content: an append that is under way, or was killed.
    """

    def __init__(self, file: BinaryIO, metadata: Metadata, path: str) -> None:
        super().__init__()
        self._file = file
        self._path = path
        self._left = metadata.size
        self._size = metadata.size
        self._sha256 = metadata.sha256
        self._streaming = metadata.streaming
        self._digest = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer).cast("B")
        # One byte beyond the end, so that content that is too long is noticed where it must not be.
        count = self._file.readinto(view[: self._left] if self._streaming else view)  # type: ignore[attr-defined]
        self._digest.update(view[:count])
        self._left -= count
        if view.nbytes and (count == 0 or (self._streaming and not self._left)):
            self._prove()
        return int(count)

    def _prove(self) -> None:
        if self._sha256 is None:
            return  # appended to: it has no hash of its own, and the index has one
        if self._digest.hexdigest() != self._sha256:
            raise ContentDamaged(
                f"{self._path} is not what was saved: its SHA-256 is another one",
                hint="bayou datastore verify shows what is damaged",
            )

    def close(self) -> None:
        self._file.close()
        super().close()
