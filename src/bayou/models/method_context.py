"""`MethodContext`: what a running method works with, to save data and to learn when it has to stop.

How its streams and its log are kept is in `method_output`.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from bayou.core.errors import Cancelled, MethodFailed
from bayou.core.redaction import SHORTEST_PRINTED, StreamRedactor, redactor
from bayou.data.content import Content
from bayou.data.layout import Owner
from bayou.data.logs import LOG
from bayou.data.metadata import Metadata, Options
from bayou.models.expressions.evaluate import redact
from bayou.models.method_output import LOG_BYTES, LiveStream, StagedStream, Stream

if TYPE_CHECKING:
    from bayou.core.deadline import Deadline
    from bayou.data.records import Records
    from bayou.models.prepare import PreparedRun
    from bayou.models.types.sql import SqlResult, SqlRunner


class HeldLeases(Protocol):
    """The leases of a session; `lost` once another holder has one of them."""

    @property
    def lost(self) -> bool: ...


class WriteSession(Protocol):
    """The part of a write session that a method uses. `bayou.session` implements it."""

    @property
    def records(self) -> Records: ...

    @property
    def leases(self) -> HeldLeases: ...

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables with which a child process works under the leases of this session (F089)."""

    @property
    def sql_runner(self) -> SqlRunner:
        """Spark's runner of queries, which the session imports only when a method asks for it."""


class MethodContext:
    """One run of a method. Its data becomes visible when it has succeeded, or with `keep_failed` at once.

    Several threads may use it.
    """

    def __init__(
        self,
        session: WriteSession,
        prepared: PreparedRun,
        owner: Owner,
        *,
        tags: Mapping[str, str],
        cancelled: threading.Event,
        printed: Callable[[bytes], None] | None = None,
    ) -> None:
        records = session.records
        self.root: Path = records.repo.root
        """The repo's directory."""
        self.output_id = owner.output or ""
        self.cancelled = cancelled
        """Set when the method is to stop."""
        self._session = session
        self._records = records
        self._model = prepared.request.model.ref
        self._method = prepared.method
        self._owner = owner
        self._tags = tags
        self._secrets = prepared.secrets
        self._printed = printed
        self._lock = threading.Lock()
        self._open = ExitStack()
        self._stage = None if self._method.keep_failed else self._open.enter_context(records.data.stage())
        self._saved: list[Metadata | Stream] = []
        self._has_log = False
        self._ended = False

    @property
    def environment(self) -> dict[str, str]:
        """The environment for processes that the method starts: they work under the leases of this session."""
        offline = {"BAYOU_OFFLINE": "1"} if self._records.repo.offline else {}
        return {**os.environ, **self._session.environment, **offline}

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
        """Save a version of data; options that are not given are as the type declares them.

        The content is the method's own, and is saved unchanged. The name and the tags must have no secrets (V26).
        """
        if self.redact(name) != name:
            raise MethodFailed("the name of what it saved has a secret in it")
        tags = redact(tags, self._secrets) if tags else None
        spec = self._method.output(name)
        options = self._options(name, tags)
        options["content_type"] = content_type or spec.content_type
        options["lifetime"], options["keep"] = lifetime or spec.lifetime, keep or spec.keep
        self._save(name, content, options)

    def stream(self, name: str, *, skip_empty: bool = False, redacted: bool = False) -> Stream:
        """Return the `with` block of data that grows while it is written; `skip_empty` saves nothing if it stays empty.

        A stream is a log, so it redacts secrets, unless the writer has `redacted` them already.
        """
        options = self._options(name, None)
        options["streaming"] = True
        with self._lock:
            self._check()
            if self._stage is not None:
                stream: Stream = StagedStream(lambda file: self._save(name, file, options), skip_empty)
            else:
                stream = LiveStream(self._records.data, self._model, name, options, skip_empty)
                self._saved.append(stream)
        stream.printed = self._printed
        stream.redactor = None if redacted else self.redacting()
        return stream

    def log(self, *, skip_empty: bool = True, redacted: bool = False) -> Stream:
        """Return the `with` block of the method's log. It can be read while it is written.

        It stays however the method ends, since it says why. `skip_empty` and `redacted` as for `stream`. Its size is
        limited (`LOG_BYTES`).
        """
        options = self._options(LOG, None)
        options["streaming"] = True
        options["content_type"] = options["content_type"] or "text/plain"
        with self._lock:
            self._check()
            stream = LiveStream(self._records.data, self._model, LOG, options, skip_empty)
            self._saved.append(stream)
            self._has_log = True
        stream.printed = self._printed
        stream.redactor = None if redacted else self.redacting()
        stream.most = LOG_BYTES
        return stream

    def log_failure(self, text: str) -> None:
        """Make a log of a failure's details if the method has none: a type that runs in this process prints nothing."""
        if not self._has_log:
            with self.log(redacted=True) as log:
                log.write(self.redact(text).encode(errors="backslashreplace"))

    def save_query(self, name: str, sql: str, parameters: Mapping[str, Any], deadline: Deadline) -> SqlResult:
        """Run a query over all records, on Spark, and save its rows. Raises what `SqlRunner` does.

        Only for a method without `keep_failed`: Spark writes to a staged file.
        """
        assert self._stage is not None, "data that is visible at once cannot be staged"
        self._check()
        self._records.catalog.refresh()
        with self._stage.allocate(self._model, name, **self._options(name, None)) as file:
            result = self._session.sql_runner(self._records.repo, sql, parameters, file, deadline)
            self._check()
        return result

    def scratch(self) -> Path:
        """Return a new temporary directory; it is removed when the method has ended."""
        return Path(self._open.enter_context(tempfile.TemporaryDirectory(prefix="bayou-", ignore_cleanup_errors=True)))

    def redact(self, text: str) -> str:
        """Return a text without secrets: values from the environment that expressions used, and credentials.

        Call it on the whole text, before it is collapsed or shortened.
        """
        redacted: str = redact(text, self._secrets)
        return redacted

    def redacting(self) -> StreamRedactor:
        """Return a redactor for what the method prints or returns, chunk by chunk."""
        return redactor(self._secrets, SHORTEST_PRINTED).stream()

    def publish(self) -> None:
        """Make the staged data visible: the method has succeeded."""
        with self._lock:
            if self._stage is not None:
                self._saved.extend(self._stage.publish())

    def end(self) -> list[Metadata]:
        """Refuse further data, and return the metadata of what was saved, in the order in which it was begun."""
        with self._lock:
            self._ended = True
        saved = [entry.metadata if isinstance(entry, Stream) else entry for entry in self._saved]
        return [metadata for metadata in saved if metadata is not None]

    def _save(self, name: str, content: Content, options: Options) -> None:
        with self._lock:
            self._check()
            if self._stage is not None:
                self._stage.save(self._model, name, content, **options)
            else:
                self._saved.append(self._records.data.save(self._model, name, content, **options))

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
        if self._ended:
            raise Cancelled("this method has ended already")

    def __enter__(self) -> MethodContext:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
