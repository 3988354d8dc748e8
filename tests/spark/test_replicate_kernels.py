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
from bayou.maintenance.replica.copy import Age, copy_push
from bayou.maintenance.replica.transfer import CopyJob, Held, Outcome
from bayou.objectstore import keys, open_store
from bayou.objectstore.spec import StoreSpec
from bayou.spark.executor import decode, encode, schema_of
from bayou.sync.report import Failure

AGE = Age("a-store", 0, doubt=False)


@pytest.fixture
def stores(tmp_path: Path) -> tuple[StoreSpec, StoreSpec]:
    for name in ("source", "target"):
        (tmp_path / name).mkdir()
    return tuple(StoreSpec.of((tmp_path / name).as_uri(), None, {}, 4) for name in ("source", "target"))  # type: ignore[return-value]


def fill(recipe: StoreSpec, content: dict[str, bytes]) -> list[Entry]:
    from hashlib import sha256

    store, push, made = open_store(recipe.url), ulid(), []
    for path, data in sorted(content.items()):
        store.put(keys.payload(path, push), data)
        made.append(Entry(path, push, len(data), sha256(data).digest(), None, None, 7))
    return made


def copied(
    recipes: tuple[StoreSpec, StoreSpec], entries: list[Entry], age: Age = AGE, seconds: float | None = None
) -> list[Outcome]:
    """Copy in a job as a worker has it, and return its rows as they arrive."""
    job = CopyJob(RemoteHandle(recipes[0], seconds), RemoteHandle(recipes[1], seconds), age, entries)
    kernel = pickle.loads(pickle.dumps(job))
    found = [row for part in job.parts(4) for row in kernel.run(part)]
    return list(decode(Outcome, encode(schema_of(Outcome), found)))


def test_a_task_that_runs_twice_writes_the_same_bytes_to_the_same_keys(stores):
    entries = fill(stores[0], {"files/a": b"a", "files/b": b"bb", "data/t/m/n/1/raw": b"raw"})

    once, twice = copied(stores, entries), copied(stores, entries)

    target = open_store(stores[1].url)
    assert [row[:4] for row in once] == [row[:4] for row in twice]
    assert {(row[0], row[1]) for row in once} == {(e.path, copy_push(e, AGE.store, 0)) for e in entries}
    assert sorted(meta.size for page in target.list() for meta in page) == [1, 2, 3]
    third = copied(stores, entries, replace(AGE, doubt=True))
    assert [row.sent for row in third] == [False] * 3  # found there, and not sent


def test_what_the_source_does_not_have_is_a_row_and_no_exception(stores):
    entries = fill(stores[0], {"files/a": b"a", "files/b": b"b"})
    open_store(stores[0].url).delete([entries[0].key])
    wrong = replace(entries[1], sha256=b"w" * 32)

    by = {row.path: row for row in copied(stores, [entries[0], wrong])}

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

    with patch("bayou.maintenance.replica.transfer._LEAST_COST", REQUEST):
        parts = CopyJob(None, None, AGE, entries).parts(wanted)

    assert [entry for part in parts for entry in part] == entries
    share = sum(size + REQUEST for size in found) // wanted + REQUEST
    assert all(sum(entry.size + REQUEST for entry in part[:-1]) <= share for part in parts)


@pytest.mark.parametrize("seconds", [None, 1e-9])
def test_a_copy_has_as_long_as_the_command_that_asked_for_it(stores, seconds):
    """And not the three minutes of a usual call: an object of a terabyte takes hours."""
    (entry,) = fill(stores[0], {"files/a": b"a"})

    if seconds is None:
        assert len(copied(stores, [entry])) == 1
    else:
        with pytest.raises(DeadlinePassed):
            copied(stores, [entry], seconds=seconds)
