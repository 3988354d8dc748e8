"""The column `content` where the bytes are in packs of the store: requests by the pack, damage by the row."""

from __future__ import annotations

import json
import pickle

import pyarrow
import pytest

from bayou.data.records import Records
from bayou.objectstore import keys
from bayou.packs.entries import UnreadableContent
from bayou.spark.sql import content, query
from bayou.spark.sql.base import base_view
from bayou.spark.sql.content import (
    ContentReader,
    ContentRequest,
    ContentSource,
    content_column,
    grant_for,
    location_column,
)
from tests.data.catalog.scene import files, metadata
from tests.data.models import MODEL
from tests.packs.moving import drop_packs, entries_of, move
from tests.sync.conftest import Clone, Team, Wire, wire

__all__ = ["wire"]

TOTAL = 300


def contents(count: int = TOTAL) -> dict[str, bytes]:
    """The content of each item, by its name; deflated it is small, so that a thousand of them fit into a pack."""
    return {f"n{at:04}": json.dumps({"at": at, "text": "x" * (at % 50)}).encode() for at in range(count)}


def lazy_clone(team: Team, items: dict[str, bytes], versions: int = 1) -> Clone:
    """A lazy clone of a store that has versions of these items, from one push for each number."""
    one, two = team.clone("one"), team.clone("two", hydrate="lazy")
    for number in range(1, versions + 1):
        written: dict[str, bytes] = {}
        for name, data in items.items():
            written.update(files(metadata(MODEL, name, number, size=len(data), sha256=None), data))
        one.write_all(written)
        one.sync(engine="point")
    two.sync(engine="point")
    with Records(two.repo) as records:
        records.catalog.refresh()
    return two


def wanted(clone: Clone) -> dict[str, ContentRequest]:
    """The rows of all items, as the views pass them on, by name."""
    with Records(clone.repo) as records:
        rows = records.catalog.find(all_versions=True)
    return {
        f"{row.name}/{row.version}": ContentRequest(row.raw_path, row.size, row.sha256, False, False) for row in rows
    }


def source_of(clone: Clone) -> ContentSource:
    source = ContentSource(clone.repo.tree_root, base_view(clone.repo), grant_for(clone.repo))
    return pickle.loads(pickle.dumps(source))


def read(clone: Clone, rows: list[ContentRequest]) -> list[content.Content]:
    return [one for group in ContentReader(source_of(clone)).read(rows) for one in group]


def packs_of(team: Team) -> list[str]:
    found = team.keys()
    return [key for key in found if key.startswith(".bayou/packs/")]


def test_the_content_of_many_rows_takes_a_request_for_a_pack(team: Team, wire: Wire) -> None:
    items = contents()
    clone = lazy_clone(team, items)
    rows = wanted(clone)
    wire.seen.clear()

    assert read(clone, list(rows.values())) == [items[name.partition("/")[0]] for name in rows]

    assert len(wire.seen) == len(packs_of(team)) == 1


def test_rows_in_any_order_and_of_many_pushes_take_a_request_for_a_pack(team: Team, wire: Wire, rng) -> None:
    """A push for each number, so that the versions of one item, which the catalog has together, are in many packs."""
    items = contents(50)
    clone = lazy_clone(team, items, versions=6)
    rows = list(wanted(clone).items())
    rng.shuffle(rows)
    wire.seen.clear()

    assert read(clone, [row for _, row in rows]) == [items[name.partition("/")[0]] for name, _ in rows]

    assert len(wire.seen) == 6


def test_content_is_held_in_bounded_groups_whatever_metadata_says(team: Team, monkeypatch) -> None:
    """Metadata may claim that content is empty; the entry tells how much there is (V25)."""
    monkeypatch.setattr(content, "GROUP_BYTES", 500)
    items = {f"n{at}": bytes([at]) * 300 for at in range(4)}
    clone = lazy_clone(team, items)
    rows = [ContentRequest(row.path, 0, None, False, False) for row in wanted(clone).values()]

    groups = list(ContentReader(source_of(clone)).read(rows))

    assert groups == [[data] for data in items.values()]


def test_a_file_that_vanishes_after_the_look_at_the_tree_comes_from_the_store(team: Team, monkeypatch) -> None:
    clone = lazy_clone(team, contents(3))
    monkeypatch.setattr(ContentSource, "has", lambda *_: True)

    assert read(clone, list(wanted(clone).values())) == list(contents(3).values())


def test_rows_are_located_by_their_pack_and_read_as_located(team: Team, wire: Wire) -> None:
    """What crosses from the task that looks a row up to the task that reads its pack."""
    items = contents(20)
    clone = lazy_clone(team, items)
    rows = list(wanted(clone).values())
    here, gone = rows[3], rows[5]
    (clone.repo.tree_root / here.path).write_bytes(items["n0003"])
    deleted = [row is gone for row in rows]
    entries = entries_of(team.store())

    (located,) = location_column(source_of(clone))(
        iter([(pyarrow.array([row.path for row in rows]), pyarrow.array(deleted))])
    )
    expected = [None if row in (here, gone) else entries[row.path].pack for row in rows]
    assert [place and place["pack"] for place in located.to_pylist()] == expected

    columns = [
        pyarrow.array([row.path for row in rows]),
        pyarrow.array([row.size for row in rows]),
        pyarrow.array([row.sha256 for row in rows], pyarrow.string()),
        pyarrow.array([False] * len(rows)),
        pyarrow.array(deleted),
        located.field("entry"),
    ]
    source = source_of(clone)
    wire.seen.clear()
    (found,) = content_column(source, tolerant=False)(iter([tuple(columns)]))

    told = [None if at == 5 else data for at, data in enumerate(items.values())]
    assert [row["content"] for row in found.to_pylist()] == told
    assert len(wire.seen) == 1


