"""Reading files out of packs: few requests, and nothing is believed but the hash."""

from __future__ import annotations

import hashlib
import random
import tracemalloc
import zlib
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayou.core import limits
from bayou.core.errors import BadAnswer, NotFound, Unavailable
from bayou.index.entry import DEFLATED, STORED, Entry
from bayou.objectstore import Store, keys
from bayou.objectstore.backends.directory import LocalTransport
from bayou.objectstore.keys import KeyScope
from bayou.objectstore.retry import RetryPolicy
from bayou.packs import read
from bayou.packs.archive import Pack, PackBuilder
from bayou.packs.read import PackRange, extract, plan_ranges, read_one, read_range, threads_for
from bayou_testing.faulty import Fault, FaultyTransport, lost_answer

PUSH = "01J8XG4Q6V5T3N2M1K0H9G8F7E"
FILES = {f"files/{number:02}": random.Random(number).randbytes(1000 + number) for number in range(20)}


class Shelf:
    """A store in a directory, and what was asked of it."""

    def __init__(self, root: Path) -> None:
        root.mkdir()
        self.root = root
        self.transport = FaultyTransport(LocalTransport(root))
        policy = RetryPolicy(attempts=2, base_s=0.001)
        self.store = Store(self.transport, KeyScope.of("", None), policy=policy)

    def put(self, pack: Pack) -> list[Entry]:
        """Store a pack; return the entries of its files."""
        self.store.put(keys.pack(pack.name), pack.data)
        self.transport.seen.clear()
        return entries_of(pack)

    @property
    def reads(self) -> int:
        return sum(one.verb == "get" for one in self.transport.seen)


def packed(files: dict[str, bytes]) -> Pack:
    builder = PackBuilder()
    for path, data in files.items():
        builder.add(path, PUSH, data, hashlib.sha256(data).digest(), 0)
    return builder.finish()


def entries_of(pack: Pack) -> list[Entry]:
    return [
        Entry(
            row.path,
            row.push,
            row.size,
            row.sha256,
            None,
            None,
            row.modified,
            None,
            pack.name,
            row.offset,
            row.stored,
            row.method,
        )
        for row in pack.members
    ]


def at(offset: int, stored: int, pack: str = f"{PUSH}-99999999999") -> Entry:
    """Return an entry at a place, whatever its bytes are."""
    return Entry(f"files/{offset}", PUSH, stored, bytes(32), None, None, 0, None, pack, offset, stored, STORED)


def spans(ranges: Iterable[PackRange]) -> list[tuple[int, int, int]]:
    return [(part.start, part.end, len(part.entries)) for part in ranges]


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "store")


# ---- which bytes are read ----


def test_neighbours_are_read_at_once_and_what_lies_far_away_is_not():
    gap = read.JOIN_GAP
    near = [at(100, 50), at(150, 10), at(160 + gap, 5)]
    far = at(165 + gap + gap + 1, 7)

    assert spans(plan_ranges([*near, far])) == [(100, 165 + gap, 3), (far.offset, far.offset + 7, 1)]


def test_a_range_does_not_grow_beyond_its_limit_but_for_a_single_file():
    half = read.RANGE_BYTES // 2

    assert spans(plan_ranges([at(0, half), at(half, half), at(2 * half, 1)])) == [
        (0, 2 * half, 2),
        (2 * half, 2 * half + 1, 1),
    ]
    assert spans(plan_ranges([at(0, 3 * half)])) == [(0, 3 * half, 1)]


def test_the_order_of_the_entries_does_not_matter_within_a_pack():
    entries = [at(offset, 10) for offset in (0, 100, 200)]

    assert plan_ranges(entries) == plan_ranges(entries[::-1]) == [PackRange(entries[0].pack, 0, 210, entries)]


