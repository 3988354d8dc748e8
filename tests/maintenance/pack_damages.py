"""A store whose small files lie in several packs, ways to damage these, and what was read of them."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bayou.index.entry import Entry
from bayou.objectstore import Store, keys
from tests.sync.conftest import Clone, Team
from tests.sync.indexes import entries_of

LARGE = "files/large"
"""A file that is an object of its own."""


def small_files(count: int = 120, size: int = 1000) -> dict[str, bytes]:
    """Files that travel in packs; half of them shrink."""
    draw = random.Random(count)
    return {
        f"data/t/m-{number % 4}/n{number:04}/1/raw": draw.randbytes(size) if number % 2 else f"{number} ".encode() * 200
        for number in range(1, count + 1)
    }


def with_packs(team: Team, files: dict[str, bytes], pushes: int = 3, name: str = "a") -> Clone:
    """Push files in so many packs, and one large file besides; return the clone that has them all."""
    clone = team.clone(name)
    parts: list[dict[str, bytes]] = [{} for _ in range(pushes)]
    for number, (path, data) in enumerate(sorted(files.items())):
        parts[number * pushes // len(files)][path] = data
    for part in parts:
        clone.write_all(part)
        clone.sync(engine="point")
    clone.write(LARGE, b"0123456789abcdef" * 20_000)
    clone.sync(engine="point")
    return clone


def packs_of(store: Store) -> dict[str, list[Entry]]:
    """The entries of each pack, in the order of their offsets."""
    found: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in entries_of(store).values():
        if entry.pack is not None:
            found[entry.pack].append(entry)
    return {pack: sorted(entries, key=lambda entry: entry.offset or 0) for pack, entries in sorted(found.items())}


def bytes_of(store: Store, key: keys.Key) -> bytes:
    fetched = store.get(key)
    assert fetched is not None
    return bytes(fetched.data)


def overwrite(store: Store, entry: Entry, data: bytes | None = None) -> None:
    """Replace the bytes of one file, in its pack or its object, as another tool or a bad disk would."""
    if entry.pack is None:
        store.put(entry.key, bytes(entry.size) if data is None else data)
        return
    assert entry.offset is not None
    assert entry.stored is not None
    pack = bytearray(bytes_of(store, entry.key))
    pack[entry.offset : entry.offset + entry.stored] = bytes(entry.stored) if data is None else data
    store.put(entry.key, bytes(pack))


def paths(entries: list[Entry]) -> list[str]:
    return sorted(entry.path for entry in entries)


@contextmanager
def reading(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, int, int]]]:
    """Record every range that is read."""
    spans: list[tuple[str, int, int]] = []
    real: Any = Store.read_range

    def read(self: Store, key: keys.Key, start: int, end: int) -> Any:
        spans.append((key, start, end))
        return real(self, key, start, end)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "read_range", read)
        yield spans
