"""`Catalog`: the catalog as repositories and commands use it, and the SQL of its queries.

Queries compute "latest" each time, so no column can become stale.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from bayou.core import limits
from bayou.data.catalog import schema
from bayou.data.catalog.database import CatalogFile
from bayou.data.catalog.derive import RefreshReport, is_current
from bayou.data.catalog.rows import OutputRow, RunRow, VersionRow
from bayou.data.catalog.schema import TABLES, output_of, quoted, run_of, version_of
from bayou.data.engine import CatalogEngine
from bayou.state.change_feed import ChangeFeed
from bayou.state.connection import Connection
from bayou.worktree.tree import Worktree

if TYPE_CHECKING:
    from bayou.data.catalog.backfill import Backfill

T = TypeVar("T")

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
"""The same for all items at once, and twice as fast: of each group, SQLite returns the row that has the max."""

_ORDER = "model, type, model_id, name, version"


class Where(Struct):
    """A WHERE clause: conditions that must all hold, and the parameters for their question marks."""

    conditions: list[str] = field(default_factory=list)
    parameters: list[object] = field(default_factory=list)

    def add(self, condition: str, *parameters: object) -> None:
        self.conditions.append(condition)
        self.parameters += parameters

    def equal(self, **columns: object) -> None:
        """Require these values of columns; None requires nothing."""
        for name, value in columns.items():
            if value is not None:
                self.add(f'"{name}" = ?', value)

    def prefix(self, column: str, prefix: str) -> None:
        """Require that a column begins with a text; SQLite uses the column's index for that."""
        self.add(f'"{column}" >= ? AND "{column}" < ?', prefix, f"{prefix}\U0010ffff")

    def tags(self, tags: Mapping[str, str] | None) -> None:
        """Require these tags with these values."""
        for name, value in (tags or {}).items():
            self.add("EXISTS (SELECT 1 FROM json_each(tags) WHERE key = ? AND value = ?)", name, value)

    @property
    def sql(self) -> str:
        return f"WHERE {' AND '.join(self.conditions)}" if self.conditions else ""


class BadFile(Struct, frozen=True):
    """A record that cannot be read: no list shows it, and retention never deletes it."""

    path: str
    why: str