def test_files_that_claim_the_same_or_overlapping_bytes_are_read_together():
    """No client packs so, and none may trip over it."""
    whole, inner, twin, empty = at(0, 100), at(20, 30), at(20, 30), at(50, 0)

    (only,) = plan_ranges([whole, inner, twin, empty])

    assert (only.start, only.end, len(only.entries)) == (0, 100, 4)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4 << 20), st.integers(0, 1 << 20)), min_size=1, max_size=40)
)
def test_every_wanted_byte_is_in_one_range_and_no_range_is_too_large(places: list[tuple[int, int, int]]):
    entries = [at(offset, stored, f"{PUSH}-9999999{pack}") for pack, offset, stored in places]

    ranges = plan_ranges(entries)

    found = [entry for part in ranges for entry in part.entries]
    assert sorted(map(id, found)) == sorted(map(id, entries))
    for part in ranges:
        assert part.end - part.start <= read.RANGE_BYTES
        assert all(part.start <= one.offset <= one.offset + one.stored <= part.end for one in part.entries)
        assert {one.pack for one in part.entries} == {part.pack}
    for pack in {part.pack for part in ranges}:
        mine = sorted((part.start, part.end) for part in ranges if part.pack == pack)
        gaps = [(first[0], second[1], second[0] - first[1]) for first, second in pairwise(mine)]
        assert all(gap > read.JOIN_GAP or end - begin > read.RANGE_BYTES for begin, end, gap in gaps), (
            "joined if worth it"
        )


def test_memory_of_ranges_that_are_read_at_once_is_bounded(shelf: Shelf):
    small, large = PackRange("p", 0, 1000, []), PackRange("p", 0, read.RANGE_BYTES, [])
    largest = PackRange("p", 0, limits.PACKED_BYTES, [])

    assert threads_for(shelf.store, [small]) == shelf.store.concurrency
    assert threads_for(shelf.store, [small, large]) == read.IN_FLIGHT_BYTES // read.RANGE_BYTES
    assert threads_for(shelf.store, [largest]) * limits.PACKED_BYTES <= read.IN_FLIGHT_BYTES
    assert threads_for(shelf.store, []) == shelf.store.concurrency


# ---- what is read is what was packed ----


def test_all_files_of_a_pack_come_with_one_request(shelf: Shelf):
    entries = shelf.put(packed(FILES))

    (part,) = plan_ranges(entries)
    found = dict(read_range(shelf.store, part))

    assert {entry.path: data for entry, data in found.items()} == FILES
    assert shelf.reads == 1


def test_one_file_comes_with_one_request_of_just_its_bytes(shelf: Shelf):
    entry = shelf.put(packed(FILES))[7]
    before = shelf.store.requests

    assert read_one(shelf.store, entry) == FILES[entry.path]
    assert (shelf.reads, shelf.store.requests.bytes_in - before.bytes_in) == (1, entry.stored)


def test_empty_files_need_no_request(shelf: Shelf):
    (entry,) = shelf.put(packed({"files/empty": b""}))

    assert read_one(shelf.store, entry) == b""
    assert shelf.reads == 0


@given(st.dictionaries(st.integers(0, 99).map("files/{}".format), st.binary(max_size=2000), min_size=1), st.data())
def test_any_choice_of_files_comes_as_it_was(files: dict[str, bytes], data: st.DataObject):
    pack = packed(files)
    chosen = data.draw(st.lists(st.sampled_from(entries_of(pack)), unique_by=lambda entry: entry.path))

    for part in plan_ranges(chosen):
        view = memoryview(pack.data)[part.start : part.end]
        assert {entry.path: content for entry, content in read.extract_all(part, view)} == {
            entry.path: files[entry.path] for entry in part.entries
        }


# ---- what a store may have instead ----


def test_a_pack_that_is_gone_is_not_found(shelf: Shelf):
    """P7: the caller reads the head again."""
    entry = shelf.put(packed(FILES))[0]
    shelf.store.delete([entry.key])

    with pytest.raises(NotFound):
        read_one(shelf.store, entry)