def test_p7_content_of_a_pack_that_a_compaction_replaced_is_read_from_the_new_one(team: Team) -> None:
    items = contents(10)
    clone = lazy_clone(team, items)
    drop_packs(team.store(), move(team.store()).values())

    assert read(clone, list(wanted(clone).values())) == list(items.values())


def test_p7_a_pack_that_is_gone_for_good_is_named_by_the_paths_of_its_rows(team: Team) -> None:
    clone = lazy_clone(team, contents(2))
    drop_packs(team.store(), entries_of(team.store()).values())
    rows = list(wanted(clone).values())

    assert read(clone, rows) == [
        UnreadableContent(f"the content of {row.path} is missing, here and in the store") for row in rows
    ]


def spoil(team: Team, path: str) -> None:
    """Change the bytes of one file in its pack."""
    store = team.store()
    entry = entries_of(store)[path]
    assert entry.offset is not None
    assert entry.pack is not None
    data = bytearray(store.get(keys.pack(entry.pack)).data)
    data[entry.offset] ^= 0xFF
    store.put(keys.pack(entry.pack), bytes(data))


@pytest.fixture
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide the rows by their packs, also where there are few."""
    monkeypatch.setattr(query, "RANGE", 10)
    monkeypatch.setattr(query, "TASK_ROWS", 50)


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("warm", "small_ranges")
class TestOnSpark:
    """The same through `data sql`, with requests counted by a proxy in front of S3."""

    def test_a_query_over_all_content_takes_a_request_for_a_pack(self, s3_team, proxy, command):
        items = contents()
        clone = lazy_clone(s3_team, items, versions=3)
        where = ("--repo", str(clone.repo.root), "--json")
        packs = packs_of(s3_team)
        proxy.log.clear()

        asked = command("data", "sql", "SELECT sum(length(content)) AS n, count(*) AS c FROM versions", *where)

        assert asked.document["results"] == [{"n": 3 * sum(map(len, items.values())), "c": 3 * TOTAL}]
        assert [(row.method, ".bayou/packs/" in row.path) for row in proxy.log.rows()] == [("GET", True)] * len(packs)

    def test_conditions_are_applied_before_content_is_read(self, s3_team, proxy, command):
        items = contents()
        clone = lazy_clone(s3_team, items, versions=2)
        where = ("--repo", str(clone.repo.root), "--json")
        proxy.log.clear()

        some = command(
            "data",
            "sql",
            "SELECT name, string(content) AS c FROM versions WHERE version = 2 AND name < 'n0005'",
            *where,
        )
        one = command("data", "sql", "SELECT length(content) AS n FROM data LIMIT 1", *where)
        none = command("data", "sql", "SELECT count(*) AS n FROM versions", *where)

        expected = [{"name": name, "c": items[name].decode()} for name in list(items)[:5]]
        assert sorted(some.document["results"], key=lambda row: row["name"]) == expected
        assert len(one.document["results"]) == 1
        assert none.document["results"] == [{"n": 2 * TOTAL}]
        assert [row.method for row in proxy.log.rows()] == ["GET", "GET"], "one pack for each of the first two"

    def test_v25_one_damaged_file_in_a_pack_is_one_row(self, s3_team, command):
        clone = lazy_clone(s3_team, contents(20))
        where = ("--repo", str(clone.repo.root), "--json")
        bad = wanted(clone)["n0007/1"].path
        spoil(s3_team, bad)

        ended = command("data", "sql", "SELECT content FROM data", *where)
        told = command("data", "sql", "SELECT name, content_error FROM data WHERE content IS NULL", *where)
        around = command("data", "sql", "SELECT length(content) AS n FROM data WHERE name <> 'n0007'", *where)

        message = f"the object of {bad} does not have the bytes that were pushed"
        assert (ended.code, ended.error["message"]) == (1, message)
        assert "content_error" in ended.error["hint"]
        assert told.document["results"] == [{"name": "n0007", "content_error": message}]
        assert len(around.document["results"]) == 19

    def test_p7_packs_that_moved_since_the_last_sync_are_found(self, s3_team, command):
        items = contents(30)
        clone = lazy_clone(s3_team, items)
        drop_packs(s3_team.store(), move(s3_team.store()).values())

        asked = command(
            "data", "sql", "SELECT string(content) AS c FROM data", "--repo", str(clone.repo.root), "--json"
        )

        assert sorted(row["c"] for row in asked.document["results"]) == sorted(map(bytes.decode, items.values()))
