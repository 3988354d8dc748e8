"""A store with every kind of damage and garbage, on a directory or in a bucket."""

from __future__ import annotations

from dataclasses import dataclass

from bayou.core.ids import ulid
from bayou.index.entry import Entry
from bayou.index.head import Head, read_head
from bayou.index.node_store import StoreNodes
from bayou.index.tree import IndexTree, scan
from bayou.objectstore import Store, keys
from tests.sync.conftest import Clone, Team

FILES = {f"data/t/m-{number % 3}/n/{number}/raw": b"content %d" % number for number in range(60)}
FOUND = {f"files/found/{number}": b"found %d" % number for number in range(12)}


@dataclass
class Mess:
    """A team whose store is in disorder, and the clone that looks at it."""

    team: Team
    clone: Clone
    store: Store

    @property
    def objects(self) -> dict[str, tuple[int, str | None]]:
        """Everything in the store, with its fingerprint, but for the head."""
        found = (meta for page in self.store.list() for meta in page)
        return {meta.key: (meta.size, meta.etag) for meta in found if meta.key != keys.HEAD}


def head_of(store: Store) -> Head:
    seen = read_head(store)
    assert seen is not None
    return seen.head


def entries_of(store: Store) -> dict[str, Entry]:
    return {entry.path: entry for entry in scan(IndexTree(StoreNodes(store), head_of(store).root))}


def lay(store: Store, path: str, content: bytes) -> None:
    """Put an object that Bayou knows nothing of."""
    store.put(keys.payload(path, None), content)


def make_mess(team: Team) -> Mess:
    """Discover objects, push files as objects of their own, change and delete some, and then break what can break."""
    store = team.store()
    for path, content in FOUND.items():
        lay(store, path, content)
    clone = team.clone("a")
    with open(clone.repo.file, "a") as config:
        config.write("[sync]\npoint_limit = 20\npack_below = 0\n")
    clone.reopen()
    clone.write_all({**FILES, "files/nested/x": b"in a directory"})
    clone.sync(engine="point")
    clone.write_all(dict.fromkeys([*FILES][:5], b"newer"))
    clone.delete(*[*FILES][5:9], *[*FOUND][:3])
    clone.sync(engine="point")
    entries = entries_of(store)
    pushed = [path for path in entries if path in FILES]
    store.delete([entries[path].key for path in pushed[:4]])
    store.delete([entries["files/found/9"].key, entries["files/nested/x"].key])
    for path in pushed[4:7]:
        store.put(entries[path].key, b"of another size altogether")
    for path in pushed[7:9]:
        store.put(entries[path].key, bytes(entries[path].size))
    for path in pushed[9:11]:  # as a repeated PUT does: another ETag on a directory, the same bytes
        store.put(entries[path].key, FILES[path])
    lay(store, "files/found/10", b"replaced")
    lay(store, "files/found/11", bytes(len(FOUND["files/found/11"])))
    for path in ("files/nobody/indexed", "outputs/this", "elsewhere/a", "top", "data/.lock", "files/nested"):
        lay(store, path, b"unindexed")
    for path in ("files/x/.bayou/head.json", "files/x/deep/y", "data/t/~x/raw"):
        store.put(keys.as_listed(path), b"foreign or odd")
    for path in ("data/t/m-0/n/1/raw", "files/never"):
        store.put(keys.payload(path, ulid()), b"of a push that died")
    return Mess(team, clone, store)
