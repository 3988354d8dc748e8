"""The format once more, written as plainly as the design says it and with nothing from the package but the records."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from bayou.index.build import ChunkParams
from bayou.index.entry import Entry

PUSH = "01J8XG4Q6V5T3N2M1K0H9G8F7E"
PACK = "01J8XG4Q6V5T3N2M1K0H9G8F7F-4096"

SHAPES = [
    ChunkParams(),
    ChunkParams(leaf_mod=3, leaf_max=7, branch_mod=3, branch_max=5),
    ChunkParams(leaf_mod=1, leaf_max=1, branch_mod=1, branch_max=2),
    ChunkParams(leaf_mod=2, leaf_max=4, branch_mod=1, branch_max=2),
    ChunkParams(leaf_mod=1 << 60, leaf_max=3, branch_mod=1 << 60, branch_max=3),
    ChunkParams(leaf_mod=4, leaf_max=1000, branch_mod=2, branch_max=1000),
]
"""The format's, and small ones: many levels, every row a boundary, only forced boundaries, only hashed ones."""


def entry(path: str, size: int = 1, **fields: Any) -> Entry:
    defaults: dict[str, Any] = {
        "push": PUSH,
        "sha256": hashlib.sha256(f"{path} {size}".encode()).digest(),
        "etag": '"e"',
        "version": None,
        "modified": 1_700_000_000_123,
    }
    return Entry(path=path, size=size, **{**defaults, **fields})


def some(count: int, prefix: str = "data/t/m") -> list[Entry]:
    """Return entries in order."""
    return [entry(f"{prefix}/{number:07}/raw", number) for number in range(count)]


paths = st.one_of(
    st.integers(0, 120).map(lambda number: f"data/{number:03}"),
    st.text("ab/é\U0001f600", min_size=1, max_size=4).map("data/".__add__),
)


def packed(path: str, size: int = 1, offset: int = 40) -> Entry:
    """Return the entry of a file in a pack."""
    return entry(path, size, etag=None, pack=PACK, offset=offset, stored=size, method=0)


entries = st.builds(entry, paths, st.integers(0, 3)) | st.builds(
    packed, paths, st.integers(0, 3), st.integers(30, 4000)
)
shapes = st.sampled_from(SHAPES)


def field(value: str | bytes | int | None) -> bytes:
    if value is None:
        return b"\xff\xff\xff\xff"
    if isinstance(value, int):
        value = value.to_bytes(8, "big", signed=True)
    if isinstance(value, str):
        value = value.encode("utf-8")
    return len(value).to_bytes(4, "big") + value


def digest(level: int, rows: Iterable[tuple[str | bytes | int | None, ...]]) -> bytes:
    hashed = hashlib.sha256(b"bayou-node-2" + bytes([level]))
    for row in rows:
        for value in row:
            hashed.update(field(value))
    return hashed.digest()


def entry_row(entry: Entry) -> tuple[str | bytes | int | None, ...]:
    content = (entry.path, entry.push, entry.size, entry.sha256, entry.etag, entry.version, entry.modified)
    return (*content, entry.at, entry.pack, entry.offset, entry.stored, entry.method)


def is_boundary(level: int, key: str, mod: int) -> bool:
    return int.from_bytes(hashlib.sha256(bytes([level]) + key.encode()).digest()[:8], "big") % mod == 0


def levels(entries: Iterable[Entry], shape: ChunkParams) -> list[list[bytes]]:
    """Return the digests of every node, level by level from the leaves, of the one tree of these entries."""
    # A row of a branch without its name: first, last, digest, entries, bytes.
    rows: list[Any] = sorted(entries, key=lambda entry: entry.path.encode())
    found: list[list[bytes]] = []
    level = 0
    while level == 0 or len(rows) > 1:
        groups: list[list[Any]] = [[]]
        for row in rows:
            key = row[0] if level else row.path
            groups[-1].append(row)
            mod, most, least = (shape.branch_mod, shape.branch_max, 2) if level else (shape.leaf_mod, shape.leaf_max, 1)
            if (is_boundary(level, key, mod) and len(groups[-1]) >= least) or len(groups[-1]) == most:
                groups.append([])
        if not groups[-1]:
            groups.pop()
        if level and len(groups[-1]) == 1:
            groups[-2:] = [groups[-2] + groups[-1]]
        above: list[Any] = []
        for group in groups:
            if level:
                hashed = digest(level, group)
                above.append((group[0][0], group[-1][1], hashed, sum(r[3] for r in group), sum(r[4] for r in group)))
            else:
                hashed = digest(0, map(entry_row, group))
                above.append((group[0].path, group[-1].path, hashed, len(group), sum(r.size for r in group)))
        found.append([row[2] for row in above])
        rows = above
        level += 1
    return found if found[0] else []
