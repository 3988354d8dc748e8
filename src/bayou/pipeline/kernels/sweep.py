"""Tell garbage from what roots name, one sorted part of the keys at a time, and delete it: rules of `sync.garbage`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter

import pyarrow

from bayou.index.discovery import other_store
from bayou.pipeline.arrow import BYTES, INT, TEXT, TIME, batch, batches_of_rows, key_bytes, key_text, rows
from bayou.pipeline.kernels.compare import CASES, DAMAGED, OBJECT, TRASH_REFUSED, WASTED
from bayou.pipeline.stores import store_of
from bayou.quick import dataclass
from bayou.store import keys
from bayou.store.recipe import Recipe
from bayou.store.transport import ObjectMeta
from bayou.sync.garbage import is_garbage

KEPT, ONCE = "kept", "once"
"""Kinds of cases besides those of `kernels.compare`: what retained roots name, and what only earlier ones do."""

OLD, LEFTOVER, TRASH = "old", "leftover", "trash"

SWEPT = pyarrow.schema(
    {
        "what": TEXT,
        "key": BYTES,
        "size": INT,
        "sha256": BYTES,
        "etag": TEXT,
        "version": TEXT,
        "modified": TIME,
    }
)
"""An object to delete, indexed once (`OLD`) or never (`LEFTOVER`); a row of the trash that no root needs, or that
nothing is deleted by (`TRASH_REFUSED`, its path as `key`); or a node that could not be read (`DAMAGED`)."""

DELETED = pyarrow.schema({"deleted": INT})

_AT_ONCE = 2000

Row = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Sweep:
    """A kernel: batches of `CASES`, by key, to rows of `SWEPT`."""

    before: int

    def __call__(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        found = (row for one in batches for row in rows(one, CASES.names))
        swept = (row for key, group in groupby(found, key=itemgetter(0)) for row in self.judge(key, group))
        return batches_of_rows(SWEPT, swept, _AT_ONCE)

    def judge(self, key: object, group: Iterable[Row]) -> Iterator[Row]:
        """Yield what is to be done about one key, given all that is known of it."""
        known = {kind: told for _, kind, *told in group}
        if DAMAGED in known:
            yield DAMAGED, key, *known[DAMAGED]
            return
        kept = KEPT in known
        if OBJECT in known:
            assert isinstance(key, bytes)
            size, _, etag, version, modified = known[OBJECT]
            meta = ObjectMeta(key_text(key), size, etag, version, modified)  # type: ignore[arg-type]
            if is_garbage(meta, self.before, kept=kept):
                yield OLD if ONCE in known else LEFTOVER, key, *known[OBJECT]
        if WASTED in known and not kept:
            yield TRASH, key, *known[WASTED]
        if TRASH_REFUSED in known:
            yield TRASH_REFUSED, key, *known[TRASH_REFUSED]


def stores_around(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Yield the directories that are other stores, as `outside`, given keys that may tell of one."""
    for found in batches:
        outside = {other_store(key_text(key)) for (key,) in rows(found, ("key",))} - {None}  # type: ignore[arg-type]
        names = [key_bytes(name) for name in outside if name is not None]
        yield pyarrow.RecordBatch.from_pydict({"outside": pyarrow.array(names, BYTES)})


@dataclass(frozen=True, slots=True)
class Delete:
    """A kernel: rows with a `key` to how many objects were deleted. One that is gone already is no error."""

    recipe: Recipe

    def __call__(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        store = store_of(self.recipe)
        for found in batches:
            named = [keys.as_listed(key_text(key)) for (key,) in rows(found, ("key",))]  # type: ignore[arg-type]
            store.delete(named)
            yield batch(DELETED, [[len(named)]])
