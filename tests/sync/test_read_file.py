"""One file of the datastore: read from the tree or the store, located, and never changed by that."""

from __future__ import annotations

import hashlib
import os
import zlib
from typing import Any

import pytest
from msgspec.structs import replace

from bayou.core.errors import NotFound, Offline, PathRefused, SyncError, UsageError
from bayou.core.ids import ulid
from bayou.index.head import read_head
from bayou.index.node_store import StoreNodes
from bayou.index.tree import IndexTree, find
from bayou.objectstore import keys
from bayou.repo import init_repo, open_repo
from bayou.state.connection import Connection
from bayou.sync.read_file import Location, locate, open_content
from bayou_testing.faulty import Fault
from tests.maintenance.replicas import compact, damage
from tests.sync.conftest import Clone, Team, Wire
from tests.sync.indexes import commit_rows, entries_of

FILES = {
    "files/a.txt": b"the content of a\n" * 40,
    "files/b.bin": bytes(range(256)),
    "files/empty": b"",
    "files/large": os.urandom(300 << 10),
    "data/t/m/n/1/raw": b"raw " * 100,
    "data/t/m/n/1/metadata.yaml": b"name: n\n",
}


@pytest.fixture
def ann(team: Team) -> Clone:
    clone = team.clone("ann")
    clone.write_all(FILES)
    clone.push()
    return clone


def read(clone: Clone, path: str, **options: Any) -> tuple[bytes, str]:
    with open_content(Connection(clone.repo), path, **options) as content:
        data = content.file.read()
    assert (content.size, content.sha256) == (len(data), hashlib.sha256(data).digest())
    return data, content.source


@pytest.mark.parametrize("path", FILES)
def test_a_file_is_read_from_the_tree_if_it_has_the_bytes(ann: Clone, wire: Wire, path: str):
    wire.seen.clear()

    assert read(ann, path) == (FILES[path], "tree")

    assert [(one.verb, one.key) for one in wire.seen] == [("get", keys.HEAD)]


@pytest.mark.parametrize("path", FILES)
def test_another_clone_reads_it_from_the_store_with_one_request_for_the_bytes(
    ann: Clone, team: Team, wire: Wire, path: str
):
    ben = team.clone("ben")
    read(ben, "files/a.txt")  # the nodes of the index are cached
    before = team.keys()
    wire.seen.clear()

    assert read(ben, path) == (FILES[path], "store")

    assert {one.verb for one in wire.seen} == {"get"}
    assert len(wire.seen) == (2 if FILES[path] else 1)
    assert team.keys() == before
    assert ben.files == {}


def test_a_changed_file_of_the_tree_is_not_what_the_datastore_has(ann: Clone):
    ann.write("files/a.txt", b"x" * len(FILES["files/a.txt"]))
    ann.lay("files/b.bin", b"shorter")
    (ann.repo.tree_root / "files" / "large").unlink()
    (ann.repo.tree_root / "files" / "large").symlink_to("/etc/passwd")

    for path in ("files/a.txt", "files/b.bin", "files/large"):
        assert read(ann, path) == (FILES[path], "store")
    assert (ann.repo.tree_root / "files" / "large").is_symlink()


def test_a_lazy_tree_stays_as_it_is(ann: Clone, team: Team):
    lazy = team.clone("lazy", hydrate="lazy")
    lazy.pull()
    before = lazy.files
    assert "data/t/m/n/1/raw" not in before

    assert read(lazy, "data/t/m/n/1/raw") == (FILES["data/t/m/n/1/raw"], "store")
    assert lazy.files == before


def test_what_a_peer_pushed_is_read_without_a_pull(ann: Clone, team: Team):
    ben = team.clone("ben")
    ben.sync()
    ben.write("files/a.txt", b"of ben")
    ben.push()

    assert read(ann, "files/a.txt") == (b"of ben", "store")
    assert ann.files["files/a.txt"] == FILES["files/a.txt"]


def test_bytes_that_a_compaction_has_moved_are_found(ann: Clone, team: Team, monkeypatch):
    """P7: between the head and the read, the pack is compacted away and collected."""
    ben = team.clone("ben")
    read(ben, "files/empty")
    stale = read_head(team.store())
    assert stale is not None
    compact(team.store())
    for pack in {entry.key for entry in _entries_at(team, stale.head.root)}:
        team.store().delete([pack])
    heads = [stale]
    monkeypatch.setattr("bayou.sync.read_file.read_head", lambda store: heads.pop() if heads else read_head(store))

    assert read(ben, "files/a.txt") == (FILES["files/a.txt"], "store")
    assert heads == []


