"""Upload files from where a task runs: `sync.transfer.executor.send`, for a part of them.

The key and the hash of each were recorded before (V11): a task that runs twice writes the same bytes to the same keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow
from msgspec import Struct

from bayou.objectstore.spec import StoreSpec
from bayou.objectstore.transport import Stored
from bayou.pipeline.arrow import BYTES, INT, TEXT, batch, rows
from bayou.pipeline.kernels.moved import Row, in_batches, told
from bayou.pipeline.kernels.reports import reporting
from bayou.pipeline.stores import store_of
from bayou.sync.transfer.executor import Upload, send_all

UPLOADS = pyarrow.schema({"path": TEXT, "push": TEXT, "size": INT, "sha256": BYTES, "gc": INT})


class Uploads(Struct, frozen=True):
    """A kernel: batches of `UPLOADS` to batches of `MOVED`; what the store has acknowledged is reported at once."""

    recipe: StoreSpec
    root: Path
    seconds: float | None = None
    reports: Path | None = None

    def __call__(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        store = store_of(self.recipe, self.seconds)
        uploads = [Upload(*row) for found in batches for row in rows(found, UPLOADS.names)]  # type: ignore[arg-type]
        sent = told(send_all(store, self.root, uploads, len(uploads)), to_row, store)
        yield from in_batches(reporting(sent, self.reports))


def to_batch(uploads: Sequence[Upload]) -> pyarrow.RecordBatch:
    return batch(UPLOADS, ([getattr(one, name) for one in uploads] for name in UPLOADS.names))


def to_row(one: Upload) -> Row:
    if one.stored is None:
        return Row("nothing", one.path)
    return Row("done", one.path, etag=one.stored.etag, version=one.stored.version)


class Sent(Struct, frozen=True):
    """Makes results of rows, with the uploads that were asked for."""

    asked: Mapping[str, Upload]

    def __call__(self, row: Row) -> Upload:
        assert row.path is not None
        asked = self.asked[row.path]
        if row.outcome == "nothing":
            return asked
        # Nobody here knows whether another attempt at the task has written it too, or still will.
        stored = Stored(row.etag, row.version, repeated=True)
        return Upload(asked.path, asked.push, asked.size, asked.sha256, asked.gc, stored, asked.resumed)
