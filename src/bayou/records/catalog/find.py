"""Questions that the catalog answers, as SQL. "Latest" is derived each time, so that nothing can fall out of step."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

from bayou.quick import dataclass
from bayou.records.catalog.rows import OutputRow, RunRow, VersionRow
from bayou.records.catalog.schema import TABLES, output_of, quoted, run_of, version_of

_HIGHEST = """(
    SELECT max(other.version) FROM version AS other
    WHERE other.type = version.type AND other.model_id = version.model_id AND other.name = version.name
    AND NOT other.deleted
)"""
IS_LATEST = f"version.version = {_HIGHEST}"
ALL_LATEST = """version.rowid IN (
    SELECT place FROM (
        SELECT rowid AS place, max(version) FROM version WHERE NOT deleted GROUP BY type, model_id, name
    )
)"""
"""The same for all items at once, and twice as fast then: of the rows of a group, SQLite gives the one of its max."""

_ORDER = "model, type, model_id, name, version"


@dataclass(slots=True)
class Where:
    """Conditions that must all hold, and what stands for their question marks."""

    conditions: list[str] = field(default_factory=list)
    parameters: list[object] = field(default_factory=list)

    def add(self, condition: str, *parameters: object) -> None:
        self.conditions.append(condition)
        self.parameters += parameters

    def equal(self, **columns: object) -> None:
        """Demand these values of columns; None demands nothing."""
        for name, value in columns.items():
            if value is not None:
                self.add(f'"{name}" = ?', value)

    def tags(self, tags: Mapping[str, str] | None) -> None:
        """Demand these tags with these values."""
        for name, value in (tags or {}).items():
            self.add("EXISTS (SELECT 1 FROM json_each(tags) WHERE key = ? AND value = ?)", name, value)

    @property
    def sql(self) -> str:
        return f"WHERE {' AND '.join(self.conditions)}" if self.conditions else ""


def versions(db: sqlite3.Connection, where: Where, limit: int | None = None) -> Iterator[VersionRow]:
    """Yield versions, in order of model, name and number."""
    latest = "1" if where.conditions == [ALL_LATEST] else IS_LATEST  # hot: a list has nothing to ask row by row
    statement = f"SELECT {quoted(TABLES['version'])}, {latest} FROM version {where.sql} ORDER BY {_ORDER} LIMIT ?"
    return map(version_of, db.execute(statement, (*where.parameters, -1 if limit is None else limit)))


Item = tuple[str, str, str]
"""What the versions of an item have in common: type, model and name."""


def count_by_item(db: sqlite3.Connection) -> Iterator[tuple[Item, int]]:
    """Yield the items, in order, each with its number of versions, marks of deleted ones included."""
    found = db.execute("SELECT type, model_id, name, count(*) FROM version GROUP BY 1, 2, 3 ORDER BY 1, 2, 3")
    return (((kind, model_id, name), count) for kind, model_id, name, count in found)


def versions_between(db: sqlite3.Connection, first: Item, last: Item) -> Iterator[VersionRow]:
    """Yield the versions of a range of items, both ends included, as of one moment, in order of item and number."""
    statement = f"""SELECT {quoted(TABLES["version"])}, {IS_LATEST} FROM version
        WHERE (type, model_id, name) >= (?, ?, ?) AND (type, model_id, name) <= (?, ?, ?)
        ORDER BY type, model_id, name, version"""
    return map(version_of, db.execute(statement, (*first, *last)))


def outputs(db: sqlite3.Connection, where: Where, limit: int | None = None) -> list[OutputRow]:
    """Return outputs, the newest first."""
    statement = f"SELECT {quoted(TABLES['output'])} FROM output {where.sql} ORDER BY started_at DESC, id DESC LIMIT ?"
    return [output_of(row) for row in db.execute(statement, (*where.parameters, -1 if limit is None else limit))]


def runs(db: sqlite3.Connection, where: Where, limit: int | None = None) -> list[RunRow]:
    """Return workflow runs, the newest first."""
    statement = f"SELECT {quoted(TABLES['run'])} FROM run {where.sql} ORDER BY started_at DESC, run_id DESC LIMIT ?"
    return [run_of(row) for row in db.execute(statement, (*where.parameters, -1 if limit is None else limit))]


def count(db: sqlite3.Connection, table: str, where: Where) -> int:
    """Return how many rows there are."""
    found: Sequence[int] = db.execute(f"SELECT count(*) FROM {table} {where.sql}", where.parameters).fetchone()
    return found[0]
