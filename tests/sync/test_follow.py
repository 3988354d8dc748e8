"""After a push, base is the root that was committed, without a look at its rows, wherever that is safe."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bayou.index.head import read_head, swap_head
from bayou.index.merge import merge
from bayou.index.node import Root
from bayou.index.node_store import LocalNodes, NodeFiles
from bayou.index.tree import IndexTree, names, scan
from bayou.state import base
from bayou.sync.commit import commit
from bayou.sync.context import SyncContext, open_context
from bayou.sync.report import SyncOptions
from tests.sync.conftest import Clone, Team

FILES = {f"data/t/m{number % 7}/n{number}/1/raw": os.urandom(40) for number in range(1200)}


def paths_of_base(context: SyncContext) -> set[str]:
    return {entry.path for entry in scan(context.base.tree())}


@pytest.fixture
def merges(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each fold of base has merged."""
    seen: list[int] = []

    def counted(tree: IndexTree, changes: Mapping[str, Any], *more: Any) -> Root | None:
        seen.append(len(changes))
        return merge(tree, changes, *more)

    monkeypatch.setattr(base, "merge", counted)
    return seen


def test_base_becomes_the_committed_root(team: Team, merges: list[int]) -> None:
    a = team.clone("a")
    for path, content in FILES.items():
        a.lay(path, content)
    a.push(adopt=True, engine="point")
    first, second, third = list(FILES)[:3]
    a.write(first, b"changed")
    a.write("files/new", b"new")
    a.delete(second)
    a.push(engine="point")
    a.delete(third)
    a.push(engine="point")
    assert not merges, "base was merged row by row"
    head = read_head(team.store())
    assert head is not None
    with open_context(a.repo, SyncOptions()) as context:
        assert (context.base.remote.root, context.base.dirty()) == (head.head.root, False)
        assert head.head.root is not None
        assert head.head.root.level == 1
        # From this machine's own files alone.
        assert paths_of_base(context) == (FILES.keys() | {"files/new"}) - {second, third}
    assert a.sync(engine="point").requests.total == 1


def test_the_last_file_can_go(team: Team, merges: list[int]) -> None:
    a = team.clone("a")
    a.write("files/x", b"x")
    a.push()
    a.delete("files/x")
    a.push()
    with open_context(a.repo, SyncOptions()) as context:
        assert context.base.remote.root is None
    assert not merges
    assert a.sync().requests.total == 1


def test_a_base_that_is_behind_takes_only_what_it_pushed(team: Team, merges: list[int]) -> None:
    a, b = team.clone("a"), team.clone("b")
    a.write("files/mine", b"1")
    a.push()
    b.write("files/theirs", b"2")
    b.push()
    a.write("files/more", b"3")
    a.push()
    assert merges == [1, 1], "b, which had nothing of a's; and a, which does not have b's"
    with open_context(a.repo, SyncOptions()) as context:
        assert paths_of_base(context) == {"files/mine", "files/more"}
    a.sync()
    b.sync()
    assert a.files == b.files == {"files/mine": b"1", "files/theirs": b"2", "files/more": b"3"}


def test_what_was_committed_in_between_is_not_taken_for_pulled(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """The swap fails, and succeeds on top of another's commit: base has not seen that one's files."""
    a, b = team.clone("a"), team.clone("b")
    a.write("files/first", b"0")
    a.push()
    b.pull()
    a.write("files/mine", b"1")
    b.write("files/theirs", b"2")
    rivals = iter([b])
    swap = swap_head

    def late(*arguments: Any) -> Any:
        for rival in rivals:
            rival.push()
        return swap(*arguments)

    monkeypatch.setattr(commit, "swap_head", late)
    a.push()
    with open_context(a.repo, SyncOptions()) as context:
        assert paths_of_base(context) == {"files/first", "files/mine"}
    a.sync()
    assert a.files["files/theirs"] == b"2"


def test_every_node_is_on_disk_before_base_names_it(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """V3 after a power cut: what the database says of base, the disk has."""
    synced: set[tuple[int, int]] = set()
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        fsync(descriptor)
        status = os.fstat(descriptor)
        synced.add((status.st_dev, status.st_ino))

    followed: list[Root | None] = []
    follow = base.replace_root

    def checked(db: Any, place: int, root: Root | None, changed: Any) -> None:
        nodes = a.repo.state / "nodes"
        files = [_file(nodes, name) for name in _names(a, root)]
        assert files
        assert {(file.stat().st_dev, file.stat().st_ino) for file in [*files, nodes]} <= synced
        followed.append(root)
        follow(db, place, root, changed)

    monkeypatch.setattr(os, "fsync", watched)
    monkeypatch.setattr(base, "replace_root", checked)
    a = team.clone("a")
    for path, content in FILES.items():
        a.lay(path, content)
    a.push(adopt=True, engine="point")
    a.write("files/x", b"x")
    a.push(engine="point")
    assert len(followed) == 2


def _names(clone: Clone, root: Root | None) -> list[str]:
    return list(names(IndexTree(LocalNodes(NodeFiles(clone.repo.state / "nodes"), ""), root)))


def _file(nodes: Path, name: str) -> Path:
    whole = nodes / f"{name}.parquet"
    return whole if whole.exists() else next(nodes.glob(f"{name.partition('-')[0]}*.parquet"))


@pytest.mark.parametrize(
    ("old", "new", "can"),
    [
        (None, Root("n", b"n" * 32, 3, 1, 1), True),
        ("mine", None, True),
        ("mine", Root("n", b"n" * 32, 1, 1, 1), True),
        ("mine", Root("n", b"n" * 32, 2, 1, 1), False),
        ("other", Root("n", b"n" * 32, 1, 1, 1), False),
        (None, None, True),
    ],
)
def test_when_base_can_follow(team: Team, old: str | None, new: Root | None, can: bool) -> None:
    """A tree of three levels may share branches with base's, that go by other names there."""
    a = team.clone("a")
    if old is not None:
        a.write("files/x", b"x")
        a.push()
    with open_context(a.repo, SyncOptions()) as context:
        mine = context.base.remote.root
        assert context.base.can_replace_root(Root("o", b"o" * 32, 1, 1, 1) if old == "other" else mine, new) is can
        with context.database.transaction() as db:
            base.update_entry(db, context.remote_id, "files/x", None)
        assert not context.base.can_replace_root(mine, new), "with rows on top of it"
