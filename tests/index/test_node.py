"""The digest is the format: these vectors are what every version of Bayou, and anybody else, must compute."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayou.core.errors import NodeDamaged
from bayou.index.node import Child, Pointer, Root, branch, child_of, is_name, leaf, name, root_of, verify
from tests.index.reference import PACK, PUSH, digest, entries, entry, entry_row

FULL = entry("data/t/m/n/1/raw", 5, sha256=bytes(range(32)), etag='"abc"', version="17", modified=1_700_000_000_123)
MOVED = entry("data/t/m/n/2/raw", 6, sha256=bytes(32), etag=None, modified=1, at="0" * 26)
PACKED = entry(
    "data/t/m/n/3/raw", 7, sha256=bytes(32), etag=None, modified=1, pack=PACK, offset=300, stored=6, method=8
)
BARE = entry("files/ü", 0, push=None, sha256=None, etag=None, version=None, modified=-1)


def test_the_digest_of_a_leaf_is_over_these_very_bytes():
    expected = hashlib.sha256(
        b"bayou-node-2\x00"
        b"\x00\x00\x00\x10data/t/m/n/1/raw"
        b"\x00\x00\x00\x1a" + PUSH.encode() + b"\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00\x05"
        b"\x00\x00\x00\x20" + bytes(range(32)) + b'\x00\x00\x00\x05"abc"'
        b"\x00\x00\x00\x0217"
        b"\x00\x00\x00\x08\x00\x00\x01\x8b\xcf\xe5\x68\x7b" + b"\xff\xff\xff\xff" * 5 + b""
        b"\x00\x00\x00\x10data/t/m/n/2/raw"
        b"\x00\x00\x00\x1a" + PUSH.encode() + b"\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00\x06"
        b"\x00\x00\x00\x20" + bytes(32) + b"\xff\xff\xff\xff" * 2 + b""
        b"\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00\x01"
        b"\x00\x00\x00\x1a" + b"0" * 26 + b"\xff\xff\xff\xff" * 4 + b""
        b"\x00\x00\x00\x10data/t/m/n/3/raw"
        b"\x00\x00\x00\x1a" + PUSH.encode() + b"\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00\x07"
        b"\x00\x00\x00\x20" + bytes(32) + b"\xff\xff\xff\xff" * 2 + b""
        b"\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00\x01"
        b"\xff\xff\xff\xff"
        b"\x00\x00\x00\x1f" + PACK.encode() + b""
        b"\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x01\x2c"
        b"\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00\x06"
        b"\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00\x08"
        b"\x00\x00\x00\x08files/\xc3\xbc"
        b"\xff\xff\xff\xff"
        b"\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00\x00"
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"
        b"\x00\x00\x00\x08\xff\xff\xff\xff\xff\xff\xff\xff" + b"\xff\xff\xff\xff" * 5
    )

    assert leaf([FULL, MOVED, PACKED, BARE]).digest == expected.digest()
    assert expected.hexdigest() == "75cea878a77832d9bc337255516789d05096ac56b06f4062d8fd877ad9a73610"


def test_the_digest_of_a_branch_is_over_these_very_bytes():
    rows = [
        Child("data/a", "data/b", name(b"\x01" * 32, "c1"), b"\x01" * 32, 2, 300),
        Child("data/c", "data/é", name(b"\x02" * 32, "c2"), b"\x02" * 32, 1, 0),
    ]
    expected = hashlib.sha256(
        b"bayou-node-2\x03"
        b"\x00\x00\x00\x06data/a\x00\x00\x00\x06data/b\x00\x00\x00\x20"
        + b"\x01"
        * 32
        + b"\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x01\x2c"
        b"\x00\x00\x00\x06data/c\x00\x00\x00\x07data/\xc3\xa9\x00\x00\x00\x20"
        + b"\x02" * 32
        + b"\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00\x00"
    )

    assert branch(3, rows).digest == expected.digest()
    assert expected.hexdigest() == "a898eaf45b933d8185d45c452ca0f0a3d6e75defb1131d5197e69e51ff6a2c2f"


@given(st.lists(entries, min_size=1))
def test_the_digest_agrees_with_the_reference(rows):
    assert leaf(rows).digest == digest(0, map(entry_row, rows))


def test_the_digest_of_a_branch_does_not_depend_on_what_its_children_are_called():
    rows = [child_of(leaf([entry(path)]), name(leaf([entry(path)]).digest, "c1")) for path in ("data/a", "data/b")]
    renamed = [child_of(leaf([entry(row.first)]), name(row.digest, "c2")) for row in rows]

    assert rows != renamed
    assert branch(1, rows).digest == branch(1, renamed).digest
    assert branch(1, rows).digest != branch(2, rows).digest


@pytest.mark.parametrize(
    ("claim", "value"), [("digest", b"\0" * 32), ("entries", 3), ("bytes", 9), ("first", "data/A"), ("last", "data/x")]
)
def test_a_node_that_is_not_what_its_parent_says_is_damaged(claim, value):
    node = leaf([entry("data/a"), entry("data/b")])
    said: dict[str, Any] = {
        "first": node.first,
        "last": node.last,
        "node": name(node.digest, "c1"),
        "digest": node.digest,
        "entries": 2,
        "bytes": 2,
    }
    verify(node, Child(**said))

    with pytest.raises(NodeDamaged, match=said["node"]) as caught:
        verify(node, Child(**{**said, claim: value}))

    assert "bayou datastore verify --repair" in caught.value.hint


def test_a_root_and_a_row_of_the_log_are_held_to_what_they_say():
    node = leaf([entry("data/a")])
    root = root_of(0, child_of(node, name(node.digest, "c1")))
    verify(node, root)
    verify(node, root.pointer)

    with pytest.raises(NodeDamaged, match="entries"):
        verify(node, Root(root.node, root.digest, 0, 2, root.bytes))
    with pytest.raises(NodeDamaged, match="digest"):
        verify(leaf([entry("data/b")]), Pointer(0, root.node))


@pytest.mark.parametrize("text", ["", "x", "0" * 64, "../" + "0" * 64 + "-c", "0" * 64 + "-a/b", "0" * 64 + "-c\n"])
def test_what_cannot_name_a_node_is_not_taken_for_a_name(text):
    assert is_name("0" * 64 + "-c1")
    assert not is_name(text)
