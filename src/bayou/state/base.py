"""Base: the entries that this tree is known to match, kept as an index tree of its own.

A place is a URL and a namespace. Its base is a root in the local node cache, and an overlay of rows that came since;
`fold` merges the two. Rows are the remote's, verbatim. Everything here is written inside transactions of the caller's,
together with what made it true.

The nodes of base, on this machine. What is lost of them is found out anew, not mourned.

What base says of paths, whether or not they are here. Nothing is asked of the store.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Set
from contextlib import suppress
from typing import Literal, cast

from msgspec import Struct
from msgspec.structs import replace

from bayou.core.errors import NodeDamaged, NodeMissing, StateError
from bayou.core.ids import ulid
from bayou.index import merge
from bayou.index import tree as read
from bayou.index.entry import Entry
from bayou.index.key_range import EVERYTHING, KeyRange
from bayou.index.node import Node, Ref, Root
from bayou.index.node_store import LocalNodes, NodeFiles
from bayou.index.tree import IndexTree, NodeSink, NodeSource, diff, scan
from bayou.objectstore.store import Store
from bayou.repo import Repo
from bayou.state import database as rows
from bayou.state.database import IN_SPAN, Database, remote_id, remote_url

Why = Literal["lazy", "excluded", "refused"]
"""Why a path that base has is absent here on purpose."""


class RemoteState(Struct, frozen=True):
    """What is known of one store at one URL. `etag` is kept only while base's root is that head's root."""

    id: int
    url: str
    namespace: str | None
    store: str | None
    root: Root | None
    seq: int | None
    commit: str | None
    etag: str | None
    policy: str
    rebuilt: str | None
    """The rebuilding of the index that base has been compared with, if there was one."""


class SyncBase:
    """The base of one place. `source` has its nodes; lookups see the overlay first."""

    def __init__(self, database: Database, url: str, namespace: str | None, source: NodeSource) -> None:
        self.database = database
        self._source = source
        self._place_id = remote_id(database, url, namespace or "")

    @property
    def place(self) -> RemoteState:
        found = self.database.rows(
            "SELECT id, url, namespace, store, root, seq, commit_id, etag, policy, rebuilt FROM place WHERE id = ?",
            (self._place_id,),
        )
        number, url, namespace, store, root, *rest = found[0]
        return RemoteState(number, url, namespace or None, store, load_root(cast("str | None", root)), *rest)  # type: ignore[arg-type]

    @property
    def place_id(self) -> int:
        return self._place_id

    @property
    def known(self) -> bool:
        """Whether this tree was ever in step with a head of this place."""
        return self.place.commit is not None

    def tree(self) -> IndexTree:
        """Return base as of the last fold."""
        return IndexTree(self._source, self.place.root)

    def lookup(self, paths: Iterable[str]) -> dict[str, Entry]:
        """Return the entries that base has of these paths."""
        wanted = sorted(set(paths))
        overlay = self._overlay()
        found = read.find_many(self.tree(), [path for path in wanted if path not in overlay])
        for path in wanted:
            entry = overlay.get(path)
            if entry is not None:
                found[path] = entry
        return found

    def dirty(self) -> bool:
        return bool(self.database.rows("SELECT 1 FROM overlay WHERE place = ? LIMIT 1", (self._place_id,)))

    def fold(self, sink: NodeSink) -> RemoteState:
        """Merge the overlay into the tree; return the place as it is then."""
        texts = self._overlay_texts()
        if texts:
            place = self.place
            overlay = {path: rows.load_entry(path, text) for path, text in texts.items()}
            root = merge.merge(IndexTree(self._source, place.root), overlay, sink)
            sink.flush()
            with self.database.transaction() as db:
                # V3: the ETag was proof of another root, if this one is new.
                changed = (root and root.digest) != (place.root and place.root.digest)
                db.execute(
                    "UPDATE place SET root = ?, etag = iif(?, NULL, etag) WHERE id = ?",
                    (dump_root(root), changed, self._place_id),
                )
                if self._overlay_texts() == texts:  # one statement for all: a tenth of the time
                    db.execute("DELETE FROM overlay WHERE place = ?", (self._place_id,))
                else:
                    db.executemany(
                        "DELETE FROM overlay WHERE place = ? AND path = ? AND entry IS ?",
                        [(self._place_id, path, text) for path, text in texts.items()],
                    )
        return self.place

    def can_follow(self, old: Root | None, new: Root | None) -> bool:
        """Whether base can become `new`, which a commit from here has just made of `old`, without a look at its rows.

        It must be all of `old`, with nothing on top; and each node of `new` must be here, by the name that it goes by
        in `new`. The commit has written those that are new. Of the others, leaves go by their digest, so base has them;
        branches may have other names here.
        """
        mine = self.place.root
        if self.dirty() or (mine and mine.digest) != (old and old.digest):
            return False
        return old is None or new is None or new.level <= 1

    def forget(self) -> None:
        """Forget all that is known of this place, to join it anew; what the tree holds is untracked then."""
        with self.database.transaction() as db:
            for table in ("overlay", "absent", "known", "untracked", "intent", "upload", "pending"):
                db.execute(f"DELETE FROM {table} WHERE place = ?", (self._place_id,))
            db.execute("UPDATE file SET matches = NULL WHERE matches = ?", (self._place_id,))
            db.execute(
                "UPDATE place SET store = NULL, root = NULL, seq = NULL, commit_id = NULL, etag = NULL, rebuilt = NULL"
                " WHERE id = ?",
                (self._place_id,),
            )

    def _overlay(self) -> dict[str, Entry | None]:
        return {path: rows.load_entry(path, text) for path, text in self._overlay_texts().items()}

    def _overlay_texts(self) -> dict[str, str | None]:
        found = self.database.rows("SELECT path, entry FROM overlay WHERE place = ?", (self._place_id,))
        return cast("dict[str, str | None]", dict(found))  # type: ignore[arg-type]

    def absent(self, within: KeyRange = EVERYTHING) -> dict[str, Why]:
        """Return what is not here on purpose, and why."""
        found = self.database.rows(
            f"SELECT path, why FROM absent WHERE place = ? AND {IN_SPAN}", (self._place_id, *within.bounds)
        )
        return cast("dict[str, Why]", dict(found))  # type: ignore[arg-type]

    def hashes(self, entries: Iterable[Entry], within: KeyRange = EVERYTHING) -> dict[str, Entry]:
        """Give entries that discovery left without a hash the one that this machine found by reading the object."""
        found = self.database.rows(
            f"SELECT path, size, etag, version, sha256 FROM known WHERE place = ? AND {IN_SPAN}",
            (self._place_id, *within.bounds),
        )
        known = {path: rest for path, *rest in found}
        answer = {}
        for entry in entries:
            size, etag, version, sha256 = known.get(entry.path, (None, None, None, None))
            if entry.sha256 is None and (size, etag, version) == (entry.size, entry.etag, entry.version):
                answer[entry.path] = replace(entry, sha256=cast("bytes", sha256))
        return answer


def take(db: sqlite3.Connection, place: int, path: str, entry: Entry | None) -> None:
    """Make base say this of a path."""
    restate(db, place, path, entry)
    db.execute("DELETE FROM absent WHERE place = ? AND path = ?", (place, path))
    db.execute("DELETE FROM untracked WHERE place = ? AND path = ?", (place, path))


def take_many(db: sqlite3.Connection, place: int, entries: Mapping[str, Entry | None]) -> None:
    """Make base say this of many paths."""
    db.executemany(
        "INSERT OR REPLACE INTO overlay VALUES (?, ?, ?)",
        [(place, path, rows.dump_entry(entry)) for path, entry in entries.items()],
    )
    _are_here(db, place, entries)


def follow(db: sqlite3.Connection, place: int, root: Root | None, changed: Collection[str]) -> None:
    """Make base all that a root says, where it can (`Base.can_follow`); `changed` are the paths that this changes."""
    # V3: the ETag was proof of another root.
    db.execute("UPDATE place SET root = ?, etag = NULL WHERE id = ?", (dump_root(root), place))
    _are_here(db, place, changed)


def _are_here(db: sqlite3.Connection, place: int, paths: Collection[str]) -> None:
    """Forget that paths were absent or untracked."""
    for table in ("absent", "untracked"):
        if db.execute(f"SELECT 1 FROM {table} WHERE place = ? LIMIT 1", (place,)).fetchone() is not None:
            db.executemany(
                f"DELETE FROM {table} WHERE place = ? AND path = ?",
                [(place, path) for path in paths],
            )


def restate(db: sqlite3.Connection, place: int, path: str, entry: Entry | None) -> None:
    """Make base say in other words what it says of a path: whether the file is here is as it was."""
    db.execute("INSERT OR REPLACE INTO overlay VALUES (?, ?, ?)", (place, path, rows.dump_entry(entry)))


def leave_out(db: sqlite3.Connection, place: int, path: str, why: Why) -> None:
    """Note that an entry of base is not here on purpose; after `take`."""
    db.execute("INSERT OR REPLACE INTO absent VALUES (?, ?, ?)", (place, path, why))


def learn_hash(db: sqlite3.Connection, place: int, entry: Entry, sha256: bytes) -> None:
    """Keep the hash of an object that discovery found, from its own bytes."""
    db.execute(
        "INSERT OR REPLACE INTO known VALUES (?, ?, ?, ?, ?, ?)",
        (place, entry.path, entry.size, entry.etag, entry.version, sha256),
    )


def settle_head(
    db: sqlite3.Connection,
    place: int,
    store: str | None,
    seq: int | None,
    commit: str | None,
    etag: str | None,
    policy: str,
) -> None:
    """Note the head that base was last compared with. Give its ETag only if base's root is that head's root (V3)."""
    db.execute(
        "UPDATE place SET store = ?, seq = ?, commit_id = ?, etag = ?, policy = ? WHERE id = ?",
        (store, seq, commit, etag, policy, place),
    )


def settle_rebuilt(db: sqlite3.Connection, place: int, rebuilt: str) -> None:
    """Note that base says nothing any more that this rebuilding of the index does not say too."""
    db.execute("UPDATE place SET rebuilt = ? WHERE id = ?", (rebuilt, place))


def dump_root(root: Root | None) -> str | None:
    return None if root is None else json.dumps([root.node, root.digest.hex(), root.level, root.entries, root.bytes])


def load_root(text: str | None) -> Root | None:
    if text is None:
        return None
    node, digest, level, entries, size = json.loads(text)
    return Root(node, bytes.fromhex(digest), level, entries, size)


def repo_place(repo: Repo, store: Store) -> str:
    """Return what identifies the place that a repo syncs with: its own words, whatever a plug-in calls its bucket."""
    url = repo.config.datastore.url
    return remote_url(url, store.namespace) if url is not None else store.url


class BaseLost(StateError):
    """Part of base cannot be read. It is forgotten then, and the next look compares the tree with the store anew."""


class BaseNodes(LocalNodes):
    """Base's nodes in `.bayou/state/nodes`."""

    def load(self, level: int, ref: Ref) -> Node:
        try:
            return super().load(level, ref)
        except (NodeMissing, NodeDamaged) as error:
            raise BaseLost(
                f"part of what this machine knew of the store is lost: {error.message}",
                hint="bayou datastore sync compares tree and store anew",
            ) from error


