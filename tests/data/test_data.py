"""Saving, finding, reading, renaming and deleting data, on a store's cache and in a directory."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from bayou.core.errors import (
    ContentDamaged,
    DataNotFound,
    NameTaken,
    NotStreaming,
    RecordDamaged,
    RecordError,
    TooManyRenames,
    UsageError,
)
from bayou.data.layout import ModelRef, Owner
from bayou.data.metadata import Metadata
from bayou.data.records import Records
from bayou.repo import Repo
from tests.data.models import MODEL, OTHER, in_tree, leftovers, visible
from tests.sync.conftest import Team


def test_a_saved_version_is_found_and_read_with_all_that_was_said_of_it(records: Records) -> None:
    owner = Owner.of(MODEL, "repo", output="o", run="r", workflow="w", job="j", step="s")
    saved = records.data.save(
        MODEL, "plan", b'{"a": 1}', tags={"env": "prod"}, lifetime="7d", keep="3", owner=owner, content_type="text/x"
    )
    assert saved.location.raw == f"data/net/vpc/{MODEL.id}/plan/1/raw"
    assert (saved.version, saved.size, saved.sha256) == (1, 8, hashlib.sha256(b'{"a": 1}').hexdigest())
    assert (saved.tags, saved.lifetime, saved.keep, saved.owner, saved.content_type) == (
        {"env": "prod"}, "7d", "3", owner, "text/x",
    )  # fmt: skip
    item = records.data.get(MODEL, "plan")
    assert item.metadata == saved
    assert records.data.read(item) == b'{"a": 1}'
    assert records.data.path(item).read_bytes() == b'{"a": 1}'
    (row,) = records.data.find(tags={"env": "prod"})
    assert (row.id, row.run, row.step, row.latest, row.repo) == (saved.id, "r", "s", True, "repo")


def test_content_is_streamed_and_never_held_as_a_whole(records: Records) -> None:
    def pieces() -> Iterator[bytes]:
        for number in range(64):
            yield bytes([number]) * (1 << 20)

    tracemalloc.start()
    saved = records.data.save(MODEL, "large", pieces())
    with records.data.open(records.data.get(MODEL, "large")) as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 16):
            digest.update(chunk)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (saved.size, saved.sha256) == (64 << 20, digest.hexdigest())
    assert peak < 16 << 20


def test_versions_count_up_share_an_id_and_the_newest_is_what_is_read(records: Records) -> None:
    saved = [records.data.save(MODEL, "x", b"%d" % number) for number in range(1, 4)]
    assert [one.version for one in saved] == [1, 2, 3]
    assert len({one.id for one in saved}) == 1
    assert records.data.read(records.data.get(MODEL, "x")) == b"3"
    assert records.data.read(records.data.get(MODEL, "x", 1)) == b"1"
    assert [(row.version, row.latest) for row in records.data.versions(MODEL, "x")] == [
        (1, False),
        (2, False),
        (3, True),
    ]
    assert [row.version for row in records.data.find()] == [3]
    assert [row.version for row in records.data.find(all_versions=True)] == [1, 2, 3]


def test_data_is_found_by_name_id_tag_model_and_type(records: Records) -> None:
    x = records.data.save(MODEL, "x", b"1", tags={"a": "1", "b": "2"})
    y = records.data.save(OTHER, "y", b"2", tags={"a": "1"})

    def found(**filters: object) -> set[str]:
        return {row.name for row in records.data.find(**filters)}  # type: ignore[arg-type]

    assert found(name="x") == {"x"}
    assert found(id=y.id) == {"y"}
    assert found(tags={"a": "1"}) == {"x", "y"}
    assert found(tags={"a": "1", "b": "2"}) == {"x"}
    assert found(model=MODEL) == found(model="main") == found(model=MODEL.id) == {"x"}
    assert found(type="report") == {"y"}
    assert found(type="report", name="x") == set()
    assert x.id != y.id


@pytest.mark.parametrize("version", [None, 1, 7, 0, -1])
def test_what_is_not_there_is_said_so(records: Records, version: int | None) -> None:
    for call in (records.data.get, records.data.delete):
        with pytest.raises(DataNotFound, match=r"main has no data named .*nothing|there is no .*nothing of main"):
            call(MODEL, "nothing", version)
    with pytest.raises(DataNotFound):
        records.data.versions(MODEL, "nothing")
    with pytest.raises(DataNotFound):
        records.data.append(MODEL, "nothing", b"")
    with pytest.raises(DataNotFound):
        records.data.rename(MODEL, "nothing", "something")
    records.data.save(MODEL, "x", b"")
    with pytest.raises(DataNotFound, match="version 2 of x"):
        records.data.get(MODEL, "x", 2)
    with pytest.raises(DataNotFound):
        records.data.get(OTHER, "x")


# Deleting


def test_a_number_is_never_used_twice(records: Records) -> None:
    first = [records.data.save(MODEL, "x", b"old") for _ in range(3)][-1]
    assert records.data.delete(MODEL, "x") == 3
    assert visible(records) == {}
    again = records.data.save(MODEL, "x", b"new")
    assert again.version == 4
    assert again.id != first.id  # another item, by the same name
    assert records.data.delete(MODEL, "x", 4) == 1
    assert records.data.save(MODEL, "x", b"newer").version == 5


def test_a_deleted_version_vanishes_whole_and_only_the_highest_leaves_a_mark(records: Records) -> None:
    for number in range(1, 4):
        records.data.save(MODEL, "x", b"%d" % number)
    assert records.data.delete(MODEL, "x", 2) == 1
    assert {path.split("/")[-2] for path in in_tree(records.tree.root)} == {"1", "3"}
    assert records.data.delete(MODEL, "x", 3) == 1
    assert records.data.read(records.data.get(MODEL, "x")) == b"1"
    mark = in_tree(records.tree.root)[f"data/net/vpc/{MODEL.id}/x/3/metadata.yaml"]
    assert (mark.deleted, mark.size, mark.sha256) == (True, 0, None)
    assert not (records.tree.root / mark.location.raw).exists()
    assert [(row.version, row.deleted) for row in records.data.versions(MODEL, "x")] == [(1, False), (3, True)]
    for version in (2, 3):
        with pytest.raises(DataNotFound):
            records.data.get(MODEL, "x", version)
        with pytest.raises(DataNotFound):
            records.data.delete(MODEL, "x", version)
    assert records.data.delete(MODEL, "x") == 1
    with pytest.raises(DataNotFound, match="x of main was deleted"):
        records.data.get(MODEL, "x")
    assert leftovers(records.tree.root) == []


def test_many_versions_of_many_items_are_deleted_together(records: Records) -> None:
    for name in ("x", "y"):
        for _ in range(3):
            records.data.save(MODEL, name, name.encode())
    rows = [row for row in records.data.find(all_versions=True) if (row.name, row.version) not in {("x", 3), ("y", 1)}]
    assert records.data.delete_many(rows) == 4
    assert set(visible(records)) == {("main", "x", 3), ("main", "y", 1)}
    assert records.data.delete_many(rows) == 0
    assert records.data.save(MODEL, "y", b"").version == 4


def test_what_else_lies_in_a_version_goes_with_it(records: Records) -> None:
    records.data.save(MODEL, "x", b"1")
    saved = records.data.save(MODEL, "x", b"2")
    directory = f"data/net/vpc/{MODEL.id}/x/1"
    records.tree.write(f"{directory}/extra.txt", b"of a program")
    (records.tree.root / directory / ".bayou-01HZZZZZZZZZZZZZZZZZZZZZZZ.tmp").write_bytes(b"left by a killed write")
    records.data.delete(MODEL, "x", 1)
    assert [file.name for file in (records.tree.root / directory).iterdir()] == [
        ".bayou-01HZZZZZZZZZZZZZZZZZZZZZZZ.tmp"
    ]
    assert records.data.get(MODEL, "x").metadata == saved


# Renaming


def test_a_renamed_item_keeps_its_numbers_and_its_id_and_the_old_name_forwards(records: Records) -> None:
    saved = [records.data.save(MODEL, "old", b"%d" % number, tags={"n": str(number)}) for number in range(1, 4)]
    records.data.delete(MODEL, "old", 2)
    renamed = records.data.rename(MODEL, "old", "new")
    assert (renamed.name, renamed.version, renamed.id, renamed.tags) == ("new", 3, saved[0].id, {"n": "3"})
    assert visible(records) == {("main", "new", 1): b"1", ("main", "new", 3): b"3"}
    for name, forwarded in (("new", ()), ("old", ("old",))):
        item = records.data.get(MODEL, name)
        assert (item.metadata.name, item.metadata.version, item.forwarded) == ("new", 3, forwarded)
        assert records.data.read(records.data.get(MODEL, name, 1)) == b"1"
    with pytest.raises(DataNotFound):
        records.data.get(MODEL, "old", 2)
    assert records.data.save(MODEL, "new", b"4").version == 4
    assert leftovers(records.tree.root) == []
    assert [row.renamed_to for row in records.data.versions(MODEL, "old")] == ["new"]


def test_a_deleted_number_is_not_used_again_under_a_new_name_nor_under_the_old_one_that_came_back(
    records: Records,
) -> None:
    for number in range(1, 4):
        records.data.save(MODEL, "a", b"%d" % number)
    records.data.delete(MODEL, "a", 3)
    records.data.rename(MODEL, "a", "b")
    assert visible(records) == {("main", "b", 1): b"1", ("main", "b", 2): b"2"}
    records.data.rename(MODEL, "b", "a")
    assert visible(records) == {("main", "a", 1): b"1", ("main", "a", 2): b"2"}
    assert records.data.get(MODEL, "b").forwarded == ("b",)
    assert records.data.save(MODEL, "a", b"4").version == 4
    records.data.rename(MODEL, "a", "b")
    assert records.data.save(MODEL, "b", b"5").version == 5
    assert set(visible(records)) == {("main", "b", number) for number in (1, 2, 4, 5)}


def test_a_name_that_is_or_was_another_items_is_taken(records: Records) -> None:
    records.data.save(MODEL, "x", b"x")
    records.data.save(MODEL, "live", b"y")
    records.data.save(MODEL, "dead", b"z")
    records.data.delete(MODEL, "dead")
    before = visible(records)
    for name, why in (("live", "already"), ("dead", "not used twice"), ("x", "already")):
        with pytest.raises(NameTaken, match=why):
            records.data.rename(MODEL, "x", name)
    assert visible(records) == before
    assert leftovers(records.tree.root) == []


def test_an_item_may_have_its_old_name_back(records: Records) -> None:
    for number in range(1, 3):
        records.data.save(MODEL, "a", b"%d" % number)
    records.data.rename(MODEL, "a", "b")
    records.data.save(MODEL, "b", b"3")
    records.data.rename(MODEL, "b", "a")
    assert visible(records) == {("main", "a", 1): b"1", ("main", "a", 2): b"2", ("main", "a", 3): b"3"}
    assert records.data.get(MODEL, "b").forwarded == ("b",)
    assert records.data.get(MODEL, "a").forwarded == ()


def test_what_is_saved_under_a_name_that_forwards_is_a_new_item(records: Records) -> None:
    old = records.data.save(MODEL, "a", b"1")
    records.data.rename(MODEL, "a", "b")
    new = records.data.save(MODEL, "a", b"2")
    assert (new.version, new.id == old.id) == (2, False)
    assert records.data.get(MODEL, "a").forwarded == ()
    assert records.data.read(records.data.get(MODEL, "b")) == b"1"


def test_a_name_forwards_five_times_and_then_says_that_it_is_too_often(records: Records) -> None:
    records.data.save(MODEL, "0", b"content")
    for number in range(5):
        records.data.rename(MODEL, str(number), str(number + 1))
    item = records.data.get(MODEL, "0")
    assert item.forwarded == ("0", "1", "2", "3", "4")
    assert records.data.read(item) == b"content"
    records.data.rename(MODEL, "5", "6")
    assert records.data.get(MODEL, "1").metadata.name == "6"
    with pytest.raises(TooManyRenames, match="more than 5 times") as raised:
        records.data.get(MODEL, "0")
    assert "bayou data list" in str(raised.value.hint)


def test_a_circle_that_two_machines_made_ends(records: Records) -> None:
    for name, target in (("a", "b"), ("b", "a")):
        mark = records.data.save(MODEL, name, b"")
        records.tree.write(
            mark.location.metadata, Metadata(**{**_fields(mark), "deleted": True, "renamed_to": target}).to_bytes()
        )
    with pytest.raises(TooManyRenames):
        records.data.get(MODEL, "a")


def _fields(metadata: Metadata) -> dict[str, Any]:
    return {name: getattr(metadata, name) for name in Metadata.__struct_fields__}


# Streaming


def test_streaming_data_grows_and_other_data_does_not(records: Records) -> None:
    records.data.save(MODEL, "log", b"one\n", streaming=True)
    assert records.data.append(MODEL, "log", b"two\n").size == 8
    grown = records.data.append(MODEL, "log", iter([b"three\n", b"four\n"]))
    assert (grown.version, grown.size, grown.sha256) == (1, 19, None)
    assert records.data.read(records.data.get(MODEL, "log")) == b"one\ntwo\nthree\nfour\n"
    assert [row.size for row in records.data.find()] == [19]
    records.data.save(MODEL, "fixed", b"one")
    with pytest.raises(NotStreaming, match="fixed of main"):
        records.data.append(MODEL, "fixed", b"two")
    assert records.data.read(records.data.get(MODEL, "fixed")) == b"one"


def test_what_a_killed_append_left_is_not_content_and_is_cut_off(records: Records) -> None:
    saved = records.data.save(MODEL, "log", b"one\n", streaming=True)
    with open(records.tree.root / saved.location.raw, "ab") as file:
        file.write(b"half of a li")
    item = records.data.get(MODEL, "log")
    assert records.data.read(item) == b"one\n"
    records.data.append(MODEL, "log", b"two\n")
    assert records.data.read(records.data.get(MODEL, "log")) == b"one\ntwo\n"
    assert (records.tree.root / saved.location.raw).read_bytes() == b"one\ntwo\n"


def test_an_append_that_fails_half_way_adds_nothing(records: Records) -> None:
    saved = records.data.save(MODEL, "log", b"one\n", streaming=True)

    def broken() -> Iterator[bytes]:
        yield b"two\n"
        raise ValueError("the program's own")

    with pytest.raises(ValueError, match="own"):
        records.data.append(MODEL, "log", broken())
    assert records.data.get(MODEL, "log").metadata == saved
    assert (records.tree.root / saved.location.raw).read_bytes() == b"one\n"


def test_data_that_has_lost_bytes_is_not_appended_to(records: Records) -> None:
    saved = records.data.save(MODEL, "log", b"one\n", streaming=True)
    os.truncate(records.tree.root / saved.location.raw, 2)
    with pytest.raises(ContentDamaged, match="has 2 bytes, and had 4"):
        records.data.append(MODEL, "log", b"two\n")
    assert (records.tree.root / saved.location.raw).read_bytes() == b"on"


def test_a_renamed_log_goes_on_under_both_names(records: Records) -> None:
    records.data.save(MODEL, "log", b"one\n", streaming=True)
    records.data.rename(MODEL, "log", "audit")
    assert records.data.append(MODEL, "log", b"two\n").name == "audit"
    records.data.append(MODEL, "audit", b"three\n")
    assert records.data.read(records.data.get(MODEL, "log")) == b"one\ntwo\nthree\n"


# Allocating and staging


def test_what_a_program_writes_in_place_becomes_a_version(records: Records) -> None:
    with records.data.allocate(MODEL, "big", tags={"a": "b"}) as room:
        room.path.write_bytes(b"{}")
        assert visible(records) == {}
        saved = room.finalize()
    assert (saved.version, saved.content_type, saved.tags) == (1, "application/json", {"a": "b"})
    assert visible(records) == {("main", "big", 1): b"{}"}
    assert leftovers(records.tree.root) == []


def test_what_is_not_finalized_never_was(records: Records) -> None:
    with records.data.allocate(MODEL, "big") as room:
        room.path.write_bytes(b"x")
    room = records.data.allocate(MODEL, "big")
    room.path.write_bytes(b"x")
    room.abandon()
    with pytest.raises(UsageError, match="no file was written"), records.data.allocate(MODEL, "big") as room:
        room.finalize()
    with records.data.allocate(MODEL, "big") as room:
        room.path.symlink_to("/etc/hostname")
        with pytest.raises(UsageError):
            room.finalize()
    assert visible(records) == {}
    assert leftovers(records.tree.root) == []
    assert records.data.save(MODEL, "big", b"").version == 1


def test_staged_versions_become_visible_together(records: Records) -> None:
    records.data.save(MODEL, "x", b"1")
    with records.data.stage() as stage:
        stage.save(MODEL, "x", b"2")
        stage.save(OTHER, "y", io.BytesIO(b"y"), tags={"a": "b"})
        stage.save(MODEL, "x", b"3")
        assert set(visible(records)) == {("main", "x", 1)}
        published = stage.publish()
        assert stage.publish() == []
    assert [(one.name, one.version, one.tags) for one in published] == [
        ("x", 2, {}),
        ("y", 1, {"a": "b"}),
        ("x", 3, {}),
    ]
    assert len({one.id for one in published if one.name == "x"} | {records.data.get(MODEL, "x", 1).metadata.id}) == 1
    assert visible(records)[("weekly", "y", 1)] == b"y"
    assert leftovers(records.tree.root) == []


def test_what_a_program_writes_in_place_waits_on_the_stage_with_the_rest(records: Records) -> None:
    with records.data.stage() as stage:
        with stage.allocate(MODEL, "big", tags={"a": "b"}) as file:
            file.write_bytes(b"in place")
        stage.save(MODEL, "summary", b"{}")
        assert visible(records) == {}
        published = stage.publish()
    assert [(one.name, one.version, one.tags) for one in published] == [("big", 1, {"a": "b"}), ("summary", 1, {})]
    assert visible(records)["main", "big", 1] == b"in place"
    assert leftovers(records.tree.root) == []


def test_room_that_is_not_filled_puts_nothing_on_the_stage(records: Records) -> None:
    with records.data.stage() as stage:
        with contextlib.suppress(ValueError), stage.allocate(MODEL, "half") as file:
            file.write_bytes(b"half")
            raise ValueError("the program's own")
        with pytest.raises(UsageError, match="no file was written"), stage.allocate(MODEL, "none"):
            pass
        stage.save(MODEL, "summary", b"{}")
        assert [one.name for one in stage.publish()] == ["summary"]
    assert leftovers(records.tree.root) == []


def test_what_is_staged_and_not_published_never_was(records: Records) -> None:
    with contextlib.suppress(ValueError), records.data.stage() as stage:
        stage.save(MODEL, "x", b"1")
        raise ValueError("the program's own")
    with records.data.stage() as stage:
        stage.save(MODEL, "x", b"1")
    assert visible(records) == {}
    assert leftovers(records.tree.root) == []


def test_a_save_whose_content_fails_leaves_nothing(records: Records) -> None:
    def broken() -> Iterator[bytes]:
        yield b"half"
        raise ValueError("the program's own")

    with pytest.raises(ValueError, match="own"):
        records.data.save(MODEL, "x", broken())
    assert leftovers(records.tree.root) == []
    assert records.data.save(MODEL, "x", b"").version == 1


# Damage


def test_content_that_is_not_what_was_saved_is_refused(records: Records) -> None:
    saved = records.data.save(MODEL, "x", b"right")
    raw = records.tree.root / saved.location.raw
    item = records.data.get(MODEL, "x")
    shared = records.tree.root.parent.name == ".bayou"
    proposed = "bayou datastore verify" if shared else "bayou data delete"
    for wrong in (b"wrong", b"right and more", b"righ", b""):
        raw.write_bytes(wrong)
        with pytest.raises(ContentDamaged, match="not what was saved") as raised:
            records.data.read(item)
        assert proposed in str(raised.value.hint)
        with records.data.open(item) as file, pytest.raises(ContentDamaged):
            shutil.copyfileobj(file, io.BytesIO(), 2)
    raw.write_bytes(b"right")
    assert records.data.read(item) == b"right"


def test_content_that_is_missing_in_a_directory_is_said_so(directory_repo: Repo) -> None:
    with Records(directory_repo) as records:
        saved = records.data.save(MODEL, "x", b"content")
        (records.tree.root / saved.location.raw).unlink()
        for call in (records.data.read, records.data.open, records.data.path):
            with pytest.raises(ContentDamaged, match="is missing") as raised:
                call(records.data.get(MODEL, "x"))
            assert "bayou data delete" in str(raised.value.hint)
        assert records.data.delete(MODEL, "x") == 1


def test_a_directory_that_is_not_mounted_is_no_reason_to_delete_a_version(directory_repo: Repo) -> None:
    with Records(directory_repo) as records:
        records.data.save(MODEL, "x", b"content")
        item = records.data.get(MODEL, "x")
        root = directory_repo.tree_root
        root.rename(root.with_name("unmounted"))
        with pytest.raises(ContentDamaged, match="is missing") as raised:
            records.data.open(item)
        assert raised.value.hint == f"there is no directory {root}: mount or create it"


def test_f121_metadata_that_does_not_parse_is_named_and_hides_nothing_else(records: Records) -> None:
    records.data.save(MODEL, "good", b"good")
    for number in range(1, 4):
        records.data.save(MODEL, "bad", b"%d" % number)
    path = f"data/net/vpc/{MODEL.id}/bad/3/metadata.yaml"
    records.tree.write(path, b"no: [record")
    records.catalog.refresh()
    assert [one.path for one in records.catalog.bad()] == [path]
    assert {(row.name, row.version) for row in records.data.find(all_versions=True)} == {
        ("good", 1),
        ("bad", 1),
        ("bad", 2),
    }
    for call in (lambda: records.data.get(MODEL, "bad"), lambda: records.data.rename(MODEL, "bad", "new")):
        with pytest.raises(RecordDamaged, match=r"bad/3/metadata.yaml|version 3 of bad"):
            call()
    assert records.data.read(records.data.get(MODEL, "bad", 2)) == b"2"
    assert records.data.save(MODEL, "bad", b"4").version == 4
    # One who asks for all of it to be deleted means the bad one too, and its number is not used again.
    assert records.data.delete(MODEL, "bad", 4) == 1
    assert records.data.delete(MODEL, "bad") == 3
    assert records.data.save(MODEL, "bad", b"5").version == 5


@pytest.mark.parametrize("field", ["id", "name", "version", "size", "owner", "created_at", "tags", "streaming"])
def test_metadata_with_a_wrong_field_is_named_with_the_field(field: str) -> None:
    good = Metadata("i", "n", 1, "t", 0, None, Owner("m", "i", "t", "r"), "2024-01-01T00:00:00.000Z")
    assert Metadata.from_document(good.to_document()) == good
    wrongs: tuple[object, ...] = ([], 1.5, {"a": 1})
    for wrong in wrongs:
        fields = {**good.to_document(), field: wrong}
        with pytest.raises(RecordDamaged, match=f"data/x: its {field}"):
            Metadata.from_document(fields, "data/x")
    assert Metadata.from_document({**good.to_document(), "of_a_later_bayou": 1}) == good


def test_where_metadata_lies_decides_whatever_stands_in_it(records: Records) -> None:
    saved = records.data.save(MODEL, "x", b"right")
    other = records.data.save(OTHER, "y", b"wrong")
    records.tree.write(saved.location.metadata, replace(other, sha256=saved.sha256).to_bytes())
    item = records.data.get(MODEL, "x")
    assert (item.metadata.name, item.path) == ("x", saved.location.raw)
    assert records.data.read(item) == b"right"
    assert [row.name for row in records.data.find(model=MODEL)] == ["x"]
    records.data.rename(MODEL, "x", "z")
    assert records.data.read(records.data.get(OTHER, "y")) == b"wrong"


def test_a_truth_value_is_no_version() -> None:
    good = Metadata("i", "n", 1, "t", 0, None, Owner("m", "i", "t", "r"), "2024-01-01T00:00:00.000Z")
    with pytest.raises(RecordDamaged, match="version"):
        Metadata.from_document({**good.to_document(), "version": True})


# What is not here


def test_lazy_content_is_fetched_when_it_is_read_renamed_or_appended_to(team: Team) -> None:
    a, b = team.clone("a"), team.clone("b", hydrate="lazy")
    with Records(a.repo) as records:
        for number in range(3):
            records.data.save(MODEL, "x", b"%d" % number)
        records.data.save(MODEL, "log", b"one\n", streaming=True)
    a.push()
    b.pull()
    with Records(b.repo) as records:
        item = records.data.get(MODEL, "x")
        assert not (records.tree.root / item.path).exists()
        assert records.data.path(item).read_bytes() == b"2"
        records.data.append(MODEL, "log", b"two\n")
        records.data.rename(MODEL, "x", "y")
    b.push()
    fresh = team.clone("fresh")
    fresh.pull()
    with Records(fresh.repo) as records:
        assert visible(records) == {
            ("main", "y", 1): b"0",
            ("main", "y", 2): b"1",
            ("main", "y", 3): b"2",
            ("main", "log", 1): b"one\ntwo\n",
        }


def test_lazy_content_is_not_fetched_offline_and_that_is_said(team: Team) -> None:
    a, b = team.clone("a"), team.clone("b", hydrate="lazy")
    with Records(a.repo) as records:
        records.data.save(MODEL, "x", b"content")
    a.push()
    b.pull()
    with Records(Repo(b.repo.root, b.repo.config, offline=True)) as records:
        with pytest.raises(RecordError, match="not here, and this is offline") as raised:
            records.data.read(records.data.get(MODEL, "x"))
        assert "bayou datastore hydrate" in str(raised.value.hint)


def test_a_file_that_was_lost_here_is_fetched_by_whoever_reads_it(team: Team) -> None:
    a = team.clone("a")
    with Records(a.repo) as records:
        saved = records.data.save(MODEL, "x", b"content")
        a.push()
        (records.tree.root / saved.location.raw).unlink()
        assert records.data.read(records.data.get(MODEL, "x")) == b"content"
        records.tree.delete(saved.location.raw)  # what somebody deleted stays deleted
        with pytest.raises(ContentDamaged, match="is missing"):
            records.data.read(records.data.get(MODEL, "x"))


@pytest.mark.parametrize("knows", ["base", "catalog"])
def test_a_number_that_only_base_or_the_catalog_knows_is_not_used_again(
    team: Team, monkeypatch: pytest.MonkeyPatch, knows: str
) -> None:
    a = team.clone("a")
    with Records(a.repo) as records:
        for _ in range(3):
            records.data.save(MODEL, "x", b"old")
    a.push()
    shutil.rmtree(a.repo.tree_root / "data")  # somebody tidied up, by hand
    if knows == "base":
        (a.repo.root / ".bayou" / "catalog.db").unlink()
    with Records(a.repo) as records:
        if knows == "catalog":
            monkeypatch.setattr(records.sync, "known", lambda prefix: set())
        else:
            assert records.catalog.highest(MODEL.id, "x") == 0
        assert records.data.save(MODEL, "x", b"new").version == 4


def test_data_known_by_its_row_alone_can_be_told_of(team: Team) -> None:
    a = team.clone("a")
    with Records(a.repo) as records:
        saved = records.data.save(MODEL, "x", b"content")
    a.push()
    for file in (saved.location.metadata, saved.location.raw):
        (a.repo.tree_root / file).unlink()
    with Records(a.repo) as records:
        assert records.data.get(MODEL, "x").metadata == saved
        assert records.data.get(MODEL, "x", 1).metadata == saved
        assert records.data.read(records.data.get(MODEL, "x")) == b"content"


def test_f040_only_the_resolved_tree_of_the_repo_is_touched(directory_repo: Repo, tmp_path: Path) -> None:
    default = directory_repo.root / ".bayou" / "tree"
    default.mkdir()
    default.chmod(0)
    try:
        with Records(directory_repo) as records:
            records.data.save(MODEL, "x", b"1", streaming=True)
            records.data.append(MODEL, "x", b"2")
            records.data.rename(MODEL, "x", "y")
            with records.data.stage() as stage:
                stage.save(MODEL, "z", b"3")
                stage.publish()
            records.data.delete(MODEL, "z")
            assert visible(records) == {("main", "y", 1): b"12"}
    finally:
        default.chmod(0o700)
    assert list(default.iterdir()) == []
    assert in_tree(tmp_path / "shared")


def test_a_model_of_the_same_id_and_another_type_is_another_model(records: Records) -> None:
    twin = ModelRef("report", MODEL.id, "twin")
    records.data.save(MODEL, "x", b"1")
    records.data.save(MODEL, "x", b"2")
    assert records.data.save(twin, "x", b"3").version == 1
    assert records.data.read(records.data.get(twin, "x")) == b"3"
    assert [row.version for row in records.data.versions(twin, "x")] == [1]
    assert records.data.delete(twin, "x") == 1
    assert records.data.read(records.data.get(MODEL, "x")) == b"2"
