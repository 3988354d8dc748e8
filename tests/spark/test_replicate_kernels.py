"""The job of a replication, without Spark: what its parts are, what a worker copies, and what crosses."""

from __future__ import annotations

import pickle
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayou.core.errors import DeadlinePassed
from bayou.core.ids import ulid
from bayou.engine.handle import RemoteHandle
from bayou.engine.parts import REQUEST
from bayou.index.entry import Entry
from bayou.maintenance.replica.pairs import CopiedEntry, CopyRules, copy_push
from bayou.maintenance.replica.transfer import CopyJob, CopyOutcome, Held, Stores
from bayou.objectstore import keys, open_store
from bayou.objectstore.spec import StoreSpec
from bayou.packs.read import read_one
from bayou.spark.executor import decode, encode, schema_of
from bayou.sync.report import Failure

RULES = CopyRules("a-store", 0, doubt=False, pack_below=0, pack_size=1 << 20)
PACKED = replace(RULES, pack_below=1 << 20)


@pytest.fixture
def stores(tmp_path: Path) -> tuple[StoreSpec, StoreSpec]:
    for name in ("source", "target"):
        (tmp_path / name).mkdir()
    return tuple(StoreSpec.of((tmp_path / name).as_uri(), None, {}, 4) for name in ("source", "target"))  # type: ignore[return-value]


def fill(spec: StoreSpec, content: dict[str, bytes]) -> list[Entry]:
    from hashlib import sha256

    store, push, made = open_store(spec.url), ulid(), []
    for path, data in sorted(content.items()):
        store.put(keys.payload(path, push), data)
        made.append(Entry(path, push, len(data), sha256(data).digest(), None, None, 7))
    return made


def copied(
    recipes: tuple[StoreSpec, StoreSpec], entries: list[Entry], rules: CopyRules = RULES, seconds: float | None = None
) -> list[CopyOutcome]:
    """Copy in a job as a worker has it, and return its rows as they arrive."""
    stores = Stores(RemoteHandle(recipes[0], seconds), RemoteHandle(recipes[1], seconds))
    job = CopyJob(stores, rules, entries)
    kernel = pickle.loads(pickle.dumps(job))
    found = [row for part in job.parts(4) for row in kernel.run(part)]
    return list(decode(CopyOutcome, encode(schema_of(CopyOutcome), found)))


def test_a_task_that_runs_twice_writes_the_same_bytes_to_the_same_keys(stores):
    entries = fill(stores[0], {"files/a": b"a", "files/b": b"bb", "data/t/m/n/1/raw": b"raw"})

    once, twice = copied(stores, entries), copied(stores, entries)

    target = open_store(stores[1].url)
    assert [row[:4] for row in once] == [row[:4] for row in twice]
    assert {(row[0], row[1]) for row in once} == {(e.path, copy_push(e, RULES.store, 0)) for e in entries}
    assert sorted(meta.size for page in target.list() for meta in page) == [1, 2, 3]
    third = copied(stores, entries, replace(RULES, doubt=True))
    assert [row.sent for row in third] == [False] * 3  # found there, and not sent


def test_a_task_that_runs_twice_writes_two_packs(stores):
    """P1: each attempt has a key of its own; the rows say which pack is committed, and gc deletes the other."""
    content = {"files/a": b"a", "files/b": b"bb", "files/empty": b"", "data/t/m/n/1/raw": b"raw" * 100}
    entries = fill(stores[0], content)

    once, twice = copied(stores, entries, PACKED), copied(stores, entries, PACKED)

    target = open_store(stores[1].url)
    packs = {keys.parse_pack(meta.key) for page in target.list() for meta in page}
    assert packs == {row.pack for row in (*once, *twice)}
    assert len(packs) == 2
    for rows in (once, twice):
        found = {row.path: row.result.entry for row in rows if isinstance(row.result, CopiedEntry)}
        assert {path: read_one(target, entry) for path, entry in found.items()} == content
        assert {entry.push for entry in found.values()} == {copy_push(e, RULES.store, 0) for e in entries}
    third = copied(stores, entries, replace(PACKED, doubt=True))
    assert all(row.sent for row in third)  # a pack is never taken up again


