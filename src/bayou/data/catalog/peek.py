"""Look into the catalog without opening it as a command does: nothing is refreshed, repaired or written."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

_BUSY_S = 0.2


def select_texts(file: Path, statement: str, parameters: Sequence[object]) -> Iterator[str]:
    """Yield the first column of a query, as texts; `sqlite3.Error` if the file cannot be read."""
    uri = f"file:{quote(os.fsencode(file))}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_S)) as db:
        yield from (str(value) for (value, *_) in db.execute(statement, parameters))
