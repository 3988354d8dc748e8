"""What a task tells of the files that it has worked on, as rows: `sync.transfer.executor`'s results, and what it cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple, TypeVar, cast

import pyarrow

from bayou.core import errors
from bayou.core.errors import BayouError, SparkFailed
from bayou.objectstore.store import Store
from bayou.objectstore.transport import Requests
from bayou.pipeline.arrow import BYTES, INT, TEXT, batches_of_rows
from bayou.pipeline.arrow import rows as values
from bayou.sync.report import Failure

Outcome = Literal["done", "nothing", "failed", "stopped", "sent"]
"""A path was done, or there was nothing to do it with, or it failed; nothing could be done; requests of one kind."""

MOVED = pyarrow.schema(
    {
        "outcome": TEXT,
        "path": TEXT,
        "sha256": BYTES,
        "etag": TEXT,
        "version": TEXT,
        "file": TEXT,
        "code": TEXT,
        "message": TEXT,
        "hint": TEXT,
        "requests": INT,
    }
)

_AT_ONCE = 1000

R = TypeVar("R")


class Row(NamedTuple):
    """A row of `MOVED`."""

    outcome: Outcome
    path: str | None = None
    sha256: bytes | None = None
    etag: str | None = None
    version: str | None = None
    file: str | None = None
    code: str | None = None
    message: str | None = None
    hint: str | None = None
    requests: int | None = None


def told(results: Iterable[R | Failure], to_row: Callable[[R], Row], store: Store) -> Iterator[Row]:
    """Yield a row for each result, and at the end what was sent to the store for them.

    An error that every path would meet is told, not raised: Spark would try the task again, and lose what it was.
    """
    before = store.requests
    stopped: list[Row] = []
    try:
        for one in results:
            yield _failed(one) if isinstance(one, Failure) else to_row(one)
    except BayouError as error:
        stopped = [Row("stopped", code=type(error).__name__, message=error.message, hint=error.hint)]
    sent = store.requests - before
    for kind in Requests.__struct_fields__:
        if number := getattr(sent, kind):
            yield Row("sent", code=kind, requests=number)
    yield from stopped  # last: whoever reads it reads on no further


def in_batches(found: Iterable[Row]) -> Iterator[pyarrow.RecordBatch]:
    """Put rows into batches."""
    return batches_of_rows(MOVED, found, _AT_ONCE)


def in_rows(found: pyarrow.RecordBatch) -> Iterator[Row]:
    return (Row(*row) for row in values(found, MOVED.names))  # type: ignore[arg-type]


def outcomes(rows: Iterable[Row], from_row: Callable[[Row], R], store: Store) -> Iterator[R | Failure]:
    """Yield the results that rows tell of, each path once; requests go to the tally of `store`.

    What stopped a task is raised, as the error that it was.
    """
    seen: set[str] = set()
    for row in rows:
        if row.outcome == "sent":
            store.add_requests(Requests(**{cast("str", row.code): cast("int", row.requests)}))
        elif row.outcome == "stopped":
            raise error_of(row)
        elif row.path is not None and row.path not in seen:
            seen.add(row.path)
            yield _failure(row) if row.outcome == "failed" else from_row(row)


def error_of(row: Row) -> BayouError:
    """Return the error that stopped a task."""
    found = getattr(errors, row.code or "", None)
    kind = found if isinstance(found, type) and issubclass(found, BayouError) else SparkFailed
    try:
        return kind(row.message or "", hint=row.hint)
    except TypeError:  # one that is made from something else than a message
        return SparkFailed(row.message or "", hint=row.hint)


def _failed(one: Failure) -> Row:
    return Row("failed", one.path, code=one.code, message=one.message)


def _failure(row: Row) -> Failure:
    return Failure(row.path or "", row.code or "", row.message or "")
