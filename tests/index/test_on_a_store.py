"""The index on real stores of this machine, from discovery to the second commit."""

from __future__ import annotations

import pytest

from bayou.core.errors import NotFound, PreconditionFailed
from bayou.index.build import build
from bayou.index.check import check
from bayou.index.discovery import publish
from bayou.index.head import advance, iter_log, read_head, swap_head
from bayou.index.log import Tally
from bayou.index.merge import merge
from bayou.index.node_store import NodeFiles, StoreNodes, StoreSink
from bayou.index.tree import Change, IndexTree, diff, scan
from bayou.objectstore import keys
from bayou.objectstore.open import open_store
from tests.index.reference import entry, some
from tests.sync.reference_discovery import find

AT = "2026-03-01T12:00:00.000Z"


@pytest.fixture(params=["file", "memory"])
def store(request, tmp_path):
    url = f"file://{tmp_path}/store" if request.param == "file" else f"memory://index/{tmp_path.name}"
    return open_store(url, namespace="team", concurrency=8)


def test_a_store_is_discovered_published_and_committed_to(store, tmp_path):
    for path in ("data/t/m/n/1/raw", "files/empty", "files/b"):
        store.put(keys.payload(path, None), b"" if path == "files/empty" else b"12345")
    with pytest.raises(NotFound):
        read_head(store)

    found = find(store)
    root = build(found.entries, StoreSink(store, "c1"))
    seen = publish(store, root, store_id="s1", commit="c1", at=AT, by="ada")
    old = IndexTree(StoreNodes(store, NodeFiles(tmp_path / "cache")), seen.head.root)
    changes = {row.path: row for row in some(3000)} | {"files/b": None}
    root = merge(old, changes, StoreSink(store, "c2"))
    head, page = advance(
        seen.head, commit="c2", at=AT, by="ada", root=root, trash=None, tally=Tally(added=3000, deleted=1)
    )
    swap_head(store, head, seen.match, page)
    with pytest.raises(PreconditionFailed):
        swap_head(store, head, seen.match, page)

    seen = read_head(store)
    new = IndexTree(StoreNodes(store), seen.head.root)
    assert read_head(store, if_none_match=seen.etag) is None
    assert [row.commit for row in iter_log(store, seen.head)] == ["c2", "c1"]
    assert list(check(new)) == []
    assert [row.path for row in scan(new)] == sorted({row.path for row in [*found.entries, *some(3000)]} - {"files/b"})
    assert sum(1 for _ in diff(old, new)) == 3001
    assert next(diff(new, old)) == Change(some(1)[0].path, entry(some(1)[0].path, 0), None)
