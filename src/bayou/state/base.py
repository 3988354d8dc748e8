"""The sync base: the entries that this tree is known to match, kept as an index tree of its own.

Each remote (a URL and a namespace) has a base. It consists of a root in the local node cache (`.bayou/state/nodes`)
and an overlay of rows that came since; `SyncBase.fold` merges the overlay into the tree. The rows of base are the
remote's rows, verbatim. Beside base, `absent` lists the entries that this tree leaves out on purpose, and `forgotten`
those that another client dropped from the store's index by `verify --forget`: their files here are not deleted.

The module's functions with a `db` parameter write inside a transaction of the caller, together with the change that
makes the row true (V3). `paths_under`, `paths_without_entry` and `changed_paths` answer questions about paths from base
alone: they send no request to the store. A lost node of base raises `BaseLost`; the next sync then compares the tree
with the store again.
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
from bayou.index.entry import Entry
from bayou.index.key_range import EVERYTHING, KeyRange
from bayou.index.merge import merge
from bayou.index.node import Node, Ref, Root
from bayou.index.node_store import LocalNodes, NodeFiles
from bayou.index.tree import IndexTree, NodeSink, NodeSource, diff, find_many, scan
from bayou.objectstore.store import Store
from bayou.repo import Repo
from bayou.state.database import IN_RANGE, Database, dump_entry, load_entry, register_remote, remote_url

Why = Literal["lazy", "excluded", "refused"]
"""Why a path that base has is absent from the tree on purpose."""

_FORGOTTEN = "SELECT path FROM forgotten WHERE place = ?"
_ALL = ""
"""Stands for every path among the forgotten ones; no path is empty."""
_CLEARED = ("absent", "untracked", "forgotten")
"""Tables whose row of a path ends when base gets another entry for the path."""


class RemoteState(Struct, frozen=True):
    """The state of one remote on this machine. `etag` is set only while base's root is that head's root (V3)."""

    id: int
    url: str
    namespace: str | None
    store: str | None
    root: Root | None
    seq: int | None
    commit: str | None
    etag: str | None
    policy: str
    """The policy of the last sync that ended; empty before the first one has."""
    rebuilt: str | None
    """The commit of the last index rebuild that base was compared with, if there was one."""


class SyncBase:
    """The base of one remote. `source` loads its nodes; a row of the overlay hides the tree's row of that path."""

    def __init__(self, database: Database, url: str, namespace: str | None, source: NodeSource) -> None:
        self.database = database
        self.remote_id = register_remote(database, url, namespace or "")
        self._source = source

    @property
    def remote(self) -> RemoteState:
        """The remote's row in `sync.db`, as of now."""
        found = self.database.rows(
            "SELECT id, url, namespace, store, root, seq, commit_id, etag, policy, rebuilt FROM place WHERE id = ?",
            (self.remote_id,),
        )
        number, url, namespace, store, root, *rest = found[0]
        return RemoteState(number, url, namespace or None, store, load_root(cast("str | None", root)), *rest)  # type: ignore[arg-type]

    @property
    def known(self) -> bool:
        """Whether a sync with a head of this remote has ever ended."""
        return self.remote.policy != ""

    def tree(self) -> IndexTree:
        """Return base as of the last fold."""
        return IndexTree(self._source, self.remote.root)

    def lookup(self, paths: Iterable[str]) -> dict[str, Entry]:
        """Return the entries that base has for these paths."""
        wanted = sorted(set(paths))
        overlay = {path: load_entry(path, text) for path, text in self._overlay().items()}
        found = find_many(self.tree(), [path for path in wanted if path not in overlay])
        for path in wanted:
            entry = overlay.get(path)
            if entry is not None:
                found[path] = entry
        return found

    def dirty(self) -> bool:
        """Return whether the overlay has rows that no fold has merged yet."""
        return bool(self.database.rows("SELECT 1 FROM overlay WHERE place = ? LIMIT 1", (self.remote_id,)))

    def fold(self, sink: NodeSink) -> RemoteState:
        """Merge the overlay into the tree; return the remote's state after that."""
        overlay = self._overlay()
        if overlay:
            remote = self.remote
            changes = {path: load_entry(path, text) for path, text in overlay.items()}
            root = merge(IndexTree(self._source, remote.root), changes, sink)
            sink.flush()
            with self.database.transaction() as db:
                # V3: the ETag was proof of another root, if this root is new.
                changed = (root and root.digest) != (remote.root and remote.root.digest)
                db.execute(
                    "UPDATE place SET root = ?, etag = iif(?, NULL, etag) WHERE id = ?",
                    (dump_root(root), changed, self.remote_id),
                )
                if self._overlay() == overlay:  # one statement for all rows takes a tenth of the time
                    db.execute("DELETE FROM overlay WHERE place = ?", (self.remote_id,))
                else:
                    db.executemany(
                        "DELETE FROM overlay WHERE place = ? AND path = ? AND entry IS ?",
                        [(self.remote_id, path, text) for path, text in overlay.items()],
                    )
        return self.remote

    def can_replace_root(self, old: Root | None, new: Root | None) -> bool:
        """Return whether base may take the root `new`, which a commit of this client made from `old`.

        Base must equal `old`, with an empty overlay, and the local cache must have each node of `new` under the name
        that `new` uses. The commit has written the new nodes. Of the others, the cache has the leaves, since it names
        leaves by digest; branches may have other names here.
        """
        current = self.remote.root
        if self.dirty() or (current and current.digest) != (old and old.digest):
            return False
        return old is None or new is None or new.level <= 1

    def forget(self) -> None:
        """Delete all that is known of this remote, to join it again; the files of the tree are untracked then."""
        with self.database.transaction() as db:
            for table in ("overlay", "absent", "known", "untracked", "forgotten", "intent", "upload", "pending"):
                db.execute(f"DELETE FROM {table} WHERE place = ?", (self.remote_id,))
            db.execute("UPDATE file SET matches = NULL WHERE matches = ?", (self.remote_id,))
            db.execute(
                "UPDATE place SET store = NULL, root = NULL, seq = NULL, commit_id = NULL, etag = NULL, policy = '',"
                " rebuilt = NULL WHERE id = ?",
                (self.remote_id,),
            )

    def absent(self, within: KeyRange = EVERYTHING) -> dict[str, Why]:
        """Return the paths that are absent from the tree on purpose, and why."""
        found = self.database.rows(
            f"SELECT path, why FROM absent WHERE place = ? AND {IN_RANGE}", (self.remote_id, *within.bounds)
        )
        return cast("dict[str, Why]", dict(found))  # type: ignore[arg-type]

    def forgotten(self) -> set[str] | None:
        """Return the paths of base that another client forgot; None if it is unknown which ones, so that all may be."""
        found = {cast("str", path) for (path,) in self.database.rows(_FORGOTTEN, (self.remote_id,))}
        return None if _ALL in found else found

    def hashes(self, entries: Iterable[Entry], within: KeyRange = EVERYTHING) -> dict[str, Entry]:
        """Return entries that discovery left without a hash, with the hash that this machine found in the object."""
        found = self.database.rows(
            f"SELECT path, size, etag, version, sha256 FROM known WHERE place = ? AND {IN_RANGE}",
            (self.remote_id, *within.bounds),
        )
        recorded = {path: rest for path, *rest in found}
        hashed = {}
        for entry in entries:
            size, etag, version, sha256 = recorded.get(entry.path, (None, None, None, None))
            if entry.sha256 is None and (size, etag, version) == (entry.size, entry.etag, entry.version):
                hashed[entry.path] = replace(entry, sha256=cast("bytes", sha256))
        return hashed

    def _overlay(self) -> dict[str, str | None]:
        """Return the overlay's entries by path, as JSON; None for a path that base has no more."""
        found = self.database.rows("SELECT path, entry FROM overlay WHERE place = ?", (self.remote_id,))
        return cast("dict[str, str | None]", dict(found))  # type: ignore[arg-type]


