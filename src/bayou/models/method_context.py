"""What a method works with while it runs: where its data goes, and when it has to stop.

Data that grows while a method runs.

What is written is collected, and goes to the records by time and size: a line of a log is not worth a journal row, a
catalog row and three syncs to disk.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, cast

from bayou.core.errors import Cancelled, MethodFailed
from bayou.core.redaction import SHORTEST_PRINTED, StreamRedactor, redactor
from bayou.data.content import Content
from bayou.data.layout import ModelRef, Owner
from bayou.data.metadata import Metadata, Options
from bayou.models.expressions.evaluate import redact

if TYPE_CHECKING:
    from bayou.data.items import DataRepository
    from bayou.data.records import Records
    from bayou.models.types.schema import Method
    from bayou.repo import Repo

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


class MethodContext:
    """One run of a method. Data becomes visible when the method has succeeded, unless it `keep_failed`: then at once.

    Safe to use from several threads.
    """

    def __init__(
        self,
        records: Records,
        model: ModelRef,
        method: Method,
        owner: Owner,
        *,
        tags: Mapping[str, str],
        secrets: frozenset[str],
        environment: Mapping[str, str],
        cancelled: threading.Event,
        printed: Callable[[bytes], None] | None = None,
    ) -> None:
        self.root: Path = records.repo.root
        """The repo's directory."""
        self.output_id = owner.output or ""
        self.cancelled = cancelled
        """Set when the method is to stop."""
        self._environment = environment
        self._records = records
        self._model = model
        self._method = method
        self._owner = owner
        self._tags = tags
        self._secrets = secrets
        self._printed = printed
        self._lock = threading.Lock()
        self._open = ExitStack()
        self._stage = None if method.keep_failed else self._open.enter_context(records.data.stage())
        self._made: list[Metadata | Stream] = []
        self._over = False

    @property
    def environment(self) -> dict[str, str]:
        """The environment for processes that the method starts: they may write under the leases of this session."""
        offline = {"BAYOU_OFFLINE": "1"} if self._records.repo.offline else {}
        return {**os.environ, **self._environment, **offline}

    def save(
        self,
        name: str,
        content: Content,
        *,
        content_type: str | None = None,
        tags: Mapping[str, str] | None = None,
        lifetime: str | None = None,
        keep: str | None = None,
    ) -> None:
        """Save a version of data; what is not said is as the type declares it.

        The content is the method's own, and is kept as it is. Its name and its tags are records, and tell no secret.
        """
        if self.redact(name) != name:
            raise MethodFailed("the name of what it saved has a secret in it")
        tags = redact(tags, self._secrets) if tags else None
        spec = self._method.output(name)
        options = self._options(name, tags)
        options["content_type"] = content_type or spec.content_type
        options["lifetime"], options["keep"] = lifetime or spec.lifetime, keep or spec.keep
        self._save(name, content, options)

    def stream(self, name: str, *, lazily: bool = False, redacted: bool = False) -> Stream:
        """Return the `with` block of data that grows while it is written; `lazily`: none, if nothing is written.

        Secrets are kept out of it: it is a log. `redacted`: the writer does that itself.
        """
        options = self._options(name, None)
        options["streaming"] = True
        with self._lock:
            self._check()
            if self._stage is not None:
                stream: Stream = StagedStream(lambda file: self._save(name, file, options), lazily)
            else:
                stream = LiveStream(self._records.data, self._model, name, options, lazily)
                self._made.append(stream)
        stream.printed = self._printed
        stream.redactor = None if redacted else self.redacting()
        return stream

    @contextmanager
    def room(self, name: str) -> Iterator[Path]:
        """Give the place of a file for others to write; it is a version of data once the block ends.

        Only for a method whose data waits until it has succeeded.
        """
        assert self._stage is not None, "what is seen at once is saved whole"
        self._check()
        options = self._options(name, None)
        with self._stage.room(self._model, name, **options) as file:
            yield file
            self._check()

    def current(self) -> Repo:
        """Return the repo, for whoever asks its catalog: that has all that is recorded here by now."""
        self._records.catalog.refresh()
        return self._records.repo

    def scratch(self) -> Path:
        """Return a new directory for whatever the method needs; it is gone when the method has ended."""
        import tempfile  # noqa: PLC0415

        return Path(self._open.enter_context(tempfile.TemporaryDirectory(prefix="bayou-", ignore_cleanup_errors=True)))

    def redact(self, text: str) -> str:
        """Return a text without secrets: what came from the environment by an expression, and credentials.

        Call it on the whole text, before it is collapsed or cut.
        """
        redacted: str = redact(text, self._secrets)
        return redacted

    def redacting(self) -> StreamRedactor:
        """Return a redactor of what the method prints or returns, piece by piece."""
        return redactor(self._secrets, SHORTEST_PRINTED).stream()

    def publish(self) -> None:
        """Make what is staged visible: the method has succeeded."""
        with self._lock:
            if self._stage is not None:
                self._made.extend(self._stage.publish())

    def end(self) -> list[Metadata]:
        """Take nothing more, drop what is staged, and return what was made, in the order in which it was begun."""
        with self._lock:
            self._over = True
        made = [one.metadata if isinstance(one, Stream) else one for one in self._made]
        return [one for one in made if one is not None]

    def _save(self, name: str, content: Content, options: Options) -> None:
        with self._lock:
            self._check()
            if self._stage is not None:
                self._stage.save(self._model, name, content, **options)
            else:
                self._made.append(self._records.data.save(self._model, name, content, **options))

    def _options(self, name: str, tags: Mapping[str, str] | None) -> Options:
        spec = self._method.output(name)
        return Options(
            content_type=spec.content_type,
            lifetime=spec.lifetime,
            keep=spec.keep,
            tags={**self._tags, **(tags or {})},
            owner=self._owner,
        )

    def _check(self) -> None:
        if self._over:
            raise Cancelled("this method has ended already")

    def __enter__(self) -> MethodContext:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()
