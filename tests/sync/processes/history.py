"""Every version of the index that the store's log names, as ids of files: who had what, when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from bayou.core.clock import parse_ms
from bayou.index.entry import Entry
from bayou.index.head import iter_log, read_head
from bayou.index.log import older_pages
from bayou.index.node_store import StoreNodes
from bayou.index.tree import IndexTree, names, scan
from bayou.objectstore import Store, keys
from tests.sync.indexes import read_entry
from tests.sync.processes.worker import identity_of


@dataclass(frozen=True, slots=True)
class Version:
    """What one commit left in the index: the id of each path, and by whom.

    `named` are the keys of the objects that a reader of this version needs: nodes, packs and objects; of the newest
    version also the pages of the log.
    """

    seq: int
    commit: str
    by: str
    ids: Mapping[str, str]
    kind: str = "push"
    at: int = 0
    entries: Mapping[str, Entry] = field(default_factory=dict)
    named: frozenset[str] = frozenset()


def read_history(store: Store) -> list[Version]:
    """Return every version, oldest first, from the empty one before the first commit on; all bytes are looked at."""
    seen = read_head(store)
    assert seen is not None
    source = StoreNodes(store)
    known: dict[tuple[str, int | None], str] = {}

    def identity(entry: Entry) -> str:
        place = entry.key, entry.offset
        if place not in known:
            content = read_entry(store, entry)
            assert sha256(content).digest() == entry.sha256, f"{entry.path} has other bytes than its entry says"
            known[place] = identity_of(entry.path, content)
        return known[place]

    history = []
    pages = {keys.log_page(page.id) for page in older_pages(store, seen.head.older, seen.head.log[0].seq)}
    for row in iter_log(store, seen.head):
        tree = IndexTree(source, row.root)  # type: ignore[arg-type]
        entries = {entry.path: entry for entry in scan(tree)} if row.root is not None else {}
        nodes = map(keys.node, names(tree)) if row.root is not None else ()
        ids = {path: identity(entry) for path, entry in entries.items()}
        named = frozenset({*nodes, *(entry.key for entry in entries.values()), *pages})
        pages = set()
        by = row.by.partition("@")[0]
        history.append(Version(row.seq, row.commit, by, ids, row.kind, parse_ms(row.at), entries, named))
    history.reverse()
    assert [one.seq for one in history] == list(range(1, len(history) + 1)), "the log has gaps"
    return history


def named_by_head(store: Store) -> set[str]:
    """Return the keys of the head and of everything that it names."""
    head = read_head(store).head
    tree = IndexTree(StoreNodes(store), head.root)
    pages = {keys.log_page(page.id) for page in older_pages(store, head.older, head.log[0].seq)}
    return {keys.HEAD, *map(keys.node, names(tree)), *(entry.key for entry in scan(tree)), *pages}
