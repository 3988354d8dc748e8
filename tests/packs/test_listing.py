"""The list in a pack: read back with one request, and hostile lists, which are data and nothing more (V25)."""

from __future__ import annotations

import hashlib
import json
import random
import zlib
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayou.core import limits
from bayou.core.ids import ulid
from bayou.core.structs import Malformed
from bayou.objectstore.store import Store
from bayou.packs import archive
from bayou.packs.archive import COMMENT, COMMENT_BYTES, END_BYTES, LIST_FIELDS, Pack, PackBuilder
from bayou.packs.listing import PackList, parse_list, read_list

PUSH = "01J8XG4Q6V5T3N2M1K0H9G8F7A"


class OnePack(Store):
    """A store of one object, which remembers what was read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.spans: list[tuple[int, int]] = []

    def read_range(self, key: Any, start: int, end: int) -> bytes:
        assert 0 <= start < end <= len(self.data)
        self.spans.append((start, end))
        return self.data[start:end]


def make_pack(count: int, size: int = 100) -> Pack:
    draw, builder = random.Random(count), PackBuilder()
    for number in range(count):
        data = draw.randbytes(size) if number % 2 else b"z" * size
        builder.add(f"files/{number:05}", ulid(), data, hashlib.sha256(data).digest(), 1_700_000_000_000 + number)
    return builder.finish()


def read(data: bytes) -> PackList:
    return read_list(OnePack(data), f"{PUSH}-{len(data)}")


def with_list(listed: bytes, method: int = 8, *, offset: int | None = None, stored: int | None = None) -> bytes:
    """A pack of nothing but this list, whose end may lie about it."""
    data = zlib.compress(listed, 9, -zlib.MAX_WBITS) if method == 8 else listed
    comment = COMMENT.format(
        offset=0 if offset is None else offset, stored=len(data) if stored is None else stored, method=method
    )
    return data + b"PK\5\6" + bytes(16) + COMMENT_BYTES.to_bytes(2, "little") + comment.encode()


def row(**fields: Any) -> list[Any]:
    sound = dict(zip(LIST_FIELDS, ("files/a", PUSH, 0, 5, 0, 5, "00" * 32, 1), strict=True))
    return list({**sound, **fields}.values())


def document(rows: Sequence[Any], **fields: Any) -> bytes:
    return json.dumps({"format": 2, "fields": LIST_FIELDS, "members": rows, **fields}).encode()


SOME_PACK = make_pack(20)


@pytest.mark.parametrize(("count", "requests"), [(1, 1), (1000, 1), (5000, 2)])
def test_the_list_says_what_was_put_into_the_pack(count: int, requests: int) -> None:
    pack = make_pack(count)
    store = OnePack(pack.data)

    found = read_list(store, pack.name)

    assert (len(store.spans), found.refused) == (requests, 0)
    assert [
        (one.path, one.push, one.offset, one.stored, one.method, one.size, one.sha256, one.modified, one.pack)
        for one in found.members
    ] == [
        (one.path, one.push, one.offset, one.stored, one.method, one.size, one.sha256, one.modified, pack.name)
        for one in pack.members
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"path": "../../etc/passwd"},
        {"path": "/etc/passwd"},
        {"path": ".bayou/head.json"},
        {"path": "files/a\u0000"},
        {"path": "files/" + "a" * 100_000},
        {"path": 7},
        {"push": "me"},
        {"push": None},
        {"offset": -1},
        {"offset": 10**30},
        {"offset": 1.5},
        {"stored": 10**9},
        {"stored": 6},
        {"method": 12},
        {"method": True},
        {"size": 1 << 40},
        {"sha256": "00"},
        {"sha256": "no hash"},
        {"modified": 10**18},
    ],
)
def test_one_bad_row_is_one_bad_row(fields: dict[str, Any]) -> None:
    found = read(with_list(document([row(path="files/before"), row(**fields), row(path="files/after")])))

    assert [one.path for one in found.members] == ["files/before", "files/after"]
    assert found.refused == 1


@pytest.mark.parametrize("odd", [None, 7, "files/a", {}, [], ["files/a"]])
def test_what_is_no_row_is_left_out(odd: Any) -> None:
    assert (read(with_list(document([odd, row()]))).refused, len(read(with_list(document([row()]))).members)) == (1, 1)


def test_a_field_that_a_later_version_adds_is_no_obstacle() -> None:
    listed = document([[*row(), "more"]], fields=[*LIST_FIELDS, "colour"])

    assert [one.path for one in read(with_list(listed)).members] == ["files/a"]


@pytest.mark.parametrize(
    "data",
    [
        with_list(b"["),
        with_list(b"[]"),
        with_list(b"{}"),
        with_list(b"\xff"),
        with_list(b"[" * 100_000),
        with_list(document([], format=3)),
        with_list(document([], fields=LIST_FIELDS[::-1])),
        with_list(document([], fields=None)),
        with_list(document({})),  # type: ignore[arg-type]
        with_list(document([row()] * (archive.MOST_MEMBERS + 1))),
        with_list(json.dumps({"format": 2, "fields": [], "members": ["\ud800"]}).encode()),
        with_list(document([]), method=1),
        with_list(b"no JSON", method=0),
        with_list(document([row()]), stored=10**11),
        with_list(document([row()]), offset=10**11),
        with_list(document([row()]), stored=3),
        with_list(b"")[:-1],
        b"x" * END_BYTES,
        b"x",
    ],
)
def test_a_list_that_makes_no_sense_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        read(data)


def test_a_bomb_is_not_inflated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PACK_LIST_BYTES", 1 << 20)
    bomb = with_list(document([row()]) + b" " * (64 << 20))
    assert len(bomb) < 1 << 20

    with pytest.raises(Malformed, match="too large"):
        read(bomb)


def test_a_pack_larger_than_any_client_makes_is_not_read() -> None:
    store = OnePack(b"")

    with pytest.raises(Malformed):
        read_list(store, f"{PUSH}-{limits.PACK_BYTES + 1}")

    assert store.spans == []


@given(st.data())
def test_whatever_damages_a_pack_its_list_is_refused_or_holds_rows_that_clients_accept(data: st.DataObject) -> None:
    damaged = bytearray(SOME_PACK.data)
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    try:
        found = read(bytes(damaged))
    except Malformed:
        return
    assert len(found.members) + found.refused <= archive.MOST_MEMBERS
    assert all(one.refusal() is None and one.pack is not None for one in found.members)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=9))
def test_any_json_in_place_of_a_row_is_one_bad_row_at_most(odd: Any) -> None:
    try:
        found = parse_list(f"{PUSH}-100", document([odd, row()]))
    except Malformed:
        return  # not Unicode
    assert len(found.members) + found.refused == 2
