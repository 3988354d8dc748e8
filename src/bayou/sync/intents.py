"""What a pull that died had begun: its intents, settled before anything else (T9)."""

from __future__ import annotations

import sqlite3
import time

from bayou.core.errors import BayouError, Cancelled, DeadlinePassed
from bayou.index.entry import Entry
from bayou.state import base, database, file_stats
from bayou.sync.commit import overtake
from bayou.sync.context import Context
from bayou.worktree.hashing import Content, read_content


class ProofLost(Exception):
    """Files are in place, and `sync.db` could not take note of it. The next run settles the intents (F020)."""


def settle_intents(context: Context) -> None:
    """Finish or forget what a pull that died had begun: if the file is what was intended, that is base (T9)."""
    left = context.database.rows("SELECT path, entry, sha256 FROM intent WHERE place = ?", (context.place,))
    context.incoming.clear()
    if not left:
        return
    now = time.time_ns()
    with context.database.transaction() as db:
        for path, text, sha256 in left:
            path = str(path)
            entry = database.load_entry(path, text if text is None else str(text))
            content = _content(context, path)
            arrived = content is not None and content.sha256 == sha256
            if (entry is None and content is None) or (entry is not None and arrived):
                _take(context, db, path, entry, content.sha256 if content else None)
                overtake(db, context.place, {path})
                if content is not None:
                    file_stats.remember(db, path, content, now, context.place)
                else:
                    file_stats.forget(db, path)
            db.execute("DELETE FROM intent WHERE place = ? AND path = ?", (context.place, path))


def _content(context: Context, path: str) -> Content | None:
    try:
        return read_content(context.root / path, context.deadline) if context.stat(path) is not None else None
    except (DeadlinePassed, Cancelled):
        raise
    except (BayouError, OSError):
        return None


def _take(context: Context, db: sqlite3.Connection, path: str, entry: Entry | None, sha256: bytes | None) -> None:
    base.take(db, context.place, path, entry)
    if entry is not None and entry.sha256 is None and sha256 is not None:
        base.learn_hash(db, context.place, entry, sha256)
