"""Download objects to where a task runs, which must be the staging directory of the caller's tree: `sync.transfer.executor.fetch`.

A file is staged under a name that nobody else uses, so a task that runs twice leaves one that nobody takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow
from msgspec import Struct

from bayou.index.entry import Entry
from bayou.objectstore.spec import StoreSpec
from bayou.objectstore.store import Store
from bayou.pipeline.arrow import batch_to_entries
from bayou.pipeline.kernels.moved import Row, in_batches, told
from bayou.pipeline.kernels.reports import reporting
from bayou.pipeline.stores import store_of
from bayou.sync.report import Failure
from bayou.sync.transfer.executor import Arrived, fetch_all, gathered
from bayou.worktree.atomic_write import temporary_name
from bayou.worktree.staging import StagingArea

_DURABLE = 1024
"""Downloads that are made durable together, and then reported."""


class Downloads(Struct, frozen=True):
    """A kernel: batches of `ENTRIES` to batches of `MOVED`; what is durable is reported at once."""

    recipe: StoreSpec
    root: Path
    staging: Path
    seconds: float | None = None
    reports: Path | None = None

    def __call__(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        store = store_of(self.recipe, self.seconds)
        entries = [entry for found in batches for entry in batch_to_entries(found)]
        came = told(self._durable(store, entries), to_row, store)
        yield from in_batches(reporting(came, self.reports))

    def _durable(self, store: Store, entries: list[Entry]) -> Iterator[Arrived | Failure]:
        """Yield what came, some at a time, once it is on the disk."""
        # In a directory of its own: tasks that make files in one directory wait for each other, and burn their time.
        incoming = StagingArea(self.root, self.staging / temporary_name())
        sizes = {entry.path: entry.size for entry in entries}
        came = fetch_all(store, incoming, entries, len(entries))
        for some in gathered(came, _DURABLE, lambda one: sizes[one.path]):
            incoming.sync(one.file for one in some if isinstance(one, Arrived) and one.file is not None)
            yield from some


def to_row(one: Arrived) -> Row:
    if one.file is None:
        return Row("nothing", one.path)
    return Row("done", one.path, sha256=one.sha256, file=f"{one.file.parent.name}/{one.file.name}")


class Came(Struct, frozen=True):
    """Makes results of rows, for the staging directory as this process calls it."""

    staging: Path

    def __call__(self, row: Row) -> Arrived:
        assert row.path is not None
        if row.file is None:
            return Arrived(row.path)
        return Arrived(row.path, self.staging / row.file, row.sha256, durable=True)
