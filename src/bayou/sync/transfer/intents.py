"""Intents: what a pull is about to change in the tree, recorded before it does (T9).

The transaction that covers the renames of a pull also deletes its intents. So an intent that is left belongs to a pull
that was killed: the next sync compares the file with the intent before it does anything else. A pull's changes are
intents and never journal rows, because they are not local changes (V7).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable

from bayou.core.errors import BayouError, Cancelled, DeadlinePassed
from bayou.index.entry import Entry
from bayou.state import base, file_stats
from bayou.state.database import Database, load_entry
from bayou.sync.commit.commit import mark_overtaken
from bayou.sync.context import SyncContext
from bayou.worktree.hashing import Content, read_content


class ProofLost(Exception):
    """Files are in place, but `sync.db` could not record them. The next sync recovers the intents (F020)."""


def record_intents(database: Database, remote_id: int, changes: Iterable[tuple[str, str | None, bytes | None]]) -> None:
    """Record the paths that are about to change on disk, each with its new entry as JSON (None: removed) and hash."""
    with database.transaction() as db:
        db.executemany(
            "INSERT OR REPLACE INTO intent VALUES (?, ?, ?, ?)",
            [(remote_id, *change) for change in changes],
        )


def recover_intents(context: SyncContext) -> None:
    """Resolve the intents of a killed pull: if the tree has the intended file, base gets its entry (T9)."""
    left = context.database.rows("SELECT path, entry, sha256 FROM intent WHERE place = ?", (context.remote_id,))
    context.incoming.clear()
    if not left:
        return
    now = time.time_ns()
    with context.database.transaction() as db:
        for path, text, sha256 in left:
            path = str(path)
            entry = load_entry(path, text if text is None else str(text))
            content = _read_content(context, path)
            arrived = content is not None and content.sha256 == sha256
            if (entry is None and content is None) or (entry is not None and arrived):
                _update_base(db, context.remote_id, path, entry, content.sha256 if content else None)
                mark_overtaken(db, context.remote_id, {path})
                if content is not None:
                    file_stats.save(db, path, content, now, context.remote_id)
                else:
                    file_stats.delete(db, path)
            db.execute("DELETE FROM intent WHERE place = ? AND path = ?", (context.remote_id, path))


def _update_base(db: sqlite3.Connection, remote_id: int, path: str, entry: Entry | None, sha256: bytes | None) -> None:
    base.record_entry(db, remote_id, path, entry)
    if entry is not None and entry.sha256 is None and sha256 is not None:
        base.record_hash(db, remote_id, entry, sha256)


def _read_content(context: SyncContext, path: str) -> Content | None:
    try:
        return read_content(context.root / path, context.deadline) if context.stat(path) is not None else None
    except (DeadlinePassed, Cancelled):
        raise
    except (BayouError, OSError):
        return None
