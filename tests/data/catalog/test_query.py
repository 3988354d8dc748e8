"""Questions in CEL: what they find, what they read, and how they fail."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from bayou.core import limits
from bayou.core.errors import BayouError, QueryInvalid, Unavailable
from bayou.data.catalog import VersionRow
from bayou.data.query import QueryResult, query
from bayou.data.query.expression import Expression
from bayou.data.query.pushdown import push_down
from bayou.data.query.query import evaluate_rows
from bayou.data.records import Records
from bayou.repo import Repo
from bayou.sync.service import Datastore
from bayou_testing.faulty import Fault
from tests.data.catalog.scene import REPORT, VPC, files, metadata
from tests.packs.moving import drop_packs, entries_of
from tests.sync.conftest import Clone, Team, Wire, wire

__all__ = ["wire"]


@pytest.fixture
def asked(directory_repo: Repo) -> Iterator[Records]:
    """Records of two models, to be asked about."""
    owner = metadata(REPORT, "x", 1).owner
    made = [
        (metadata(VPC, "state", 1, tags={"env": "prod"}, size=10), b"one"),
        (metadata(VPC, "state", 2, tags={"env": "prod"}, size=2000), b'{"cidr": "10.0.0.0/16", "nat": 3}'),
        (metadata(VPC, "plan", 1, size=30, content_type="text/plain", lifetime="7d"), b"\xff\x00"),
        (metadata(VPC, "gone", 4, deleted=True), b""),
        (metadata(REPORT, "summary", 1, owner=replace(owner, run="01JR", workflow="nightly", step="sum")), b"[1]"),
    ]
    with Datastore(directory_repo) as datastore:
        datastore.tree.write_many([file for one, content in made for file in files(one, content)])
    with Records(directory_repo) as records:
        records.catalog.refresh()
        yield records


def names(records: Records, predicate: str) -> list[str]:
    found = query(records, predicate)
    assert not found.failed
    assert found.total == len(found.results)
    return [f"{one['name']}/{one['version']}" for one in found.results]


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        ("true", ["plan/1", "state/1", "state/2", "summary/1"]),
        ("latest", ["plan/1", "state/2", "summary/1"]),
        ("!latest", ["state/1"]),
        ('model == "main-vpc" && size > 20', ["plan/1", "state/2"]),
        ('type.startsWith("aws/") && version == 1', ["plan/1", "state/1"]),
        ('name in ["plan", "summary"]', ["plan/1", "summary/1"]),
        ('tags.env == "prod"', ["state/1", "state/2"]),
        ('tags["env"] != "prod"', ["plan/1", "summary/1"]),
        ('"env" in tags && tags.env == "prod"', ["state/1", "state/2"]),
        ('has(tags.env) ? tags.env == "prod" : name == "plan"', ["plan/1", "state/1", "state/2"]),
        ("run == null", ["plan/1", "state/1", "state/2"]),
        ('run != null && owner.workflow == "nightly"', ["summary/1"]),
        ('step == "sum" || lifetime == "7d"', ["plan/1", "summary/1"]),
        ('content_type.endsWith("plain")', ["plan/1"]),
        ('created_at >= "2026-01-03"', ["state/2"]),
        ('"2026-01-03T00:00:00Z" <= created_at', ["state/2"]),
        ('created_at < timestamp("2026-01-02T00:00:00.001Z") && latest', ["plan/1", "summary/1"]),
        ('created_at > timestamp("2026-01-02")', ["state/2"]),
        ('created_at < "2026-01-02T01:00:00+02:00"', []),
        ('created_at.startsWith("2026-01-03T")', ["state/2"]),
        ("created_at.getDate() == 3", ["state/2"]),
        (f'model_id == "{VPC.id}" && [1, 2].exists(x, x == version) && size == 10', ["state/1"]),
        ('name == "state" // the newest\n && latest', ["state/2"]),
    ],
)
def test_fields_are_compared_as_cel_does(asked: Records, predicate: str, expected: list[str]) -> None:
    assert names(asked, predicate) == expected


def test_a_result_is_what_a_list_shows(asked: Records) -> None:
    assert query(asked, 'name == "plan"').results == [
        {
            "model": "main-vpc",
            "model_id": VPC.id,
            "type": "aws/ec2/vpc",
            "name": "plan",
            "version": 1,
            "size": 30,
            "content_type": "text/plain",
            "tags": {},
            "created_at": "2026-01-02T00:00:00.000Z",
            "lifetime": "7d",
        }
    ]


def test_a_selection_makes_the_results_and_a_limit_does_not_change_the_total(asked: Records) -> None:
    found = query(asked, "true", '{"n": name, "at": created_at, "s": [size, 1.5]}', 2)
    assert found.total == 4
    assert found.results == [
        {"n": "plan", "at": "2026-01-02T00:00:00.000Z", "s": [30, 1.5]},
        {"n": "state", "at": "2026-01-02T00:00:00.000Z", "s": [10, 1.5]},
    ]


def asked_content(records: Records, predicate: str, select: str | None = None) -> tuple[QueryResult, list[str]]:
    """Ask, and tell which versions' content was read."""
    read: list[str] = []
    stored = {"state/1": b"one", "state/2": b'{"cidr": "10.0.0.0/16", "nat": 3}', "plan/1": b"\xff\x00"}

    def load(row: VersionRow) -> bytes:
        read.append(f"{row.name}/{row.version}")
        return stored.get(read[-1], b"[1]")

    wanted = Expression(predicate, "the predicate")
    shown = Expression(select, "the selection") if select else None
    return evaluate_rows(records.catalog.select(push_down(wanted)), wanted, shown, None, load, lambda _: None), read