def record_entry(db: sqlite3.Connection, remote_id: int, path: str, entry: Entry | None) -> None:
    """Set base's entry of a path (None: base has none), and the path is no longer absent, untracked or forgotten."""
    update_entry(db, remote_id, path, entry)
    for table in _CLEARED:
        db.execute(f"DELETE FROM {table} WHERE place = ? AND path = ?", (remote_id, path))


def record_entries(db: sqlite3.Connection, remote_id: int, entries: Mapping[str, str | None]) -> None:
    """Do what `record_entry` does, for many paths, whose entries are JSON (`dump_entry`)."""
    db.executemany(
        "INSERT OR REPLACE INTO overlay VALUES (?, ?, ?)", [(remote_id, path, text) for path, text in entries.items()]
    )
    _clear_marks(db, remote_id, entries)


def update_entry(db: sqlite3.Connection, remote_id: int, path: str, entry: Entry | None) -> None:
    """Set base's entry of a path, and leave alone whether the path is absent or untracked."""
    db.execute("INSERT OR REPLACE INTO overlay VALUES (?, ?, ?)", (remote_id, path, dump_entry(entry)))


def replace_root(db: sqlite3.Connection, remote_id: int, root: Root | None, changed: Collection[str]) -> None:
    """Make `root` the root of base, if `SyncBase.can_replace_root`; `changed` are the paths whose entries differ."""
    # V3: the ETag was proof of another root.
    db.execute("UPDATE place SET root = ?, etag = NULL WHERE id = ?", (dump_root(root), remote_id))
    _clear_marks(db, remote_id, changed)


def record_absent(db: sqlite3.Connection, remote_id: int, path: str, why: Why) -> None:
    """Record that the tree leaves out an entry of base on purpose; call it after `record_entry`."""
    db.execute("INSERT OR REPLACE INTO absent VALUES (?, ?, ?)", (remote_id, path, why))


