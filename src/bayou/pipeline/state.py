"""What `sync.db` knows of paths, as Parquet files: workers read those, and never open the database."""

from __future__ import annotations

from pathlib import Path

import pyarrow
from msgspec import Struct
from pyarrow import parquet

from bayou.pipeline.arrow import BYTES, INT, TEXT, batch
from bayou.state.database import Database

CACHED, LISTED, ABSENT, HASHED, JOURNAL = "cached", "listed", "absent", "hashed", "journal"

_ROWS = """
SELECT path, json_group_array(json_array(id, kind, path, state, owner, closed)) FROM journal
WHERE place = ? AND kind != 'tree' GROUP BY path
"""
_TABLES = {
    CACHED: (
        "SELECT path, size, mtime, ctime, inode, sha256, settled, matches FROM file WHERE ? IS NOT NULL",
        {"size": INT, "mtime": INT, "ctime": INT, "inode": INT, "sha256": BYTES, "settled": INT, "matches": INT},
    ),
    LISTED: ("SELECT path, size, mtime FROM untracked WHERE place = ?", {"size": INT, "mtime": INT}),
    ABSENT: ("SELECT path, why FROM absent WHERE place = ?", {"why": TEXT}),
    HASHED: (
        "SELECT path, size, etag, version, sha256 FROM known WHERE place = ?",
        {"size": INT, "etag": TEXT, "version": TEXT, "sha256": BYTES},
    ),
    JOURNAL: (
        _ROWS,
        {"rows": TEXT},
    ),
}
SCHEMAS = {name: pyarrow.schema({"path": TEXT, **columns}) for name, (_, columns) in _TABLES.items()}
"""The stat cache; files known to be untracked; what is absent on purpose; hashes of discovered objects; the journal."""

_AT_ONCE = 10_000


class Exported(Struct, frozen=True):
    """The files of the tables that are not empty, and the newest row of the journal then."""

    files: dict[str, Path]
    through: int


def export(database: Database, place: int, folder: Path) -> Exported:
    """Write what is known of a place's paths to Parquet files, all as of one moment, a few rows at a time."""
    found: dict[str, Path] = {}
    with database.snapshot() as db:
        (through,) = db.execute("SELECT coalesce(max(id), 0) FROM journal WHERE place = ?", (place,)).fetchone()
        for name, (statement, _) in _TABLES.items():
            rows = db.execute(statement, (place,))
            some = rows.fetchmany(_AT_ONCE)
            if not some:
                continue
            found[name] = folder / f"{name}.parquet"
            with parquet.ParquetWriter(found[name], SCHEMAS[name]) as writer:
                while some:
                    writer.write_batch(batch(SCHEMAS[name], list(zip(*some, strict=True))))
                    some = rows.fetchmany(_AT_ONCE)
    return Exported(found, through)
