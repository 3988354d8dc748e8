"""docs/design.md: the worked example of a tree, and the head, are what the code makes and reads."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from bayou.index.build import build
from bayou.index.entry import Entry
from bayou.index.head import FEATURES, FORMAT, encode_head, parse_head
from bayou.index.tree import IndexTree, branches
from tests.index.memory import MemoryNodes

DESIGN = (Path(__file__).parents[2] / "docs" / "design.md").read_text()


def test_the_tree_of_2000_entries_has_these_nodes():
    nodes = MemoryNodes()
    push = "01J8XG4Q6V5T3N2M1K0H9G8F7E"
    root = build(
        (
            Entry(f"files/{i:04}", push, i, hashlib.sha256(str(i).encode()).digest(), None, None, 1_700_000_000_000 + i)
            for i in range(2000)
        ),
        nodes,
    )
    nodes.flush()
    assert root is not None

    (top,) = branches(nodes, 1, [IndexTree(nodes, root).root])
    rows = re.findall(r"\| `(files/\d+)` \| `(files/\d+)` \| \S.*? \| (\d+) \| (\d+) \| `([0-9a-f]{64})` \|", DESIGN)
    assert [(row.first, row.last, str(row.entries), str(row.bytes), row.digest.hex()) for row in top.rows] == rows
    assert f"2,000 entries, {root.bytes:,} bytes, digest\n`{root.digest.hex()}`" in DESIGN


def test_the_head_of_the_page_is_a_head():
    (text,) = re.findall(r'```json\n(\{\n "format".*?)```', DESIGN, re.DOTALL)

    head = parse_head(text.encode(), "the page")

    assert (head.format, head.features, head.seq) == (FORMAT, FEATURES, 3)
    assert parse_head(encode_head(head), "the page") == head
    assert head.trash is not None
    assert head.trash.digest == head.log[0].root.digest