def test_content_is_read_only_where_an_expression_asks_for_it_and_the_catalog_could_not_say_no(asked: Records) -> None:
    found, read = asked_content(asked, 'name == "state" && attributes.nat == 3')
    assert [one["version"] for one in found.results] == [2]
    assert read == ["state/1", "state/2"]
    found, read = asked_content(asked, 'name == "state" && latest', "attributes.cidr")
    assert (found.results, read) == (["10.0.0.0/16"], ["state/2"])
    assert asked_content(asked, "size > 0")[1] == []


def test_a_version_for_which_an_expression_comes_to_nothing_is_counted_and_named(asked: Records) -> None:
    found, _ = asked_content(asked, "attributes.nat > 1")
    assert [one["version"] for one in found.results] == [2]
    assert found.failed == [
        "plan of main-vpc, version 1: there is no nat",
        "state of main-vpc, version 1: there is no nat",
        "summary of weekly, version 1: there is no nat",
    ]
    found, _ = asked_content(asked, 'has(attributes.nat) && attributes.nat > 1 || content == "one"')
    assert ([one["version"] for one in found.results], found.failed) == ([1, 2], [])
    found = query(asked, "size")
    assert (found.total, len(found.failed)) == (0, 4)
    assert found.failed[0].endswith("the predicate evaluates to 30, which is neither true nor false")
    found = query(asked, 'run > "01"')
    assert ([one["name"] for one in found.results], len(found.failed)) == (["summary"], 3)


def test_a_function_that_a_value_does_not_have_is_not_called_unknown(asked: Records) -> None:
    found = query(asked, 'latest && lifetime.startsWith("3")')

    assert found.total == 0
    unfit = "startsWith is not for such a value: null, content that is no text, or one of another type"
    assert {sentence.partition(": ")[2] for sentence in found.failed} == {unfit}


def test_a_selection_that_fails_for_a_version_is_named_too(asked: Records) -> None:
    found = query(asked, 'name == "state"', "1 / (version - 1)")
    assert (found.results, found.total, len(found.failed)) == ([1], 2, 1)


@pytest.mark.parametrize(
    ("predicate", "message", "hint"),
    [
        ("nam == 1", "there is no field nam", "did you mean name? fields are model, model_id, type, name, version, "),
        ("zzz == 1", "there is no field zzz", "fields are model, "),
        ("name.upperCase() == 'A'", "there is no function upperCase", "functions are bytes, contains, "),
        ("name ==", "the predicate is no CEL expression: line 1:8", "one is: "),
        ("", "the predicate is no CEL expression: line 1:1", "one is: "),
        ("name == 'a' & latest", "the predicate is no CEL expression: line 1:13", "one is: "),
        ('created_at > "yesterday"', 'created_at is compared with "yesterday", which is no time', "write it like "),
    ],
)
def test_a_wrong_expression_is_told_before_any_row_is_looked_at(
    asked: Records, predicate: str, message: str, hint: str
) -> None:
    with pytest.raises(QueryInvalid) as caught:
        query(asked, predicate)
    assert caught.value.message.startswith(message)
    assert "\n" not in caught.value.message
    assert (caught.value.hint or "").startswith(hint)
    assert (caught.value.code, caught.value.exit_code) == ("query_invalid", 2)


def test_a_wrong_selection_is_called_a_selection(asked: Records) -> None:
    with pytest.raises(QueryInvalid, match=r"^the selection is no CEL expression"):
        query(asked, "true", "{")


def test_f112_a_query_for_content_hydrates_what_is_missing_and_one_without_sends_nothing(
    team: Team, wire: Wire
) -> None:
    theirs, lazy = team.clone("theirs"), team.clone("lazy", hydrate="lazy")
    with Records(theirs.repo) as records:
        records.data.save(VPC, "state", b'{"cidr": "10.0.0.0/16"}')
        records.data.save(REPORT, "summary", b"text")
    theirs.push()
    lazy.pull()
    wire.seen.clear()
    with Records(lazy.repo) as records:
        records.catalog.refresh()
        assert query(records, "size > 0").total == 2
        assert wire.seen == []
        found = query(records, 'name == "state" && attributes.cidr.startsWith("10.")', "attributes.cidr")
        assert (found.results, found.failed) == (["10.0.0.0/16"], [])
        assert len(wire.sent("get", "packs/")) == 1
        wire.seen.clear()
        assert query(records, 'name == "state" && content.contains("cidr")').total == 1
        assert wire.seen == []


