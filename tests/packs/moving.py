"""Stores with packs, made by hand; and what a compaction does: bytes are written elsewhere, only locations change."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from bayou.core.clock import now
from bayou.core.ids import ulid
from bayou.core.iterators import batched
from bayou.index.build import build
from bayou.index.entry import Entry
from bayou.index.head import create_head, first_head
from bayou.index.log import Tally
from bayou.index.node_store import StoreSink
from bayou.objectstore import Store, keys
from bayou.packs.archive import PackBuilder
from bayou.packs.entries import read_entry
from tests.sync.indexes import commit_rows, entries_of


def packed(store: Store, files: dict[str, bytes], like: dict[str, Entry]) -> dict[str, Entry]:
    """Put files into one new pack; return their entries, which differ from `like` only in the location."""
    builder = PackBuilder()
    for path, data in files.items():
        entry = like[path]
        assert entry.push is not None
        assert entry.sha256 is not None
        builder.add(path, entry.push, data, entry.sha256, entry.modified)
    pack = builder.finish()
    store.put(keys.pack(pack.name), pack.data)
    return {
        member.path: replace(
            like[member.path],
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


def in_packs(store: Store, contents: Mapping[str, bytes], per_pack: int) -> dict[str, Entry]:
    """Put files into packs of so many files each; return their entries."""
    like = {
        path: Entry(path, ulid(), len(data), hashlib.sha256(data).digest(), None, None, 1_700_000_000_000)
        for path, data in contents.items()
    }
    found: dict[str, Entry] = {}
    for some in batched(contents, per_pack):
        found |= packed(store, {path: contents[path] for path in some}, like)
    return found


def put_index(store: Store, entries: Mapping[str, Entry]) -> None:
    """Give the store its first index, of these entries."""
    commit = ulid()
    sink = StoreSink(store, commit)
    root = build([entries[path] for path in sorted(entries)], sink)
    sink.flush()
    create_head(store, first_head(store=ulid(), commit=commit, at=now(), by="test", root=root, tally=Tally()))


def move(store: Store, paths: Iterable[str] | None = None) -> dict[str, Entry]:
    """Move files (all of them) to a new pack, and commit the rows as a compaction; return the old entries."""
    before = entries_of(store)
    chosen = {path: before[path] for path in (before if paths is None else paths)}
    contents = {path: read_entry(store, entry) for path, entry in chosen.items()}
    moved = packed(store, {path: data for path, data in contents.items() if data is not None}, chosen)
    assert moved.keys() == chosen.keys()
    commit_rows(store, moved, "compact")
    return chosen


def drop_packs(store: Store, entries: Iterable[Entry]) -> None:
    """Delete the objects of entries, as a collection does once no root that it keeps names them."""
    store.delete({entry.key for entry in entries})
