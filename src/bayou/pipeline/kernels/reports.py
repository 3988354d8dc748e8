"""What tasks report while they run: each attempt appends to a file of its own, which the driver reads meanwhile.

Spark hands over the rows of a task when the task ends. A large task takes minutes, and a driver that is killed before
would have recorded nothing of it (V19). The files lie in a directory that the driver and all workers see.

A record is one line of JSON, written by one call. A line without its end is not there yet, and never will be if its
writer was killed. Only what is done is reported: a path that failed may succeed in the next attempt.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from bayou.pipeline.kernels.moved import Row
from bayou.worktree.atomic_write import temporary_name


def reporting(rows: Iterable[Row], folder: Path | None) -> Iterator[Row]:
    """Yield rows as they come, and report each that is done to a new file in `folder`; without one, report nothing.

    The driver makes the folder. Where it is gone, so is the driver, and the attempt fails before it does any work.
    """
    if folder is None:
        yield from rows
        return
    report = os.open(folder / temporary_name(), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
    try:
        for row in rows:
            if row.outcome == "done":
                os.write(report, _line(row))
            yield row
    finally:
        os.close(report)


class Reports:
    """The driver's side: reads what has been reported in a folder, each record once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, int] = {}

    def new(self) -> Iterator[Row]:
        """Yield what has been reported since the last call. Attempts at one task may report the same path."""
        with os.scandir(self._folder) as found:
            sizes = {one.name: one.stat(follow_symlinks=False).st_size for one in found}
        for name, size in sizes.items():
            start = self._read.get(name, 0)
            if size == start:
                continue
            with open(self._folder / name, "rb") as file:
                file.seek(start)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[name] = start + len(whole)
            for line in whole.splitlines():
                row = _row(line)
                if row is not None:
                    yield row


def _line(row: Row) -> bytes:
    sha256 = None if row.sha256 is None else row.sha256.hex()
    return json.dumps([row.path, sha256, row.etag, row.version, row.file]).encode() + b"\n"


def _row(line: bytes) -> Row | None:
    """Return a record; None if its writer could write only a part of it, as on a full disk."""
    try:
        path, sha256, etag, version, file = json.loads(line)
    except ValueError:
        return None
    return Row("done", path, None if sha256 is None else bytes.fromhex(sha256), etag, version, file)
