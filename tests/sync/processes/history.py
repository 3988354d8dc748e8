"""Every version of the index that the store's log names, as ids of files: who had what, when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from bayou.index.entry import Entry
from bayou.index.head import iter_log, read_head
from bayou.index.node_store import StoreNodes
from bayou.index.tree import IndexTree, scan
from bayou.objectstore import Store
from tests.sync.indexes import read_entry
from tests.sync.processes.worker import identity_of


@dataclass(frozen=True, slots=True)
class Version:
    """What one commit left in the index: the id of each path, and by whom."""

    seq: int
    commit: str
    by: str
    ids: Mapping[str, str]


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
    for row in iter_log(store, seen.head):
        entries = scan(IndexTree(source, row.root)) if row.root is not None else ()  # type: ignore[arg-type]
        ids = {entry.path: identity(entry) for entry in entries}
        history.append(Version(row.seq, row.commit, row.by.partition("@")[0], ids))
    history.reverse()
    assert [one.seq for one in history] == list(range(1, len(history) + 1)), "the log has gaps"
    return history
