"""The tables of `catalog.db`, and the conversion of rows to and from their columns."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import asdict

from bayou.data.catalog.rows import OutputRow, RunRow, SavedVersion, VersionRow

VERSION = 2
"""The format. A file with another number is of an older or newer Bayou; the catalog is then rebuilt."""

_INTEGER_MAX = (1 << 63) - 1
"""The largest number that a column of SQLite can have."""

_INTEGER_DIGITS = len(str(_INTEGER_MAX))

UNSEEN = "?"
"""The stamp of a row from an earlier catalog whose file was not seen since. Other stamps are those of files."""

SCHEMA = """
CREATE TABLE version (
    type TEXT NOT NULL,
    model_id TEXT NOT NULL,
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    model TEXT NOT NULL,
    id TEXT NOT NULL,
    size INTEGER NOT NULL,
    sha256 TEXT,
    content_type TEXT NOT NULL,
    created_at TEXT NOT NULL,
    tags TEXT NOT NULL,
    lifetime TEXT,
    keep TEXT,
    streaming INTEGER NOT NULL,
    deleted INTEGER NOT NULL,
    renamed_to TEXT,
    run TEXT,
    workflow TEXT,
    job TEXT,
    step TEXT,
    output TEXT,
    repo TEXT,
    files INTEGER,
    stamp TEXT
);
CREATE UNIQUE INDEX version_place ON version (type, model_id, name, version);
CREATE INDEX version_live ON version (type, model_id, name, version) WHERE NOT deleted;
CREATE INDEX version_name ON version (name);
CREATE INDEX version_model ON version (model);
CREATE INDEX version_model_id ON version (model_id, name);
CREATE INDEX version_id ON version (id);
CREATE INDEX version_created ON version (created_at);
CREATE INDEX version_run ON version (run) WHERE run IS NOT NULL;
CREATE INDEX version_unseen ON version (stamp) WHERE stamp = '?';
CREATE INDEX version_fresh ON version (stamp) WHERE stamp IS NULL;
CREATE TABLE output (
    type TEXT NOT NULL,
    model_id TEXT NOT NULL,
    id TEXT NOT NULL,
    model TEXT NOT NULL,
    method TEXT NOT NULL,
    status TEXT NOT NULL,
    started_at TEXT NOT NULL,
    finished_at TEXT,
    duration_s REAL,
    data TEXT NOT NULL,
    error TEXT,
    run TEXT,
    workflow TEXT,
    job TEXT,
    step TEXT,
    tags TEXT NOT NULL,
    stamp TEXT
);
CREATE UNIQUE INDEX output_place ON output (type, model_id, id);
CREATE INDEX output_model ON output (model_id, started_at);
CREATE INDEX output_id ON output (id);
CREATE INDEX output_unseen ON output (stamp) WHERE stamp = '?';
CREATE INDEX output_fresh ON output (stamp) WHERE stamp IS NULL;
CREATE TABLE run (
    workflow_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    workflow TEXT NOT NULL,
    status TEXT NOT NULL,
    started_at TEXT NOT NULL,
    finished_at TEXT,
    failed_step TEXT,
    "by" TEXT,
    tags TEXT NOT NULL,
    words TEXT NOT NULL,
    stamp TEXT
);
CREATE UNIQUE INDEX run_place ON run (workflow_id, run_id);
CREATE INDEX run_id ON run (run_id);
CREATE INDEX run_started ON run (started_at);
CREATE INDEX run_unseen ON run (stamp) WHERE stamp = '?';
CREATE INDEX run_fresh ON run (stamp) WHERE stamp IS NULL;
CREATE TABLE bad (
    path TEXT PRIMARY KEY,
    why TEXT NOT NULL,
    stamp TEXT
) WITHOUT ROWID;
CREATE TABLE folder (
    path TEXT PRIMARY KEY,
    mtime INTEGER
) WITHOUT ROWID;
CREATE TABLE pending (
    id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    path TEXT NOT NULL
);
CREATE TABLE recent (
    path TEXT PRIMARY KEY
) WITHOUT ROWID;
CREATE TABLE meta (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;
"""

INDEXES: Mapping[str, str] = {
    statement.split()[2]: statement.strip() for statement in SCHEMA.split(";") if "CREATE INDEX" in statement
}
"""The indexes that only queries need, by name, and their statements. Unique indexes are not among them."""

TABLES: Mapping[str, tuple[str, ...]] = {
    "version": (
        *("type", "model_id", "name", "version", "model", "id", "size", "sha256", "content_type", "created_at"),
        *("tags", "lifetime", "keep", "streaming", "deleted", "renamed_to", "run", "workflow", "job", "step"),
        *("output", "repo", "files"),
    ),
    "output": (
        *("type", "model_id", "id", "model", "method", "status", "started_at", "finished_at", "duration_s", "data"),
        *("error", "run", "workflow", "job", "step", "tags"),
    ),
    "run": (
        *("workflow_id", "run_id", "workflow", "status", "started_at", "finished_at", "failed_step", "by"),
        *("tags", "words"),
    ),
}
KEYS: Mapping[str, tuple[str, ...]] = {
    "version": ("type", "model_id", "name", "version"),
    "output": ("type", "model_id", "id"),
    "run": ("workflow_id", "run_id"),
}
PATHS: Mapping[str, str] = {
    "version": "'data/' || type || '/' || model_id || '/' || name || '/' || version || '/metadata.yaml'",
    "output": "'outputs/' || type || '/' || model_id || '/' || id || '.yaml'",
    "run": "'workflow-runs/' || workflow_id || '/' || run_id || '.yaml'",
}
"""The path of a row's file, in SQL."""

Values = tuple[Any, ...]

_decode_json = json.JSONDecoder().raw_decode  # hot: our JSON has no space around it, so `raw_decode` is enough


def path_of(table: str, row: Mapping[str, Any]) -> str | None:
    """Return the path of a row's file; None if its key is invalid."""
    parts = [row[name] for name in KEYS[table]]
    if not all(isinstance(part, str | int) for part in parts):
        return None
    match table:
        case "version":
            return f"data/{'/'.join(map(str, parts))}/metadata.yaml"
        case "output":
            return f"outputs/{'/'.join(parts)}.yaml"
        case _:
            return f"workflow-runs/{'/'.join(parts)}.yaml"


def key_of(path: str) -> tuple[str, Values]:
    """Return the table and the key of the row of a record's file."""
    root, _, rest = path.partition("/")
    if root == "data":
        kind, model_id, name, version, _ = rest.rsplit("/", 4)
        # V25: a number that does not fit into a column has no row, as 0 has none. A number that fits and is too high
        # for a version may have a row from an older Bayou; the row is dropped when the file is read.
        number = int(version) if len(version) <= _INTEGER_DIGITS else 0
        return "version", (kind, model_id, name, number if number <= _INTEGER_MAX else 0)
    kind, _, last = rest.rpartition("/")
    if root == "outputs":
        kind, _, model_id = kind.rpartition("/")
        return "output", (kind, model_id, last.removesuffix(".yaml"))
    return "run", (kind, last.removesuffix(".yaml"))


def values(row: VersionRow | OutputRow | RunRow) -> tuple[str, Values]:
    """Return the table of a row, and the values of its columns."""
    match row:
        case VersionRow():
            table, encoded = "version", {"tags": _json(row.tags)}
        case OutputRow():
            data = json.dumps([asdict(version) for version in row.data], ensure_ascii=False)
            table, encoded = "output", {"tags": _json(row.tags), "data": data}
        case RunRow():
            table, encoded = "run", {"tags": _json(row.tags)}
    return table, tuple(encoded[name] if name in encoded else getattr(row, name) for name in TABLES[table])


def version_of(found: Sequence[Any]) -> VersionRow:
    """Return a row from the columns of `TABLES["version"]` and `latest`."""
    (kind, model_id, name, version, model, ident, size, sha256, content_type, created_at, tags, lifetime, keep) = found[
        :13
    ]
    streaming, deleted, renamed_to, run, workflow, job, step, output, repo, files, latest = found[13:]
    return VersionRow(
        model, model_id, kind, name, version, ident, size, sha256, content_type, created_at,
        {} if tags == "{}" else _decode_json(tags)[0], lifetime, keep, bool(streaming), bool(deleted), renamed_to,
        run, workflow, job, step, output, repo, bool(latest), files,
    )  # fmt: skip


def output_of(found: Sequence[Any]) -> OutputRow:
    """Return a row from the columns of `TABLES["output"]`."""
    named = dict(zip(TABLES["output"], found, strict=True))
    named["tags"] = json.loads(named["tags"])
    named["data"] = tuple(SavedVersion(**fields) for fields in json.loads(named["data"]))
    return OutputRow(**named)


def run_of(found: Sequence[Any]) -> RunRow:
    """Return a row from the columns of `TABLES["run"]`."""
    named = dict(zip(TABLES["run"], found, strict=True))
    named["tags"] = json.loads(named["tags"])
    return RunRow(**named)


def put(db: sqlite3.Connection, table: str, rows: Iterable[Values]) -> None:
    """Write rows, each its columns and its stamp; a row replaces the row with the same key."""
    columns = (*TABLES[table], "stamp")
    updates = ", ".join(f'"{name}" = excluded."{name}"' for name in columns if name not in KEYS[table])
    db.executemany(
        f"INSERT INTO {table} ({quoted(columns)}) VALUES ({', '.join('?' * len(columns))})"
        f" ON CONFLICT ({quoted(KEYS[table])}) DO UPDATE SET {updates}",
        rows,
    )


def quoted(columns: Iterable[str]) -> str:
    """Return the names of columns, quoted for a statement: `by` is a keyword of SQL."""
    return ", ".join(f'"{name}"' for name in columns)


def drop(db: sqlite3.Connection, paths: Iterable[str]) -> int:
    """Delete the rows of these files; return how many there were."""
    gone = 0
    for path in paths:
        table, key = key_of(path)
        where = " AND ".join(f'"{name}" = ?' for name in KEYS[table])
        gone += db.execute(f"DELETE FROM {table} WHERE {where}", key).rowcount
    return gone


def set_meta(db: sqlite3.Connection, key: str, value: str | None) -> None:
    """Set a value of the table `meta`, which describes the catalog itself; None deletes it."""
    if value is None:
        db.execute("DELETE FROM meta WHERE key = ?", (key,))
    else:
        db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))


def get_meta(db: sqlite3.Connection, key: str) -> str | None:
    """Return a value of the table `meta`; None if it is not set."""
    found = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return None if found is None else str(found[0])


def _json(tags: Mapping[str, str]) -> str:
    return json.dumps(dict(tags), ensure_ascii=False, sort_keys=True) if tags else "{}"