@pytest.mark.parametrize("rules", [RULES, PACKED])
def test_what_the_source_does_not_have_is_a_row_and_no_exception(stores, rules):
    entries = fill(stores[0], {"files/a": b"a", "files/b": b"b"})
    open_store(stores[0].url).delete([entries[0].key])
    wrong = replace(entries[1], sha256=b"w" * 32)

    by = {row.path: row for row in copied(stores, [entries[0], wrong], rules)}

    assert [row.code for row in by.values()] == ["unreadable", "unreadable"]
    assert "missing" in by["files/a"].message
    assert list(open_store(stores[1].url).list()) == []


def test_what_is_held_back_is_held_back_by_version():
    held = Held.of([Failure("data/t/m/n/1/raw", "unreadable", ""), Failure("files/a", "unreadable", "")])
    paths = ["data/t/m/n/1/metadata.yaml", "data/t/m/n/1/raw", "data/t/m/n/10/raw", "files/a", "files/ab"]

    inside, outside = ([path for path in paths if held.back(path) == which] for which in (True, False))

    assert inside == ["data/t/m/n/1/metadata.yaml", "data/t/m/n/1/raw", "files/a"]
    assert outside == ["data/t/m/n/10/raw", "files/ab"]


sizes = st.lists(st.sampled_from([0, 1, REQUEST, 100 * REQUEST, 10_000 * REQUEST]), max_size=60)


@given(sizes, st.integers(1, 20))
def test_parts_are_all_entries_in_order_and_none_is_much_larger_than_its_share(found: list[int], wanted: int):
    entries = [Entry(f"files/{at:03}", None, size, None, None, None, 0) for at, size in enumerate(found)]

    with patch("bayou.maintenance.replica.transfer.LEAST_COST", REQUEST):
        parts = CopyJob(None, RULES, entries).parts(wanted)

    assert [entry for part in parts for entry in part] == entries
    share = sum(size + REQUEST for size in found) // wanted + REQUEST
    assert all(sum(entry.size + REQUEST for entry in part[:-1]) <= share for part in parts)


packs = st.lists(st.tuples(st.sampled_from([None, "a", "b", "c"]), st.integers(0, 40_000)), max_size=60)


@given(packs, st.integers(1, 20))
def test_a_pack_is_read_for_one_part_and_small_files_fill_packs(found: list[tuple[str | None, int]], wanted: int):
    entries = [
        Entry(f"files/{at:03}", ulid(), size, b"h" * 32, None, None, 0, None, pack, *((0, size, 0) if pack else ()))
        for at, (pack, size) in enumerate(found)
    ]
    rules = replace(RULES, pack_below=20_000, pack_size=65_536)

    parts = CopyJob(None, rules, entries).parts(wanted)

    assert sorted((entry for part in parts for entry in part), key=lambda entry: entry.path) == entries
    small = [part for part in parts if part[0].size < 20_000]
    assert all((entry.size < 20_000) == (part in small) for part in parts for entry in part)
    for kind in (small, [part for part in parts if part not in small]):
        places = [(entry.pack, number) for number, part in enumerate(kind) for entry in part if entry.pack]
        assert len(set(places)) == len({pack for pack, _ in places})
    assert all(sum(entry.size for entry in part) >= 65_536 for part in small[:-1])


@pytest.mark.parametrize("seconds", [None, 1e-9])
def test_a_copy_has_as_long_as_the_command_that_asked_for_it(stores, seconds):
    """And not the three minutes of a usual call: an object of a terabyte takes hours."""
    (entry,) = fill(stores[0], {"files/a": b"a"})

    if seconds is None:
        assert len(copied(stores, [entry])) == 1
    else:
        with pytest.raises(DeadlinePassed):
            copied(stores, [entry], seconds=seconds)