def test_a_large_object_that_vanishes_half_read_is_read_anew_from_where_it_is_now(
    ann: Clone, team: Team, wire: Wire, monkeypatch
):
    """P7: of the old object, the first spans have come; they are no part of what is read from the new one."""
    path, store = "files/large", team.store()
    for name, size in (("THRESHOLD", 100 << 10), ("_SPAN", 64 << 10), ("_LEAST_SPAN", 64 << 10)):
        monkeypatch.setattr(f"bayou.objectstore.multipart.{name}", size)
    stale, old = read_head(store), entries_of(store)[path]
    again = store.put(keys.payload(path, fresh := ulid()), FILES[path])
    commit_rows(store, {path: replace(old, at=fresh, etag=again.etag, version=again.version)})
    heads = [stale]
    monkeypatch.setattr("bayou.sync.read_file.read_head", lambda store: heads.pop() if heads else read_head(store))
    ben = team.clone("ben")
    wire.cut(Fault("get", str(old.key), nth=4, error=lambda: NotFound("gone")))

    assert read(ben, path) == (FILES[path], "store")
    assert len(wire.sent("get", str(old.key))) > 3


def _entries_at(team: Team, root: Any) -> list[Any]:
    tree = IndexTree(StoreNodes(team.store()), root)
    return [entry for path in FILES if (entry := find(tree, path)) is not None]


def test_damage_is_an_error_and_no_output(ann: Clone, team: Team):
    ben = team.clone("ben")
    entries = entries_of(team.store())
    damage(team, entries["files/a.txt"])
    with pytest.raises(SyncError, match="does not have the bytes that were pushed"):
        read(ben, "files/a.txt")
    team.store().delete([entries["files/b.bin"].key])
    with pytest.raises(SyncError, match=r"does not have the object of files/b\.bin") as caught:
        read(ben, "files/b.bin")
    assert caught.value.hint is not None
    assert "verify" in caught.value.hint
    large = team.root / "store" / entries["files/large"].key
    large.write_bytes(os.urandom(300 << 10))
    with pytest.raises(SyncError, match="does not have the bytes"):
        read(ben, "files/large")


def test_an_unsafe_row_is_not_followed(ann: Clone, team: Team):
    entry = entries_of(team.store())["files/a.txt"]
    commit_rows(team.store(), {entry.path: replace(entry, offset=1 << 40)})

    with pytest.raises(PathRefused, match="outside its pack"):
        read(team.clone("ben"), "files/a.txt")


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("files/a.text", "files/a.txt"),
        ("files/B.bin", "files/b.bin"),
        ("data/t/m/n/2/raw", "data/t/m/n/1/raw"),
        ("files/sub/large", "files/large"),
    ],
)
def test_an_unknown_path_is_an_error_with_the_nearest_name(ann: Clone, typed: str, hint: str):
    with pytest.raises(NotFound, match=f"nothing at {typed}") as caught:
        read(ann, typed)
    assert caught.value.hint == f"the nearest name is {hint}"


def test_other_things_than_files_of_the_index_have_errors_of_their_own(ann: Clone, team: Team):
    with pytest.raises(NotFound, match=r"is a directory, which has data/t/m/n/1/metadata\.yaml") as caught:
        read(ann, "data/t/m")
    assert caught.value.hint is not None
    assert "export DIR --prefix data/t/m" in caught.value.hint
    with pytest.raises(NotFound, match=r"^data is a directory"):
        read(ann, "data")
    ann.lay("files/mine", b"mine")
    with pytest.raises(NotFound, match="was not pushed yet"):
        read(ann, "files/mine")
    with pytest.raises(PathRefused):
        read(ann, "../../bayou.toml")
    with pytest.raises(PathRefused):
        read(ann, ".bayou/head.json")
    (team.root / "empty").mkdir()
    with pytest.raises(NotFound, match="no index yet"):
        read(Team(team.root, (team.root / "empty").as_uri(), {}).clone("early"), "files/a.txt")


def test_offline_the_tree_is_read_if_it_is_as_the_store_had_it(ann: Clone, team: Team, wire: Wire):
    wire.seen.clear()
    away = Clone(replace(ann.repo, offline=True))
    assert read(away, "files/a.txt") == (FILES["files/a.txt"], "tree")
    ann.write("files/a.txt", b"changed")
    with pytest.raises(Offline):
        read(away, "files/a.txt")
    with pytest.raises(Offline):
        read(away, "files/unknown")
    assert wire.seen == []


def test_a_datastore_that_is_a_directory_is_read_as_it_is(tmp_path):
    repo = init_repo(tmp_path / "repo")
    (repo.tree_root / "files").mkdir(parents=True)
    (repo.tree_root / "files" / "a").write_bytes(b"a\0b")
    here = Clone(open_repo(repo.root))

    assert read(here, "files/a") == (b"a\0b", "tree")
    with pytest.raises(NotFound):
        read(here, "files/b")
    with pytest.raises(UsageError, match="a directory, whose files have their names"):
        locate(Connection(here.repo), "files/a")


@pytest.mark.parametrize("path", FILES)
def test_a_location_is_enough_to_read_a_file_without_bayou(ann: Clone, team: Team, path: str):
    found = locate(Connection(ann.repo), path)

    assert _read_by_hand(team, found) == FILES[path]
    assert found.key.startswith(keys.PACKS) == (path != "files/large")


def _read_by_hand(team: Team, found: Location) -> bytes:
    stored = (team.root / "store" / found.key).read_bytes()[found.offset : found.offset + found.stored]
    data = zlib.decompress(stored, -15) if found.method == 8 else stored
    assert (len(data), hashlib.sha256(data).digest()) == (found.size, found.sha256)
    return data
