"""What is kept of a method's output: its log, and other data that grows while the method runs.

A `Stream` buffers what the method writes, and appends to the record by time and size: one line of a log is not worth a
journal row, a catalog row and three syncs to disk. The log of a method (`MethodContext.log`) is a `LiveStream`, and its
size is limited (`LOG_BYTES`, `LOG_TAIL`).
"""

from __future__ import annotations

import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO, cast

if TYPE_CHECKING:
    from bayou.core.redaction import StreamRedactor
    from bayou.data.items import DataRepository
    from bayou.data.layout import ModelRef
    from bayou.data.metadata import Metadata, Options

FLUSH_S = 1.0
FLUSH_BYTES = 4 << 20
_IN_MEMORY = 1 << 20

LOG_BYTES = 256 << 20
LOG_TAIL = 128 << 10
"""A log has the first `LOG_BYTES` of what a method prints, and, if that was more, its last `LOG_TAIL` (V25)."""


class Stream(ABC):
    """The `with` block of streaming data. Only one thread may use it at a time."""

    printed: Callable[[bytes], None] | None = None
    """Called with the data as it is written."""

    redactor: StreamRedactor | None = None
    """Redacts secrets (V26); None if the writer has done that."""

    metadata: Metadata | None = None
    """The version as it is now; None before the first flush."""

    most: int | None = None
    """After so many bytes only the last ones are kept, and a line that says how many were left out."""

    _written = 0
    _tail = b""
    _left_out = 0

    def write(self, data: bytes) -> None:
        """Add to the end."""
        self._emit(data if self.redactor is None else self.redactor.add(data))

    def close(self) -> None:
        """Save all that was written."""
        if self.redactor is not None:
            self._emit(self.redactor.close())
        if self._left_out:
            self._write(f"\n[… {self._left_out:,} bytes left out …]\n".encode())
        if self._tail:
            self._write(self._tail)
        self._close()

    def _emit(self, data: bytes) -> None:
        if data:
            if self.printed is not None:
                self.printed(data)
            data = self._within_most(data)
            if data:
                self._write(data)

    def _within_most(self, data: bytes) -> bytes:
        """Return what may be written now; `close` writes the end of the rest."""
        room = len(data) if self.most is None else max(0, self.most - self._written)
        self._written += min(room, len(data))
        if room < len(data):
            tail = self._tail + data[room:]
            self._tail = tail[-LOG_TAIL:]
            self._left_out += len(tail) - len(self._tail)
        return data[:room]

    @abstractmethod
    def _write(self, data: bytes) -> None: ...

    @abstractmethod
    def flush_if_due(self) -> None:
        """Append the buffer to the record if it is old or large enough. Call this regularly."""

    @abstractmethod
    def _close(self) -> None: ...

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LiveStream(Stream):
    """Streaming data that can be read while it is written."""

    def __init__(self, data: DataRepository, model: ModelRef, name: str, options: Options, skip_empty: bool) -> None:
        self._data = data
        self._model = model
        self._name = name
        self._options = options
        self._skip_empty = skip_empty
        self._waiting = bytearray()
        self._since = time.monotonic()

    def _write(self, data: bytes) -> None:
        if not self._waiting:
            self._since = time.monotonic()
        self._waiting += data
        self.flush_if_due()

    def flush_if_due(self) -> None:
        if self._waiting and (len(self._waiting) >= FLUSH_BYTES or time.monotonic() - self._since >= FLUSH_S):
            self._flush()

    def _close(self) -> None:
        if self._waiting or (self.metadata is None and not self._skip_empty):
            self._flush()

    def _flush(self) -> None:
        content, self._waiting = bytes(self._waiting), bytearray()
        if self.metadata is None:
            self.metadata = self._data.save(self._model, self._name, content, **self._options)
        else:
            # By number: a nested run of the same model may have made a newer version meanwhile.
            self.metadata = self._data.append(self._model, self._name, content, self.metadata.version)


class StagedStream(Stream):
    """Streaming data of a method whose data becomes visible only when the method has succeeded."""

    def __init__(self, save: Callable[[BinaryIO], None], skip_empty: bool) -> None:
        self._save = save
        self._skip_empty = skip_empty
        self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115  (closed by `close`)

    def _write(self, data: bytes) -> None:
        self._file.write(data)

    def flush_if_due(self) -> None:
        """Do nothing: the data is saved at the end."""

    def _close(self) -> None:
        with self._file as file:
            if file.tell() or not self._skip_empty:
                file.seek(0)
                self._save(cast("BinaryIO", file))