@pytest.mark.parametrize(
    ("predicate", "select"),
    [("attributes.at % 2 == 0", None), ("attributes.at >= 0", "attributes.at"), ("size > 0", "attributes.at")],
)
def test_content_of_many_versions_is_fetched_by_the_pack(
    team: Team, wire: Wire, monkeypatch: pytest.MonkeyPatch, predicate: str, select: str | None
) -> None:
    """In portions of so many versions."""
    monkeypatch.setitem(evaluate_rows.__globals__, "FETCH_BATCH", 50)
    lazy = lazy_clone(team, 200)
    with Records(lazy.repo) as records:
        records.catalog.refresh()
        wire.seen.clear()
        found = query(records, predicate, select)
    assert (found.total, found.failed) == (100 if select is None else 200, [])
    assert select is None or sorted(found.results) == list(range(200))
    assert [one.key.partition("/packs/")[0] for one in wire.seen] == [".bayou"] * 4


def test_a_selection_of_content_fetches_no_more_than_its_limit(team: Team) -> None:
    lazy = lazy_clone(team, 20)
    with Records(lazy.repo) as records:
        records.catalog.refresh()
        found = query(records, "size > 0", "attributes.at", 3)
    assert (len(found.results), found.total) == (3, 20)
    assert len([path for path in lazy.files if path.endswith("/raw")]) == 3


def lazy_clone(team: Team, count: int) -> Clone:
    """A lazy clone of a store that has so many versions."""
    theirs, lazy = team.clone("theirs"), team.clone("lazy", hydrate="lazy")
    written: dict[str, bytes] = {}
    for at in range(count):
        data = json.dumps({"at": at}).encode()
        written.update(files(metadata(VPC, f"n{at:03}", 1, size=len(data), sha256=None), data))
    theirs.write_all(written)
    theirs.push()
    lazy.pull()
    return lazy


def test_v25_damaged_content_in_a_pack_is_a_failure_of_its_version_alone(team: Team, wire: Wire) -> None:
    lazy = lazy_clone(team, 10)
    store = team.store()
    entries = entries_of(store)
    bad = entries[metadata(VPC, "n003", 1).location.raw]
    assert bad.offset is not None
    data = bytearray(store.get(bad.key).data)
    data[bad.offset] ^= 0xFF
    store.put(bad.key, bytes(data))
    with Records(lazy.repo) as records:
        records.catalog.refresh()
        found = query(records, "attributes.at >= 0")
        assert found.total == 9
        assert found.failed == [
            f"n003 of {VPC.name}, version 1: the object of {bad.path} does not have the bytes that were pushed"
        ]
        drop_packs(store, entries.values())
        for file in lazy.repo.tree_root.rglob("raw"):
            file.unlink()
        gone = query(records, "attributes.at >= 0")
    assert (gone.total, len(gone.failed)) == (0, 10)
    assert gone.failed[0].endswith("is missing, here and in the store")


def test_content_that_is_gone_is_a_failure_of_its_version_alone(directory_repo: Repo) -> None:
    with Records(directory_repo) as records:
        records.data.save(VPC, "kept", b"here")
        lost = records.data.save(VPC, "lost", b"here")
        (directory_repo.tree_root / lost.location.raw).unlink()
        records.catalog.refresh()
        found = query(records, 'content == "here"')
        assert [one["name"] for one in found.results] == ["kept"]
        assert len(found.failed) == 1
        assert found.failed[0].startswith("lost of main-vpc, version 1: ")


def test_the_content_of_many_files_is_their_manifest_however_large_they_are(
    directory_repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CONTENT_BYTES", 1000)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.csv").write_bytes(bytes(2000))
    with Records(directory_repo) as records:
        records.data.save(VPC, "large", bytes(2000))
        records.data.save_directory(VPC, "orders", tmp_path / "source")
        records.catalog.refresh()
        found = query(records, 'attributes.files.exists(f, f.name == "a.csv")')
    assert [one["name"] for one in found.results] == ["orders"]
    assert len(found.failed) == 1
    assert "2000 bytes, more than an expression can ask for" in found.failed[0]


def test_an_error_of_the_store_ends_a_query(team: Team, wire: Wire) -> None:
    theirs, lazy = team.clone("theirs"), team.clone("lazy", hydrate="lazy")
    with Records(theirs.repo) as records:
        records.data.save(VPC, "state", b"here")
    theirs.push()
    lazy.pull()
    wire.cut(Fault(key="packs/", error=lambda: Unavailable("no answer")))
    with Records(lazy.repo) as records:
        records.catalog.refresh()
        with pytest.raises(BayouError, match="no answer"):
            query(records, 'content == "here"')