def known(repo: Repo, database: Database, place: int, prefix: str) -> set[str]:
    """Return the paths of base that begin with `prefix`, as of now."""
    span = KeyRange.under(prefix)
    # One statement, so that no fold falls between the two.
    rows = database.rows(
        "SELECT NULL, NULL, root FROM place WHERE id = ? UNION ALL"
        " SELECT path, entry, NULL FROM overlay WHERE place = ? AND path >= ? AND (? IS NULL OR path < ?)",
        (place, place, span.start, span.end, span.end),
    )
    (_, _, root), *overlay = rows
    found: set[str] = set()
    if root is not None:
        # A base that is lost is found out anew by the next sync, which then takes nothing here for a change of it.
        with suppress(BaseLost):
            found = {entry.path for entry in scan(IndexTree(_nodes(repo), load_root(str(root))), span)}
    for path, entry, _ in overlay:
        (found.discard if entry is None else found.add)(str(path))
    return found


def unknown(repo: Repo, database: Database, paths: Set[str]) -> set[str]:
    """Return which of these paths base has no entry of; none of them if part of it is lost."""
    config = repo.config.datastore
    assert config.url is not None
    base = SyncBase(database, remote_url(config.url, config.namespace), config.namespace, _nodes(repo))
    try:
        return set(paths - base.lookup(paths).keys())
    except BaseLost:
        return set()


def differing(repo: Repo, old: str | None, new: str | None) -> set[str] | None:
    """Return the paths whose entries differ between two roots of base; None if part of one is lost."""
    source = _nodes(repo)
    try:
        return {change.path for change in diff(IndexTree(source, load_root(old)), IndexTree(source, load_root(new)))}
    except BaseLost:
        return None


def _nodes(repo: Repo) -> BaseNodes:
    return BaseNodes(NodeFiles(repo.state / "nodes"), ulid())