def test_a_truncated_pack_has_lost_its_last_files_only(shelf: Shelf):
    pack = packed(FILES)
    entries = shelf.put(pack)
    cut = entries[12].offset + 10
    shelf.store.put(entries[0].key, pack.data[:cut])

    (part,) = plan_ranges(entries)
    found = {entry.path: data for entry, data in read_range(shelf.store, part)}

    assert found == {path: data if path < "files/12" else None for path, data in FILES.items()}
    assert read_one(shelf.store, entries[19]) is None, "a file that lies beyond the end"


def test_an_answer_that_is_cut_short_on_the_way_is_not_taken_for_damage(shelf: Shelf):
    """V4: the store has the bytes, and the client does not know it."""
    entry = shelf.put(packed(FILES))[3]
    shelf.transport.faults.append(Fault("get", truncate=5))

    with pytest.raises(BadAnswer):
        read_one(shelf.store, entry)


def test_a_store_that_does_not_answer_is_an_error_and_no_damage(shelf: Shelf):
    entry = shelf.put(packed(FILES))[3]
    shelf.transport.faults.append(Fault("get", error=lost_answer))

    with pytest.raises(Unavailable):
        read_one(shelf.store, entry)


def test_other_bytes_are_found_out_file_by_file(shelf: Shelf):
    pack = packed(FILES)
    entries = shelf.put(pack)
    changed = bytearray(pack.data)
    changed[entries[5].offset + 500] ^= 1
    shelf.store.put(entries[0].key, bytes(changed))

    (part,) = plan_ranges(entries)
    found = {entry.path: data for entry, data in read_range(shelf.store, part)}

    assert found == {path: data if path != "files/05" else None for path, data in FILES.items()}


def test_another_pack_in_its_place_has_none_of_its_files(shelf: Shelf):
    entries = shelf.put(packed(FILES))
    other = packed({path: data[::-1] for path, data in FILES.items()})
    shelf.store.put(entries[0].key, other.data)

    assert [read_one(shelf.store, entry) for entry in entries] == [None] * len(entries)


def deflated(data: bytes, **fields: Any) -> tuple[Entry, bytes]:
    """Return an entry of bytes as they lie in a pack, with some of its fields made up."""
    stored = zlib.compress(data, 9, -zlib.MAX_WBITS)
    entry = Entry(
        "files/x", PUSH, len(data), hashlib.sha256(data).digest(), None, None, 0, None, "p", 0, len(stored), DEFLATED
    )
    return replace(entry, **fields), stored


def test_a_bomb_is_inflated_no_further_than_its_entry_says():
    """V25: 64 MiB of zeros in 64 KiB, of which the entry admits to a thousand bytes."""
    entry, stored = deflated(bytes(64 << 20), size=1000)
    tracemalloc.start()
    try:
        assert extract(entry, stored) is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize(
    "harm",
    [
        lambda entry, stored: (replace(entry, method=STORED), stored),
        lambda entry, stored: (entry, stored[:-1]),
        lambda entry, stored: (entry, stored + b"\0"),
        lambda entry, stored: (entry, b""),
        lambda entry, stored: (entry, b"\xff" * len(stored)),
        lambda entry, stored: (replace(entry, size=entry.size - 1), stored),
        lambda entry, stored: (replace(entry, size=entry.size + 1), stored),
        lambda entry, stored: (replace(entry, size=0), stored),
        lambda entry, stored: (replace(entry, sha256=bytes(32)), stored),
    ],
    ids=["stored", "cut", "more", "nothing", "noise", "less", "longer", "empty", "another hash"],
)
def test_bytes_that_are_not_what_the_entry_says_are_none(harm: Any):
    entry, stored = deflated(b"text, and again " * 20)
    assert extract(entry, stored) is not None

    assert extract(*harm(entry, stored)) is None


def test_plain_bytes_that_are_claimed_to_be_deflated_are_none():
    data = random.Random(1).randbytes(1000)
    entry, _ = deflated(data)

    assert extract(replace(entry, stored=1000), data) is None


@given(st.binary(max_size=400), st.integers(0, 500))
def test_no_bytes_make_a_reader_fail(stored: bytes, size: int):
    entry = Entry("files/x", PUSH, size, bytes(32), None, None, 0, None, "p", 0, len(stored), DEFLATED)

    assert extract(entry, stored) is None