def record_forgotten(db: sqlite3.Connection, remote_id: int, paths: Collection[str] | None) -> None:
    """Record that another client forgot these entries of base (None: it is not known any more which)."""
    db.executemany(
        "INSERT OR IGNORE INTO forgotten VALUES (?, ?)",
        [(remote_id, path) for path in (paths if paths is not None else (_ALL,))],
    )


def clear_forgotten(db: sqlite3.Connection, remote_id: int) -> None:
    """Drop all that `record_forgotten` has recorded; call it when base's root is the head's root."""
    db.execute("DELETE FROM forgotten WHERE place = ?", (remote_id,))


def record_hash(db: sqlite3.Connection, remote_id: int, entry: Entry, sha256: bytes) -> None:
    """Record the hash of a discovered object, computed from its own bytes."""
    db.execute(
        "INSERT OR REPLACE INTO known VALUES (?, ?, ?, ?, ?, ?)",
        (remote_id, entry.path, entry.size, entry.etag, entry.version, sha256),
    )


def record_head(
    db: sqlite3.Connection,
    remote_id: int,
    store: str | None,
    seq: int | None,
    commit: str | None,
    etag: str | None,
    policy: str,
) -> None:
    """Record the head that base was last compared with. Pass its ETag only if base's root is that head's root (V3)."""
    db.execute(
        "UPDATE place SET store = ?, seq = ?, commit_id = ?, etag = ?, policy = ? WHERE id = ?",
        (store, seq, commit, etag, policy, remote_id),
    )


def record_rebuilt(db: sqlite3.Connection, remote_id: int, rebuilt: str) -> None:
    """Record that base was compared with this rebuild of the index, and has no entry that the rebuilt index lacks."""
    db.execute("UPDATE place SET rebuilt = ? WHERE id = ?", (rebuilt, remote_id))


def _clear_marks(db: sqlite3.Connection, remote_id: int, paths: Collection[str]) -> None:
    for table in _CLEARED:
        if db.execute(f"SELECT 1 FROM {table} WHERE place = ? LIMIT 1", (remote_id,)).fetchone() is not None:
            db.executemany(
                f"DELETE FROM {table} WHERE place = ? AND path = ?",
                [(remote_id, path) for path in paths],
            )


def dump_root(root: Root | None) -> str | None:
    """Return a root as the JSON that `sync.db` holds."""
    return None if root is None else json.dumps([root.node, root.digest.hex(), root.level, root.entries, root.bytes])


def load_root(text: str | None) -> Root | None:
    """Return the root that `dump_root` wrote."""
    if text is None:
        return None
    node, digest, level, entries, size = json.loads(text)
    return Root(node, bytes.fromhex(digest), level, entries, size)


def repo_remote_url(repo: Repo, store: Store) -> str:
    """Return the URL that identifies a repo's remote: as the configuration spells it, if it names a URL."""
    url = repo.config.datastore.url
    return remote_url(url, store.namespace) if url is not None else store.url


class BaseLost(StateError):
    """A part of base cannot be read. The next sync deletes the rest of base and compares the tree with the store."""


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


def paths_under(repo: Repo, database: Database, remote_id: int, prefix: str) -> set[str]:
    """Return the paths of base that begin with `prefix`, as of now."""
    span = KeyRange.under(prefix)
    # One statement, so that no fold falls between the two.
    (_, _, root), *overlay = database.rows(
        "SELECT NULL, NULL, root FROM place WHERE id = ? UNION ALL"
        " SELECT path, entry, NULL FROM overlay WHERE place = ? AND path >= ? AND (? IS NULL OR path < ?)",
        (remote_id, remote_id, span.start, span.end, span.end),
    )
    found: set[str] = set()
    if root is not None:
        # Where base is lost, the next sync compares everything, and takes no missing row for a change.
        with suppress(BaseLost):
            found = {entry.path for entry in scan(IndexTree(_nodes(repo), load_root(str(root))), span)}
    for path, entry, _ in overlay:
        (found.discard if entry is None else found.add)(str(path))
    return found


def paths_without_entry(repo: Repo, database: Database, paths: Set[str]) -> set[str]:
    """Return which of these paths have no entry in base; none of them if part of base is lost."""
    config = repo.config.datastore
    assert config.url is not None
    base = SyncBase(database, remote_url(config.url, config.namespace), config.namespace, _nodes(repo))
    try:
        return set(paths - base.lookup(paths).keys())
    except BaseLost:
        return set()


def changed_paths(repo: Repo, old: str | None, new: str | None) -> set[str] | None:
    """Return the paths whose files differ between two roots of base; None if part of either is lost.

    A file whose bytes only lie elsewhere in the store is not among them (P4).
    """
    source = _nodes(repo)
    changes = diff(IndexTree(source, load_root(old)), IndexTree(source, load_root(new)))
    try:
        return {change.path for change in changes if not change.moved}
    except BaseLost:
        return None


def _nodes(repo: Repo) -> BaseNodes:
    return BaseNodes(NodeFiles(repo.state / "nodes"), ulid())
