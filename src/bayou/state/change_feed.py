"""The change feed: which payload files of a store's cache may have changed since a cursor, according to `sync.db`.

A consumer (the catalog) opens the feed, which fixes its cursor, and then reads files. A change that happens after that
is behind the cursor, so the next read of the feed reports it. Where `sync.db` cannot tell what changed,
`changed_since` returns None, and the consumer reads everything.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import cast

import msgspec
from msgspec import Struct

from bayou.state.connection import Connection
from bayou.state.database import remote_of, remote_url
from bayou.state.journal import Journal

_RECENT = """
SELECT path, coalesce(entry, '') FROM overlay WHERE place = ?
UNION ALL SELECT path, coalesce(entry, '') FROM intent WHERE place = ?
ORDER BY 1, 2
"""
"""The rows that base got since its last fold, and the intents of a pull that ended early."""


class Cursor(Struct, frozen=True, rename={"remote": "place"}, forbid_unknown_fields=True):
    """A position of the feed: base's root, a digest of the rows on top of it, and the journal's newest row.

    `state` distinguishes two `sync.db` of the same remote. `open` are rows whose change may still be made.
    """

    remote: str
    state: int
    root: str | None
    recent: str
    journal: int
    rows: int
    open: tuple[int, ...]

    def dump(self) -> str:
        return json.dumps(msgspec.to_builtins(self))

    @classmethod
    def load(cls, text: str) -> Cursor | None:
        """Return the cursor that `dump` wrote; None if another version of Bayou wrote the text."""
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError:
            return None


class PendingRow(Struct, frozen=True):
    """A journal row that existed at a cursor: after the row is dropped, only base records the change of its path."""

    id: int
    kind: str
    path: str


class CursorRows(Struct, frozen=True):
    """The rows that a consumer stores with its cursor: the journal's, and the paths of the rows on top of base."""

    pending: Sequence[PendingRow] = ()
    recent: Sequence[str] = ()


class Changes(Struct, frozen=True):
    """Files that may have changed, and directories below which any file may have (the empty path: the whole tree).

    The rest updates the consumer's `CursorRows`: `added` and `dropped` change `pending`, and `recent` replaces the
    paths, unless it is None.
    """

    paths: frozenset[str]
    below: frozenset[str]
    added: Sequence[PendingRow]
    dropped: Sequence[int]
    recent: Sequence[str] | None


class ChangeFeed:
    """The feed of one repo that has a store, as of `cursor`; a directory datastore has no journal, and so no feed."""

    def __init__(self, connection: Connection) -> None:
        repo, database = connection.repo, connection.database
        config = repo.config.datastore
        assert config.url is not None
        self._repo = repo
        self._database = database
        self._remote_id = remote_of(database, repo)
        self._close_abandoned()
        with database.snapshot() as db:
            root, policy, etag = db.execute(
                "SELECT root, policy, etag FROM place WHERE id = ?", (self._remote_id,)
            ).fetchone()
            recent = db.execute(_RECENT, (self._remote_id, self._remote_id)).fetchall()
            newest, rows = db.execute(
                "SELECT coalesce(max(id), 0), count(*) FROM journal WHERE place = ?", (self._remote_id,)
            ).fetchone()
            state = db.execute("PRAGMA application_id").fetchone()[0]
            open_rows = db.execute(
                "SELECT id FROM journal WHERE place = ? AND state = 'open'", (self._remote_id,)
            ).fetchall()
        self._recent = [str(path) for path, _ in recent]
        self._known = policy != ""  # as `SyncBase.known`
        self.complete = etag is not None and not recent
        """Whether base has every entry of the store: a path without an entry is not in the store (V3)."""
        self.cursor = Cursor(
            remote_url(config.url, config.namespace),
            state,
            root,
            _digest(recent) if recent else "",
            newest,
            rows,
            tuple(number for (number,) in open_rows),
        )

    def changed_since(self, old: Cursor, stored: Callable[[], CursorRows]) -> Changes | None:
        """Return what may have changed since the cursor `old`, or None if `sync.db` cannot tell.

        `stored` returns the rows that the consumer stored with that cursor.
        """
        now = self.cursor
        if (old.remote, old.state) != (now.remote, now.state):
            return None
        before = stored()
        fresh = self._rows("id > ?", old.journal)
        dropped: list[int] = []
        if self._count(old.journal) != len(before.pending):
            left = {row.id for row in self._rows("id <= ?", old.journal)}
            dropped = [row.id for row in before.pending if row.id not in left]
        again = {*dropped, *old.open}
        rows = [*fresh, *(row for row in before.pending if row.id in again)]
        found = {row.path for row in rows if row.kind != "tree"}
        if now.root != old.root:
            from bayou.state.base import changed_paths  # noqa: PLC0415  (imports the index: only if base has changed)

            changed = changed_paths(self._repo, old.root, now.root)
            if changed is None:
                return None
            found |= changed
        moved = now.recent != old.recent
        if moved:
            found |= {*before.recent, *self._recent}
        below = frozenset(row.path for row in rows if row.kind == "tree")
        return Changes(frozenset(found), below, fresh, dropped, self._recent if moved else None)

    def cursor_rows(self) -> CursorRows:
        """Return the rows to store with the cursor, for a consumer that has read every file."""
        return CursorRows(self._rows("id <= ?", self.cursor.journal), self._recent)

    def gone(self, paths: Collection[str], *, named: bool) -> set[str]:
        """Return which of these paths, whose files are missing here, are deleted for good (V20).

        A path is deleted if a journaled delete is its last row, or if base has no entry of it and either the feed
        `named` the path as changed or base has every entry of the store.
        """
        last = dict(self._last_rows(paths))
        deleted = {path for path, kind in last.items() if kind == "delete"}
        if not self._known or not (named or self.complete):
            return deleted
        from bayou.state.base import paths_without_entry  # noqa: PLC0415

        return deleted | paths_without_entry(self._repo, self._database, set(paths) - deleted)

    def _close_abandoned(self) -> None:
        """Close the rows of processes that are gone, or the feed would report their paths for ever."""
        if self._database.rows("SELECT 1 FROM journal WHERE place = ? AND state = 'open' LIMIT 1", (self._remote_id,)):
            Journal(self._database, self._remote_id).close_abandoned()

    def _rows(self, where: str, number: int) -> list[PendingRow]:
        found = self._database.rows(
            f"SELECT id, kind, path FROM journal WHERE place = ? AND {where} AND id <= ? ORDER BY id",
            (self._remote_id, number, self.cursor.journal),
        )
        return [PendingRow(*cast("tuple[int, str, str]", row)) for row in found]

    def _count(self, through: int) -> int:
        found = self._database.rows(
            "SELECT count(*) FROM journal WHERE place = ? AND id <= ?", (self._remote_id, through)
        )
        return cast("int", found[0][0])

    def _last_rows(self, paths: Iterable[str]) -> Iterator[tuple[str, str]]:
        for path in paths:
            found = self._database.rows(
                "SELECT kind FROM journal WHERE place = ? AND path = ? AND kind != 'tree' ORDER BY id DESC LIMIT 1",
                (self._remote_id, path),
            )
            if found:
                yield path, str(found[0][0])


def _digest(rows: list[tuple[str, str]]) -> str:
    from hashlib import sha256  # noqa: PLC0415  (3 ms, and there are rarely such rows)

    return sha256(json.dumps(rows).encode()).hexdigest()
