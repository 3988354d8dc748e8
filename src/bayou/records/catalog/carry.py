"""What an old catalog still says, for the new one: rows of data that is not here have no other home (V20)."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct, field

from bayou.core import paths
from bayou.records.catalog.schema import TABLES, UNSEEN, Values, path_of, put, tell, told

_NUMBERS = {"version": int, "size": int, "streaming": int, "deleted": int, "duration_s": float}
_LATER: Mapping[str, object] = {"tags": "{}", "streaming": 0, "deleted": 0, "data": "[]", "words": ""}
"""What a row says that was written before there was such a column, where it has to say something."""

_NEVER_NULL = ("id", "model", "size", "content_type", "created_at", "method", "status", "started_at", "workflow")
_MAYBE_NULL = {("version", "workflow"), ("output", "workflow")}


class Old(Struct, frozen=True):
    """Rows of an old catalog by table, each a value for every column of today's, and the position that they reflect."""

    rows: Mapping[str, list[Values]] = field(default_factory=dict)
    position: str | None = None


def salvage(path: Path) -> Old:
    """Read what can be read of a file that is damaged, or is none."""
    if not path.exists():
        return Old()
    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
            return read(db)
    except sqlite3.Error:
        return Old()


def read(db: sqlite3.Connection) -> Old:
    """Read what a catalog of another Bayou, or a damaged one, says."""
    rows: dict[str, list[Values]] = {table: [] for table in TABLES}
    for table, found in rows.items():
        with contextlib.suppress(sqlite3.Error):  # what was read before the damage counts
            for row in _rows(db, table):
                found.append(row)
    position = None
    with contextlib.suppress(sqlite3.Error):
        position = told(db, "position")
    return Old(rows, position)


def take_over(db: sqlite3.Connection, old: Old) -> None:
    """Put the rows of an old catalog into a new one, as rows whose files nobody has seen yet."""
    for table, rows in old.rows.items():
        put(db, table, ((*row, UNSEEN) for row in rows))
    if old.position is not None:
        tell(db, "former", old.position)


def _rows(db: sqlite3.Connection, table: str) -> Iterator[Values]:
    have = {str(name) for _, name, *_ in db.execute(f"PRAGMA table_info({table})")}
    columns = [f'"{name}"' if name in have else "?" for name in TABLES[table]]
    plain = [_LATER.get(name) for name in TABLES[table] if name not in have]
    for row in db.execute(f"SELECT {', '.join(columns)} FROM {table}", plain):
        if _is_row(table, row):
            yield row


def _is_row(table: str, row: Values) -> bool:
    """Whether every column has what a row of today may have there: a damaged page can say anything."""
    named = dict(zip(TABLES[table], row, strict=True))
    for name, value in named.items():
        needed = name in _LATER or (name in _NEVER_NULL and (table, name) not in _MAYBE_NULL)
        if not isinstance(value, _NUMBERS.get(name, str)) and (needed or value is not None):
            return False
    if not _is_json(named["tags"], dict) or not _is_json(named.get("data", "[]"), list):
        return False
    path = path_of(table, named)
    return path is not None and paths.refusal(path) is None


def _is_json(text: str, kind: type) -> bool:
    try:
        return isinstance(json.loads(text), kind)
    except (ValueError, RecursionError):
        return False
