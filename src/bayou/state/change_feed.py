"""What has happened to the payload of a store's cache since somebody last looked, as `sync.db` tells it.

A position is taken before any file is read; so what changes afterwards lies behind the position, and is told the next
time. Nothing is told that cannot be: then everything is to be looked at anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

from msgspec import Struct
from msgspec.structs import asdict

from bayou.repo import Repo
from bayou.state.connection import Connection, connected
from bayou.state.database import Database, remote_of, remote_url
from bayou.state.journal import Journal


class Cursor(Struct, frozen=True):
    """Where the feed stands: base's root and what came on top of it, and the journal's newest row.

    `state` tells one `sync.db` from another at the same place. `open` are rows whose change may come any time.
    """

    place: str
    state: int
    root: str | None
    recent: str
    journal: int
    rows: int
    open: tuple[int, ...]

    def dump(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> Cursor | None:
        """Return a position that was dumped, or None if this is none of today's."""
        try:
            fields = json.loads(text)
            return cls(**{**fields, "open": tuple(fields["open"])})
        except (ValueError, TypeError, KeyError):
            return None


class Pending(Struct, frozen=True):
    """A row of the journal that was there at a position: once it is gone, base alone tells of its path."""

    id: int
    kind: str
    path: str


class Kept(Struct, frozen=True):
    """What whoever keeps a position keeps with it: the journal's rows of then, and the paths that base just got."""

    pending: Sequence[Pending] = ()
    recent: Sequence[str] = ()


class Changes(Struct, frozen=True):
    """Files that may have changed, directories in which anything may have (the empty path: anywhere), and what to keep.

    `added` and `dropped` bring `Kept.pending` up to date; `recent` replaces the paths, unless it is None.
    """

    paths: frozenset[str]
    below: frozenset[str]
    added: Sequence[Pending]
    dropped: Sequence[int]
    recent: Sequence[str] | None


class ChangeFeed:
    """The feed of one repo at one moment, `position`. Made by `open_feed`."""

    def __init__(self, repo: Repo, database: Database) -> None:
        config = repo.config.datastore
        assert config.url is not None
        self._repo = repo
        self._database = database
        self._place = remote_of(database, repo)
        self._settle()
        with database.snapshot() as db:
            root, commit, etag = db.execute(
                "SELECT root, commit_id, etag FROM place WHERE id = ?", (self._place,)
            ).fetchone()
            recent = db.execute(_RECENT, (self._place, self._place)).fetchall()
            newest, rows = db.execute(
                "SELECT coalesce(max(id), 0), count(*) FROM journal WHERE place = ?", (self._place,)
            ).fetchone()
            state = db.execute("PRAGMA application_id").fetchone()[0]
            still = db.execute("SELECT id FROM journal WHERE place = ? AND state = 'open'", (self._place,)).fetchall()
        self._recent = [str(path) for path, _ in recent]
        self._known = commit is not None
        self.complete = etag is not None and not recent
        """Whether base is all that the store has: what it does not name is nowhere (V3)."""
        self.position = Cursor(
            remote_url(config.url, config.namespace),
            state,
            root,
            _digest(recent) if recent else "",
            newest,
            rows,
            tuple(number for (number,) in still),
        )

    def changed_since(self, old: Cursor, kept: Callable[[], Kept]) -> Changes | None:
        """Return what may have changed since a position; None: nobody can tell."""
        now = self.position
        if (old.place, old.state) != (now.place, now.state):
            return None
        before = kept()
        fresh = self._rows("id > ?", old.journal)
        dropped: list[int] = []
        if self._count(old.journal) != len(before.pending):
            left = {row.id for row in self._rows("id <= ?", old.journal)}
            dropped = [row.id for row in before.pending if row.id not in left]
        again = {*dropped, *old.open}
        rows = [*fresh, *(row for row in before.pending if row.id in again)]
        found = {row.path for row in rows if row.kind != "tree"}
        if now.root != old.root:
            from bayou.state.base import differing  # noqa: PLC0415  (the index, which an unchanged tree needs not)

            changed = differing(self._repo, old.root, now.root)
            if changed is None:
                return None
            found |= changed
        moved = now.recent != old.recent
        if moved:
            found |= {*before.recent, *self._recent}
        below = frozenset(row.path for row in rows if row.kind == "tree")
        return Changes(frozenset(found), below, fresh, dropped, self._recent if moved else None)

    def kept(self) -> Kept:
        """Return what is to be kept with the position by somebody who has looked at everything."""
        return Kept(self._rows("id <= ?", self.position.journal), self._recent)

    def gone(self, paths: Collection[str], *, named: bool) -> set[str]:
        """Return which of these paths, whose files are not here, are gone for good (V20).

        A journaled delete says so; base does by having no entry, if it was `named` as changed, or has all there is.
        """
        last = dict(self._last_rows(paths))
        deleted = {path for path, kind in last.items() if kind == "delete"}
        if not self._known or not (named or self.complete):
            return deleted
        from bayou.state.base import unknown  # noqa: PLC0415

        return deleted | unknown(self._repo, self._database, set(paths) - deleted)

    def _settle(self) -> None:
        """Close the rows of processes that are gone, or what they name would have to be looked at for ever."""
        if self._database.rows("SELECT 1 FROM journal WHERE place = ? AND state = 'open' LIMIT 1", (self._place,)):
            Journal(self._database, self._place).rows()

    def _rows(self, where: str, number: int) -> list[Pending]:
        found = self._database.rows(
            f"SELECT id, kind, path FROM journal WHERE place = ? AND {where} AND id <= ? ORDER BY id",
            (self._place, number, self.position.journal),
        )
        return [Pending(*cast("tuple[int, str, str]", row)) for row in found]

    def _count(self, through: int) -> int:
        found = self._database.rows("SELECT count(*) FROM journal WHERE place = ? AND id <= ?", (self._place, through))
        return cast("int", found[0][0])

    def _last_rows(self, paths: Iterable[str]) -> Iterator[tuple[str, str]]:
        for path in paths:
            found = self._database.rows(
                "SELECT kind FROM journal WHERE place = ? AND path = ? AND kind != 'tree' ORDER BY id DESC LIMIT 1",
                (self._place, path),
            )
            if found:
                yield path, str(found[0][0])


def _digest(rows: list[tuple[str, str]]) -> str:
    from hashlib import sha256  # noqa: PLC0415  (3 ms, and hardly ever are there any)

    return sha256(json.dumps(rows).encode()).hexdigest()


_RECENT = """
SELECT path, coalesce(entry, '') FROM overlay WHERE place = ?
UNION ALL SELECT path, coalesce(entry, '') FROM intent WHERE place = ?
ORDER BY 1, 2
"""
"""What base got since its last fold, and what a pull that died was about to put in place."""


@contextmanager
def open_feed(repo: Repo, connection: Connection | None = None) -> Iterator[ChangeFeed]:
    """Open the feed of a repo that has a store; nobody keeps a journal of a datastore that is a directory."""
    with connected(repo, connection) as opened:
        yield ChangeFeed(repo, opened.database)
