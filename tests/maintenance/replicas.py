"""A datastore and its replica, for tests of replication; and a compaction, done by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from bayou.core.clock import now
from bayou.core.ids import ulid
from bayou.index.entry import Entry
from bayou.index.head import Head, advance, read_head, swap_head
from bayou.index.log import Kind, Tally
from bayou.index.merge import merge
from bayou.index.node_store import StoreNodes, StoreSink
from bayou.index.tree import IndexTree, scan
from bayou.objectstore import Store, keys, open_store
from bayou.packs.archive import PackBuilder
from bayou.packs.read import read_one
from bayou.sync.report import ReplicateReport
from tests import api
from tests.sync.conftest import Clone, Team

FILES = {f"files/{number}.txt": f"content {number}".encode() for number in range(12)}


@dataclass
class Scene:
    """A datastore with some files, and an empty place for its replica."""

    team: Team
    alice: Clone
    url: str

    def replicate(self, **options: Any) -> ReplicateReport:
        return api.replicate(self.alice.repo, self.url, **options)

    def push(self, files: dict[str, bytes]) -> None:
        self.alice.write_all(files)
        self.alice.push()

    @property
    def store(self) -> Store:
        return open_store(self.url)

    @property
    def replica(self) -> Team:
        return Team(self.team.root, self.url, {})


def head_of(store: Store) -> Head:
    seen = read_head(store)
    assert seen is not None
    return seen.head


def entries_of(store: Store) -> dict[str, Entry]:
    return {entry.path: entry for entry in scan(IndexTree(StoreNodes(store), head_of(store).root))}


def contents_of(store: Store) -> dict[str, bytes]:
    found = {}
    for path, entry in entries_of(store).items():
        if entry.pack is not None:
            data = read_one(store, entry)
        else:
            fetched = store.get(entry.key)
            data = bytes(fetched.data) if fetched is not None else None
        assert data is not None
        found[path] = data
    return found


def listed(store: Store) -> set[str]:
    return {meta.key for page in store.list() for meta in page}


def payload(store: Store) -> list[str]:
    """Return the keys of what holds files: objects of their own, and packs."""
    return sorted(key for key in listed(store) if not key.startswith(".bayou/") or key.startswith(keys.PACKS))


def compact(store: Store) -> str:
    """Move every file into one new pack, as a compaction does: only locations change (P4). Return the pack's name."""
    contents, builder = contents_of(store), PackBuilder()
    entries = entries_of(store)
    for path, entry in entries.items():
        assert entry.push is not None
        assert entry.sha256 is not None
        builder.add(path, entry.push, contents[path], entry.sha256, entry.modified)
    pack = builder.finish()
    store.put(keys.pack(pack.name), pack.data)
    moved = {
        member.path: replace(
            entries[member.path],
            etag=None,
            version=None,
            at=None,
            pack=pack.name,
            offset=member.offset,
            stored=member.stored,
            method=member.method,
        )
        for member in pack.members
    }
    commit(store, moved, "compact")
    return pack.name


def commit(store: Store, changes: Mapping[str, Entry | None], kind: Kind = "push") -> None:
    """Change the index, whatever the rows are: a hostile client could."""
    seen, number = read_head(store), ulid()
    assert seen is not None
    root = merge(IndexTree(StoreNodes(store), seen.head.root), changes, StoreSink(store, number))
    new, page = advance(
        seen.head, commit=number, at=now(), by="x", root=root, trash=seen.head.trash, tally=Tally(), kind=kind
    )
    swap_head(store, new, seen.match, page)


def damage(team: Team, entry: Entry) -> None:
    """Change a byte of a file in its pack, in a store that is a directory."""
    assert entry.offset is not None
    file = team.root / "store" / entry.key
    data = bytearray(file.read_bytes())
    data[entry.offset] ^= 1
    file.write_bytes(data)
