"""Issue 17, items 7, 8 and 9, on Spark: tasks do what one process does with rows and nodes that mean harm."""

from __future__ import annotations

import random

import pytest

from bayou.core import limits
from bayou.core.errors import IndexDamaged
from bayou.objectstore import keys
from tests import api
from tests.index.resealed import mutated
from tests.sync.conftest import Team
from tests.sync.indexes import commit_rows, entries_of
from tests.sync.test_hostile_index import BY_PATH, NAMED, put_trash, row, trash_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def test_17_7_and_9_bad_rows_are_left_alone_on_spark_too(warm, team: Team) -> None:
    a, b = team.clone("a"), team.clone("b")
    outside = team.root / "store/otherapp/config.json"
    outside.parent.mkdir()
    outside.write_text("1")
    a.write("files/good", "1")
    a.sync(engine="point")
    nested = team.root / "store/data/x/.bayou/nodes"
    nested.mkdir(parents=True)
    (nested / "n").write_text("1")
    theirs = team.root / "store/data/x/data/~01J8XG4Q6V5T3N2M1K0H9G8F7E/raw"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("1")
    store = team.store()
    commit_rows(store, dict(BY_PATH))
    tag = next(meta.etag for page in store.list() for meta in page if meta.key == "otherapp/config.json")
    put_trash(store, row("otherapp/config.json", push=None, etag=tag), row("data/a\0b", push=None, modified=2**62))

    here = api.verify(a.repo, deep=False, repair=False, engine="point")
    there = api.verify(a.repo, deep=False, repair=False, engine="spark")
    pulled = b.sync(engine="spark")
    collected = api.collect(a.repo, dry_run=False, grace_s=-5.0, engine="spark")
    (team.root / "copy").mkdir()
    copied = api.replicate(a.repo, (team.root / "copy").as_uri(), engine="spark")
    repaired = api.verify(a.repo, deep=False, repair=True, engine="spark")

    assert not there.ok
    assert there.unsafe == here.unsafe
    assert len(there.unsafe) == len(BY_PATH) + 2
    assert pulled.engine == "spark"
    assert {one.path for one in pulled.refused} == set(BY_PATH)
    assert set(b.files) == {"files/good"}
    assert [("2 rows" in said, "left alone" in said) for said in collected.warnings] == [(True, True)]
    assert outside.read_text() == theirs.read_text() == "1"
    assert (copied.copied, {one.path for one in copied.failed}) == (1, set(BY_PATH))
    assert {one.path for one in repaired.unsafe} == {one.path for one in NAMED.values()}
    assert set(entries_of(store)) == {"files/good", *(one.path for one in NAMED.values())}
    assert trash_of(store) == set()


def test_17_8_a_resealed_or_huge_node_is_no_workers_end(warm, team: Team) -> None:
    a = team.clone("a")
    a.write_all({f"files/{number}": b"1" for number in range(20)})
    a.sync(engine="point")
    store = team.store()
    node = next(key for key in set(team.keys()) if key.startswith(f"{keys.NODES}/"))
    good = bytes(store.get(keys.as_listed(node)).data)
    for harm in (*(mutated(good, random.Random(seed)) for seed in (3, 4, 5)), b"x" * (limits.NODE_BYTES + 1)):
        store.put(keys.as_listed(node), harm)
        found = api.verify(a.repo, deep=False, repair=False, engine="spark")
        assert found.ok == (not found.damaged)
    assert found.damaged
    with pytest.raises(IndexDamaged):
        api.collect(a.repo, dry_run=False, grace_s=-5.0, engine="spark")
    api.verify(a.repo, deep=False, repair=True, engine="spark")
    assert len(entries_of(store)) == 20