# ---- which places are refused before anything is read ----


GOOD = Entry("files/x", PUSH, 10, bytes(32), None, None, 0, None, f"{PUSH}-1000", 40, 10, STORED)


@pytest.mark.parametrize(
    "fields",
    [
        {"offset": 990},
        {"offset": 0, "stored": 1000, "size": 1000},
        {"method": DEFLATED, "stored": 9},
        {"method": DEFLATED, "size": limits.PACKED_BYTES},
        {"size": 0, "stored": 0, "offset": 1000},
    ],
    ids=["to the very end", "all of it", "deflated", "as large as may be", "empty, at the end"],
)
def test_a_place_within_its_pack_is_good(fields: dict[str, Any]):
    assert replace(GOOD, **fields).refusal() is None


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"offset": 991}, "outside its pack of 1000 bytes"),
        ({"offset": -1}, "outside its pack"),
        ({"stored": -1, "size": -1}, "claims -1 bytes"),
        ({"stored": -1}, "outside its pack"),
        ({"offset": 2**63 - 1}, "outside its pack"),
        ({"offset": None}, "outside its pack"),
        ({"stored": None}, "outside its pack"),
        ({"stored": 9}, "unknown kind"),
        ({"method": None}, "unknown kind"),
        ({"method": 1}, "unknown kind"),
        ({"method": 12}, "unknown kind"),
        ({"method": DEFLATED, "stored": 11}, "claims 10 bytes in a pack"),
        ({"method": DEFLATED, "size": limits.PACKED_BYTES + 1}, "bytes in a pack"),
        ({"pack": f"{PUSH}-9"}, "outside its pack of 9 bytes"),
        ({"pack": PUSH}, "not the name of a pack"),
        ({"pack": f"../{PUSH}-1000"}, "not the name of a pack"),
        ({"pack": f"{PUSH}-1000.zip"}, "not the name of a pack"),
        ({"pack": f"{PUSH}-1000\n"}, "not the name of a pack"),
        ({"pack": f"{PUSH}-"}, "not the name of a pack"),
        ({"pack": f"{PUSH}--1000"}, "not the name of a pack"),
        ({"pack": f"{PUSH}-٣"}, "not the name of a pack"),
        ({"pack": ""}, "not the name of a pack"),
        ({"pack": None}, "a part of no pack"),
        ({"pack": None, "offset": None, "stored": None}, "a part of no pack"),
        ({"at": PUSH}, "not the name of a pack"),
        ({"push": None}, "no push or no hash"),
        ({"sha256": None}, "no push or no hash"),
    ],
)
def test_a_place_that_no_client_writes_is_refused_by_name(fields: dict[str, Any], why: str):
    assert GOOD.refusal() is None

    assert why in (replace(GOOD, **fields).refusal() or "")


def test_an_object_that_was_written_again_is_named_by_where_it_is():
    moved = Entry("files/x", PUSH, 10, bytes(32), "e", None, 0, "01J8XG4Q6V5T3N2M1K0H9G8F7Z")

    assert moved.refusal() is None
    assert moved.key == "files/~01J8XG4Q6V5T3N2M1K0H9G8F7Z/x"
    assert replace(moved, at="../x").refusal() == "its location is not an id"
    assert GOOD.key == f".bayou/packs/{PUSH}-1000.zip"


def test_the_same_push_elsewhere_is_the_same_content_and_another_push_is_not():
    """P5."""
    elsewhere = replace(GOOD, pack=f"{PUSH}-2000", offset=1, stored=5, method=DEFLATED)
    alone = replace(GOOD, pack=None, offset=None, stored=None, method=None, etag="e", version="1")

    assert GOOD.same_content(elsewhere)
    assert GOOD.same_content(alone)
    assert not GOOD.same_content(replace(GOOD, push="01J8XG4Q6V5T3N2M1K0H9G8F7Z"))
    assert not GOOD.same_content(replace(GOOD, sha256=bytes([1]) * 32))
