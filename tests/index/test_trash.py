"""What goes into the trash, and what comes out of it."""

from __future__ import annotations

from bayou.index.build import build
from bayou.index.discovery import trash_changes
from bayou.index.head import advance, encode_head, first_head, parse_head
from bayou.index.log import Tally
from bayou.index.merge import merge
from bayou.index.tree import Change, scan
from tests.index.memory import MemoryNodes
from tests.index.reference import entry

AT = "2026-03-01T12:00:00.000Z"


def found(path: str, size: int = 1):
    return entry(path, size, push=None, sha256=None)


def test_a_discovered_object_goes_in_when_its_entry_is_deleted_or_replaced():
    changes = [
        Change("data/deleted", found("data/deleted"), None),
        Change("data/replaced", found("data/replaced"), entry("data/replaced", 2)),
    ]

    assert trash_changes(changes) == {"data/deleted": found("data/deleted"), "data/replaced": found("data/replaced")}


def test_what_bayou_wrote_needs_no_trash():
    changes = [
        Change("data/deleted", entry("data/deleted"), None),
        Change("data/replaced", entry("data/replaced"), entry("data/replaced", 2)),
        Change("data/new", None, entry("data/new")),
    ]

    assert trash_changes(changes) == {}


def test_an_object_that_is_indexed_again_comes_out():
    """V5: a collection must not delete what an entry names."""
    changes = [
        Change("data/back", None, found("data/back")),
        Change("data/hashed", found("data/hashed"), entry("data/hashed", push=None)),
    ]

    assert trash_changes(changes) == {"data/back": None, "data/hashed": None}


def test_the_trash_is_a_tree_that_the_head_names():
    nodes = MemoryNodes()
    index = build([found("data/a"), found("data/b")], nodes.commit())
    head = first_head(store="s", commit="c1", at=AT, by="ada", root=index, tally=Tally(added=2))

    changes = {"data/a": None}
    trash = merge(nodes.tree(head.trash), trash_changes([Change("data/a", found("data/a"), None)]), nodes.commit())
    root = merge(nodes.tree(index), changes, nodes)
    head, _ = advance(head, commit="c2", at=AT, by="ada", root=root, trash=trash, tally=Tally(deleted=1))

    head = parse_head(encode_head(head), "here")
    assert list(scan(nodes.tree(head.trash))) == [found("data/a")]
    assert list(scan(nodes.tree(head.root))) == [found("data/b")]

    emptied = merge(nodes.tree(head.trash), trash_changes([Change("data/a", None, found("data/a"))]), nodes.commit())
    assert emptied is None
