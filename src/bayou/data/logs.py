"""The logs of methods: which version of `log` belongs to an output or a step, and reading a log from any place.

A log is a version of the item `log` of its model, and streaming data. Its owner names the output, the run and the step,
so the log of a step that has not ended, or whose process was killed, is found as well. Nothing else records the number
of that version: sync may renumber it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from bayou.data.catalog.rows import OutputRow, VersionRow

if TYPE_CHECKING:
    from bayou.data.items import Item
    from bayou.data.records import Records

LOG = "log"

_CHUNK = 1 << 18


class LogTail(Struct, frozen=True):
    """The last bytes of a log, from the beginning of a line if there is one; `left_out` is how many came before."""

    data: bytes
    left_out: int

    @property
    def text(self) -> str:
        return self.data.decode(errors="backslashreplace")


def log_of_output(records: Records, output: OutputRow) -> VersionRow | None:
    """Return the log of an output; None if it printed nothing, or its log is deleted."""
    from bayou.data.catalog.catalog import Where  # noqa: PLC0415

    where = Where()
    where.equal(model_id=output.model_id, name=LOG, output=output.id, streaming=1, deleted=0)
    return next(iter(records.catalog.select(where, 1)), None)


def logs_of_run(records: Records, run_id: str) -> dict[tuple[str, str], list[VersionRow]]:
    """Return the logs of a run, by job and step; a step has one for each attempt, the first one first."""
    from bayou.data.catalog.catalog import Where  # noqa: PLC0415

    where = Where()
    where.equal(run=run_id, name=LOG, streaming=1, deleted=0)
    found: dict[tuple[str, str], list[VersionRow]] = {}
    for row in sorted(records.catalog.select(where), key=lambda row: (row.created_at, row.version)):
        found.setdefault((row.job or "", row.step or ""), []).append(row)
    return found


def read_log(records: Records, log: VersionRow, start: int = 0, most: int | None = None) -> Iterator[bytes]:
    """Yield the bytes of a log from `start` on, as long as it is now, at most `most`; fetch it if it is not here.

    Only what the metadata covers is yielded: an append may be under way.
    """
    item = _item(records, log)
    records.data.path(item)
    left = item.metadata.size - start
    left = left if most is None else min(left, most)
    with records.tree.open(item.path) as file:
        file.seek(start)
        while left > 0 and (data := file.read(min(left, _CHUNK))):
            left -= len(data)
            yield data


def tail_of(records: Records, log: VersionRow, *, lines: int | None = None, most: int) -> LogTail:
    """Return the end of a log: at most `most` bytes (V25), and at most so many lines."""
    size = _item(records, log).metadata.size
    start = max(0, size - most)
    data = b"".join(read_log(records, log, start, size - start))
    if start:
        data = data.partition(b"\n")[2] or data
    if lines is not None:
        data = b"".join(data.splitlines(keepends=True)[-lines:]) if lines else b""
    return LogTail(data, max(0, size - len(data)))


def _item(records: Records, log: VersionRow) -> Item:
    from bayou.data.layout import ModelRef  # noqa: PLC0415

    return records.data.get(ModelRef(log.type, log.model_id, log.model), log.name, log.version)
