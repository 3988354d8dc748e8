"""Reading the contents of many entries: requests by the pack, one bad file is one bad result, and packs that moved."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayou.core.errors import Unavailable
from bayou.core.ids import ulid
from bayou.index.entry import Entry
from bayou.objectstore import Store, keys, open_store
from bayou.objectstore.backends.directory import LocalTransport
from bayou.objectstore.keys import KeyScope
from bayou.objectstore.retry import RetryPolicy
from bayou.packs import entries as packs_entries
from bayou.packs import read as packs_read
from bayou.packs.entries import EntryReader, UnreadableContent, read_entry
from bayou_testing.faulty import Fault, FaultyTransport, lost_answer
from tests.packs.moving import drop_packs, in_packs, move, put_index
from tests.sync.indexes import commit_rows


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "store").mkdir()
    return open_store((tmp_path / "store").as_uri())


def loose(store: Store, path: str, data: bytes) -> Entry:
    push = ulid()
    sent = store.put(keys.payload(path, push), data)
    return Entry(path, push, len(data), hashlib.sha256(data).digest(), sent.etag, sent.version, 1_700_000_000_000)


def files(count: int, size: int = 1000) -> dict[str, bytes]:
    draw = random.Random(count)
    return {f"data/t/m/n{at:05}/1/raw": draw.randbytes(size) for at in range(count)}


def read_all(store: Store, entries: dict[str, Entry], *, window: int = 64) -> dict[str, bytes | UnreadableContent]:
    reader = EntryReader(store)
    reader.expect(entries.values())
    paths = list(entries)
    found: dict[str, bytes | UnreadableContent] = {}
    for at in range(0, len(paths), window):
        found |= reader.read(paths[at : at + window])
    return found


def reason(found: bytes | UnreadableContent) -> str:
    assert isinstance(found, UnreadableContent)
    return found.message


def test_a_pack_is_read_once_in_whatever_order_its_files_are_wanted(store, rng):
    contents = files(1000)
    entries = in_packs(store, contents, 250)
    order = list(entries)
    rng.shuffle(order)
    before = store.requests

    found = read_all(store, {path: entries[path] for path in order}, window=50)

    assert found == contents
    assert (store.requests - before).get == 4


def test_ranges_that_no_memory_is_left_for_are_read_again(store, rng, monkeypatch):
    monkeypatch.setattr(packs_entries, "KEPT_BYTES", 300_000)
    contents = files(1000)
    entries = in_packs(store, contents, 250)
    order = list(entries)
    rng.shuffle(order)
    before = store.requests

    found = read_all(store, {path: entries[path] for path in order}, window=50)

    assert found == contents
    assert 4 < (store.requests - before).get <= 20 * 4


def test_far_apart_files_of_a_pack_do_not_cost_the_bytes_between_them(store, monkeypatch):
    monkeypatch.setattr(packs_read, "JOIN_GAP", 10_000)
    contents = files(1000)
    entries = in_packs(store, contents, 1000)
    wanted = {path: entries[path] for path in [*list(entries)[:3], *list(entries)[-3:]]}
    before = store.requests

    assert read_all(store, wanted) == {path: contents[path] for path in wanted}

    sent = store.requests - before
    assert sent.get == 2
    assert sent.bytes_in < 10_000


def test_a_row_that_comes_twice_is_read_once(store):
    contents = files(3)
    entries = in_packs(store, contents, 3)
    reader = EntryReader(store)
    reader.expect([entry for entry in entries.values() for _ in range(2)])
    before = store.requests

    for path in entries:
        assert reader.read([path, path]) == {path: contents[path]}

    assert (store.requests - before).get == 1


def test_v25_one_file_with_other_bytes_is_one_result_and_its_neighbours_are_read(store):
    contents = files(100)
    entries = in_packs(store, contents, 100)
    bad = list(entries)[41]
    entries[bad] = replace(entries[bad], sha256=bytes(32))
    before = store.requests

    found = read_all(store, entries)

    assert found.pop(bad) == UnreadableContent(f"the object of {bad} does not have the bytes that were pushed")
    assert found == {path: data for path, data in contents.items() if path != bad}
    assert (store.requests - before).get == 1


def test_v25_a_pack_that_was_cut_off_is_named_for_each_file_that_was_wanted_of_it(store):
    contents = files(20)
    entries = in_packs(store, contents, 10)
    cut = list(entries)[:10]
    key = entries[cut[0]].key
    store.put(key, bytes(store.get(key).data)[:500])

    found = read_all(store, entries)

    assert all(path in reason(found[path]) for path in cut)
    assert {path: found[path] for path in list(entries)[10:]} == {path: contents[path] for path in list(entries)[10:]}


def test_v25_an_entry_that_no_client_writes_is_named_and_costs_no_request(store):
    contents = files(2)
    entries = in_packs(store, contents, 2)
    bad, good = entries
    entries[bad] = replace(entries[bad], offset=1 << 40)
    before = store.requests

    found = read_all(store, entries)

    assert "outside its pack" in reason(found[bad])
    assert found[good] == contents[good]
    assert (store.requests - before).get == 1


def test_p7_files_that_a_compaction_moved_are_found_by_reading_the_head_again(store):
    contents = files(40)
    entries = in_packs(store, contents, 20)
    put_index(store, entries)
    drop_packs(store, move(store, list(entries)[:30]).values())  # both old packs are gone, with ten files in the second
    moved, lost = list(entries)[:30], list(entries)[30:]

    found = read_all(store, entries, window=7)

    assert {path: found[path] for path in moved} == {path: contents[path] for path in moved}
    assert {reason(found[path]) for path in lost} == {
        f"the content of {path} is missing, here and in the store" for path in lost
    }


def test_p7_one_look_at_the_head_is_enough_for_a_batch(store):
    contents = files(20)
    entries = in_packs(store, contents, 2)
    put_index(store, entries)
    drop_packs(store, move(store).values())
    before = store.requests

    assert read_all(store, entries, window=20) == contents

    # Ten packs that are gone, the head, its one leaf, and the new pack.
    assert (store.requests - before).get == 10 + 3


def test_p7_a_file_that_was_deleted_or_changed_since_is_not_taken_for_damage(store):
    contents = files(3)
    entries = in_packs(store, contents, 3)
    put_index(store, entries)
    deleted, changed, _ = entries
    new = loose(store, changed, b"other bytes")
    commit_rows(store, {deleted: None, changed: new}, "compact")
    drop_packs(store, entries.values())

    found = read_all(store, entries)

    for path in (deleted, changed):
        assert "was changed or deleted in the store since" in reason(found[path])
    assert "is missing, here and in the store" in reason(found[list(entries)[2]])


def test_v4_an_error_of_the_store_is_raised_and_is_no_result(store, tmp_path):
    entries = in_packs(store, files(3), 3)
    broken = FaultyTransport(LocalTransport(tmp_path / "store"), [Fault(key="packs/", error=lost_answer)])
    away = Store(broken, KeyScope.of("", None), policy=RetryPolicy(attempts=2, base_s=0.001))

    with pytest.raises(Unavailable):
        read_all(away, entries)


def test_one_entry_is_read_wherever_it_is(store):
    alone = loose(store, "files/alone", b"alone")
    ((path, data),) = files(1).items()
    (entry,) = in_packs(store, {path: data}, 1).values()
    stored = store.put(keys.payload("files/found", None), b"found")
    found = Entry("files/found", None, 5, None, stored.etag, stored.version, 0)

    assert read_entry(store, alone) == b"alone"
    assert read_entry(store, entry) == data
    assert read_entry(store, found) == b"found"
    assert read_entry(store, replace(alone, sha256=bytes(32))) is None
    assert read_entry(store, replace(entry, sha256=bytes(32))) is None


CONTENTS = st.lists(
    st.tuples(st.binary(max_size=300), st.booleans()),
    max_size=30,
)


@given(
    contents=CONTENTS, per_pack=st.integers(1, 9), window=st.integers(1, 12), gap=st.integers(0, 400), data=st.data()
)
def test_what_is_read_is_what_was_pushed(tmp_path_factory, contents, per_pack, window, gap, data):
    """Files in packs and alone, of any size, in any order and window, whatever is joined and kept."""
    root = tmp_path_factory.mktemp("store")
    store = open_store(root.as_uri())
    named = {f"files/{at:03}": pair for at, pair in enumerate(contents)}
    entries = in_packs(store, {path: content for path, (content, together) in named.items() if together}, per_pack)
    entries |= {path: loose(store, path, content) for path, (content, together) in named.items() if not together}
    order = data.draw(st.permutations(list(entries)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packs_read, "JOIN_GAP", gap)
        patch.setattr(packs_read, "RANGE_BYTES", 4 * gap)
        patch.setattr(packs_entries, "KEPT_BYTES", 2 * gap)
        found = read_all(store, {path: entries[path] for path in order}, window=window)

    assert found == {path: content for path, (content, _) in named.items()}