class Catalog:
    """All versions, outputs and runs, in `.bayou/catalog.db`. Close it, or use it as a context manager.

    A reader calls `refresh` once, before its queries; they see the tree as of then. A writer changes the tree, and then
    calls `change`: the next refresh repairs the catalog after a crash between the two. `engine` chooses who reads the
    records in a rebuild of many.
    """

    def __init__(self, connection: Connection, tree: Worktree, engine: CatalogEngine | None = None) -> None:
        self._repo = connection.repo
        self._connection = connection
        self._engine = engine or CatalogEngine()
        self._root = tree.root
        self._file = CatalogFile(connection.repo.catalog)

    def refresh(self) -> RefreshReport:
        """Catch up with the tree, or rebuild a missing, damaged or foreign catalog; return what changed.

        If nothing has changed this is one cheap check; otherwise its cost depends on the change (V16), and only then
        are the modules that do it imported.
        """
        if self._repo.config.datastore.url is None:
            from bayou.data.catalog import follow_directory  # noqa: PLC0415

            changes = self._file.read(lambda db: follow_directory.find_changes(db, self._root))
            if changes is None:
                return RefreshReport()
            return self._catch_up(lambda db, backfill: follow_directory.catch_up(db, self._root, changes, backfill))
        feed = ChangeFeed(self._connection)
        if self._file.read(lambda db: is_current(db, feed)):
            return RefreshReport()
        return self._catch_up(self._follow)

    def _catch_up(self, work: Callable[[sqlite3.Connection, Backfill], RefreshReport]) -> RefreshReport:
        from bayou.data.catalog.backfill import Backfill  # noqa: PLC0415

        backfill = Backfill(self._repo, self._engine)
        done = self._file.write(lambda db: work(db, backfill))
        return replace(done, warnings=tuple(backfill.warnings)) if backfill.warnings else done

    def _follow(self, db: sqlite3.Connection, backfill: Backfill) -> RefreshReport:
        from bayou.data.catalog.follow_store import follow  # noqa: PLC0415

        return follow(db, self._root, ChangeFeed(self._connection), backfill)

    def change(self, put: Iterable[VersionRow | OutputRow | RunRow] = (), drop: Iterable[str] = ()) -> None:
        """Put rows, and drop the rows of the files at some paths, in one transaction."""
        rows = [schema.values(row) for row in put]
        gone = list(drop)

        def write(db: sqlite3.Connection) -> None:
            schema.drop(db, gone)
            for table in schema.TABLES:
                schema.put(db, table, [(*values, None) for kind, values in rows if kind == table])

        self._file.write(write)

    def versions(self, model_id: str, name: str, type: str | None = None) -> list[VersionRow]:  # noqa: A002
        """Return all versions of an item, a tombstone included."""
        where = Where()
        where.equal(model_id=model_id, name=name, type=type)
        return self._read(lambda db: list(select_versions(db, where)))

    def highest(self, model_id: str, name: str, type: str | None = None) -> int:  # noqa: A002
        """Return the highest version number of an item, deleted or not; 0 if it has no rows."""
        where = Where()
        where.equal(model_id=model_id, name=name, type=type)
        where.add("version <= ?", limits.VERSION_MAX)  # an older Bayou accepted higher numbers
        statement = f"SELECT coalesce(max(version), 0) FROM version {where.sql}"
        return self._read(lambda db: int(db.execute(statement, where.parameters).fetchone()[0]))

    def latest(self, model_id: str, name: str, type: str | None = None) -> VersionRow | None:  # noqa: A002
        """Return the highest version of an item that is not deleted."""
        where = Where()
        where.equal(model_id=model_id, name=name, type=type)
        where.add(IS_LATEST)
        return self._read(lambda db: next(select_versions(db, where), None))

    def names(self, model_id: str, type: str, most: int) -> list[str]:  # noqa: A002
        """Return the names of a model's items that have a version, but at most so many."""
        statement = "SELECT DISTINCT name FROM version WHERE type = ? AND model_id = ? AND NOT deleted LIMIT ?"
        return self._read(lambda db: [name for (name,) in db.execute(statement, (type, model_id, most))])

    def find(
        self,
        *,
        name: str | None = None,
        id: str | None = None,  # noqa: A002
        tags: Mapping[str, str] | None = None,
        model: str | None = None,
        type: str | None = None,  # noqa: A002
        run: str | None = None,
        all_versions: bool = False,
    ) -> list[VersionRow]:
        """Return the latest version, or all versions, of the items that match; `model` is a name or an id."""
        where = Where()
        where.equal(name=name, id=id, type=type, run=run)
        where.tags(tags)
        if model is not None:
            where.add("(model = ? OR model_id = ?)", model, model)
        if all_versions:
            where.add("NOT deleted")
        else:
            where.add(IS_LATEST if where.conditions else ALL_LATEST)
        return self.select(where)

    def select(self, where: Where, limit: int | None = None) -> list[VersionRow]:
        """Return the versions for which the conditions hold."""
        return self._read(lambda db: list(select_versions(db, where, limit)))

    def count_versions(self) -> int:
        """Return how many versions have rows, tombstones included."""
        return self._read(lambda db: count_rows(db, "version", Where()))

    def runs_of_lifetimes(self) -> set[str]:
        """Return the ids of the workflow runs that versions have as their lifetime."""
        statement = "SELECT DISTINCT run FROM version WHERE lifetime = 'run' AND NOT deleted AND run IS NOT NULL"
        return self._read(lambda db: {str(run) for (run,) in db.execute(statement)})

    def mark(self) -> tuple[int, int] | None:
        """Return a value that changes when another process writes to the catalog; None for a catalog in memory."""
        return self._read(self._file.mark)

    @property
    def path(self) -> Path:
        """The file of the catalog, for workers that open it by themselves."""
        return self._file.path

    def outputs(self, model_id: str, limit: int | None = None) -> list[OutputRow]:
        """Return the outputs of a model's methods, the newest first."""
        where = Where()
        where.equal(model_id=model_id)
        return self._read(lambda db: _outputs(db, where, limit))

    def output(self, output_id: str) -> OutputRow | None:
        """Return one output."""
        where = Where()
        where.equal(id=output_id)
        return self._read(lambda db: next(iter(_outputs(db, where, 1)), None))

    def outputs_by_prefix(self, model_id: str, prefix: str, limit: int) -> list[OutputRow]:
        """Return the outputs of a model whose ids begin so, the newest first, at most `limit`."""
        where = Where()
        where.equal(model_id=model_id)
        where.prefix("id", prefix)
        return self._read(lambda db: _outputs(db, where, limit))

    def runs_by_prefix(self, prefix: str, limit: int) -> list[RunRow]:
        """Return the workflow runs whose ids begin so, the newest first, at most `limit`."""
        where = Where()
        where.prefix("run_id", prefix)
        return self._read(lambda db: _runs(db, where, limit))

    def runs(
        self,
        *,
        text: str | None = None,
        status: str | None = None,
        since: str | None = None,
        workflow: str | None = None,
        tags: Mapping[str, str] | None = None,
        limit: int | None = None,
    ) -> tuple[list[RunRow], int]:
        """Return the workflow runs that match, the newest first, at most `limit`; and how many match in all.

        `text` occurs in a run's id, workflow, inputs, tags, steps or errors; `workflow` is a name or an id; `since` is
        a time as records write it.
        """
        where = Where()
        where.equal(status=status)
        where.tags(tags)
        if text:
            where.add("(instr(words, ?) OR instr(lower(run_id), ?))", text.casefold(), text.casefold())
        if since is not None:
            where.add("started_at >= ?", since)
        if workflow is not None:
            where.add("(workflow = ? OR workflow_id = ?)", workflow, workflow)
        return self._read(lambda db: (_runs(db, where, limit), count_rows(db, "run", where)))

    def run(self, run_id: str) -> RunRow | None:
        """Return one workflow run."""
        where = Where()
        where.equal(run_id=run_id)
        return self._read(lambda db: next(iter(_runs(db, where, 1)), None))

    def bad(self) -> list[BadFile]:
        """Return the records that cannot be read."""
        return self._read(lambda db: [BadFile(*row) for row in db.execute("SELECT path, why FROM bad ORDER BY path")])

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Catalog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query; a catalog that was created since the last refresh is filled first."""
        if self._file.read(lambda db: schema.get_meta(db, "position")) is None:
            self.refresh()
        return self._file.read(work)


def select_versions(db: sqlite3.Connection, where: Where, limit: int | None = None) -> Iterator[VersionRow]:
    """Yield versions, in order of model, name and number."""
    latest = (
        "1" if where.conditions == [ALL_LATEST] else IS_LATEST
    )  # hot: a list of the latest needs no subquery per row
    statement = f"SELECT {quoted(TABLES['version'])}, {latest} FROM version {where.sql} ORDER BY {_ORDER} LIMIT ?"
    return map(version_of, db.execute(statement, (*where.parameters, -1 if limit is None else limit)))


def _outputs(db: sqlite3.Connection, where: Where, limit: int | None = None) -> list[OutputRow]:
    """Return outputs, the newest first."""
    statement = f"SELECT {quoted(TABLES['output'])} FROM output {where.sql} ORDER BY started_at DESC, id DESC LIMIT ?"
    return [output_of(row) for row in db.execute(statement, (*where.parameters, -1 if limit is None else limit))]


def _runs(db: sqlite3.Connection, where: Where, limit: int | None = None) -> list[RunRow]:
    """Return workflow runs, the newest first, at most `limit`, which may be larger than SQLite's integers."""
    statement = f"SELECT {quoted(TABLES['run'])} FROM run {where.sql} ORDER BY started_at DESC, run_id DESC LIMIT ?"
    most = -1 if limit is None else min(limit, sys.maxsize)
    return [run_of(row) for row in db.execute(statement, (*where.parameters, most))]


def count_rows(db: sqlite3.Connection, table: str, where: Where) -> int:
    """Return how many rows match."""
    found: Sequence[int] = db.execute(f"SELECT count(*) FROM {table} {where.sql}", where.parameters).fetchone()
    return found[0]


Item = tuple[str, str, str]
"""The columns that identify an item: type, model and name."""


def count_by_item(db: sqlite3.Connection) -> Iterator[tuple[Item, int]]:
    """Yield the items, in order, each with its number of versions, tombstones of deleted ones included."""
    found = db.execute("SELECT type, model_id, name, count(*) FROM version GROUP BY 1, 2, 3 ORDER BY 1, 2, 3")
    return (((kind, model_id, name), count) for kind, model_id, name, count in found)


def versions_between(db: sqlite3.Connection, first: Item, last: Item) -> Iterator[VersionRow]:
    """Yield the versions of a range of items, both ends included, as of one moment, in order of item and number."""
    statement = f"""SELECT {quoted(TABLES["version"])}, {IS_LATEST} FROM version
        WHERE (type, model_id, name) >= (?, ?, ?) AND (type, model_id, name) <= (?, ?, ?)
        ORDER BY type, model_id, name, version"""
    return map(version_of, db.execute(statement, (*first, *last)))
