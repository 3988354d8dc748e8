"""Data that grows while a method runs.

What is written is collected, and goes to the records by time and size: a line of a log is not worth a journal row, a
catalog row and three syncs to disk.
"""

from __future__ import annotations

import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, cast

from bayou.core.redaction import StreamRedactor
from bayou.data.layout import ModelRef
from bayou.data.metadata import Metadata, Options

if TYPE_CHECKING:
    from bayou.data.items import DataRepository

EVERY_S = 1.0
MOST_BYTES = 4 << 20
_IN_MEMORY = 1 << 20


class Stream(ABC):
    """The `with` block of streaming data. Not for several threads at once."""

    printed: Callable[[bytes], None] | None = None
    """Told of what is written, as it is written."""

    redactor: StreamRedactor | None = None
    """Keeps secrets out of it (V26); None where the writer has done that."""

    metadata: Metadata | None = None
    """The version as it is by now; None while there is none."""

    def write(self, data: bytes) -> None:
        """Add to the end."""
        self._tell(data if self.redactor is None else self.redactor.add(data))

    def close(self) -> None:
        """Keep all that was written."""
        if self.redactor is not None:
            self._tell(self.redactor.close())
        self._close()

    def _tell(self, data: bytes) -> None:
        if data:
            if self.printed is not None:
                self.printed(data)
            self._write(data)

    @abstractmethod
    def _write(self, data: bytes) -> None: ...

    @abstractmethod
    def flush_if_due(self) -> None:
        """Let others see what was written, if it has waited long enough. Call it now and then."""

    @abstractmethod
    def _close(self) -> None: ...

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class LiveStream(Stream):
    """Streaming data that others can read while it is written."""

    def __init__(self, data: DataRepository, model: ModelRef, name: str, options: Options, lazily: bool) -> None:
        self._data = data
        self._model = model
        self._name = name
        self._options = options
        self._lazily = lazily
        self._waiting = bytearray()
        self._since = time.monotonic()

    def _write(self, data: bytes) -> None:
        if not self._waiting:
            self._since = time.monotonic()
        self._waiting += data
        self.flush_if_due()

    def flush_if_due(self) -> None:
        if self._waiting and (len(self._waiting) >= MOST_BYTES or time.monotonic() - self._since >= EVERY_S):
            self._flush()

    def _close(self) -> None:
        if self._waiting or (self.metadata is None and not self._lazily):
            self._flush()

    def _flush(self) -> None:
        content, self._waiting = bytes(self._waiting), bytearray()
        if self.metadata is None:
            self.metadata = self._data.save(self._model, self._name, content, **self._options)
        else:
            # By number: a nested run of the same model may have made a newer version meanwhile.
            self.metadata = self._data.append(self._model, self._name, content, self.metadata.version)


class StagedStream(Stream):
    """Streaming data of a method whose data is to be seen only when it has succeeded."""

    def __init__(self, save: Callable[[BinaryIO], None], lazily: bool) -> None:
        self._save = save
        self._lazily = lazily
        self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115  (closed by `close`)

    def _write(self, data: bytes) -> None:
        self._file.write(data)

    def flush_if_due(self) -> None:
        """Nothing is due before the end."""

    def _close(self) -> None:
        with self._file as file:
            if file.tell() or not self._lazily:
                file.seek(0)
                self._save(cast("BinaryIO", file))
