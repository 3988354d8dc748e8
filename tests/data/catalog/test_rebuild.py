"""A catalog that is missing, damaged or of another Bayou is made anew, and drops no row of what it cannot see (V20)."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from bayou.data.catalog import Catalog
from bayou.data.catalog.derive import version_row
from bayou.data.catalog.schema import INDEXES
from bayou.data.records import Records
from bayou.repo import Repo, open_repo
from bayou.sync.service import Datastore
from tests.data.catalog.scene import (
    REPORT,
    VPC,
    brief,
    catalog_of,
    delete,
    files,
    listed,
    metadata,
    output_file,
    run_file,
    write,
)
from tests.sync.conftest import Team, Wire, wire
from tests.trusting import trust

__all__ = ["wire"]


def database(repo: Repo) -> Path:
    return repo.root / ".bayou" / "catalog.db"


def test_no_two_indexes_are_equal():
    indexed = [statement.partition(" ON ")[2] for statement in INDEXES.values()]

    assert len(indexed) == len(set(indexed))


def remove(path: Path) -> None:
    path.unlink()


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def truncate_to_nothing(path: Path) -> None:
    os.truncate(path, 0)


def fill_with_garbage(path: Path) -> None:
    path.write_bytes(b"this is no database at all\n" * 500)


def spoil_the_rows(path: Path) -> None:
    """Leave the schema readable and every other page not."""
    data = bytearray(path.read_bytes())
    page = int.from_bytes(data[16:18])
    data[page:] = b"\xa5" * (len(data) - page)
    path.write_bytes(bytes(data))


def make_older(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 0")
        db.execute("ALTER TABLE version DROP COLUMN repo")
        db.execute("DROP TABLE folder")
    db.close()


def make_newer(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
        db.execute("ALTER TABLE version ADD COLUMN colour TEXT")
        db.execute("CREATE TABLE later (thing TEXT)")
    db.close()


DAMAGES = {
    remove: "was missing",
    truncate: "was damaged",
    truncate_to_nothing: "was empty",
    fill_with_garbage: "was damaged",
    spoil_the_rows: "was damaged",
    make_older: "was of an older Bayou",
    make_newer: "was of a newer Bayou",
}


@pytest.mark.parametrize(("damage", "why"), DAMAGES.items(), ids=[one.__name__ for one in DAMAGES])
def test_f115_a_damaged_catalog_answers_right_and_says_once_that_it_was_rebuilt(
    repo: Repo, damage: Callable[[Path], None], why: str
) -> None:
    write(repo, *(metadata(VPC, f"item-{number}", version) for number in range(40) for version in (1, 2, 3)))
    with Datastore(repo) as datastore:
        datastore.tree.write_many([output_file(VPC, "o-1"), run_file("deploy", "01JA", "succeeded")])
    expected = listed(repo)
    assert len(expected) == 40
    damage(database(repo))
    with catalog_of(repo) as catalog:
        assert catalog.refresh().line == f"the catalog {why}: rebuilt, 122 rows"
        assert brief(catalog.find()) == expected
        assert len(catalog.find(all_versions=True)) == 120
        assert [output.id for output in catalog.outputs(VPC.id)] == ["o-1"]
        assert catalog.runs()[1] == 1
        assert catalog.refresh().line is None
    with catalog_of(repo) as catalog:
        assert catalog.refresh().line is None


@pytest.mark.parametrize("damage", [remove, truncate, fill_with_garbage, spoil_the_rows], ids=lambda one: one.__name__)
def test_f115_damage_that_a_question_meets_first_is_mended_before_it_is_answered(
    repo: Repo, damage: Callable[[Path], None]
) -> None:
    write(repo, *(metadata(VPC, f"item-{number}", 1) for number in range(200)))
    assert len(listed(repo)) == 200
    damage(database(repo))
    with catalog_of(repo) as catalog:
        assert len(catalog.find()) == 200


def test_a_catalog_that_is_removed_under_an_open_one_is_made_anew(repo: Repo) -> None:
    write(repo, metadata(VPC, "state", 1))
    with catalog_of(repo) as catalog:
        catalog.refresh()
        database(repo).unlink()
        assert brief(catalog.find()) == ["main-vpc/state/1"]
        assert database(repo).exists()


@pytest.mark.parametrize("damage", [remove, fill_with_garbage], ids=lambda one: one.__name__)
def test_a_program_that_does_not_let_go_of_a_lost_catalog_keeps_nobody_from_an_answer(
    repo: Repo, damage: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bayou.data.catalog.database.EXCLUSIVE_TIMEOUT_S", 0.05)
    write(repo, metadata(VPC, "state", 1))
    with catalog_of(repo) as idle:
        idle.refresh()
        damage(database(repo))
        with catalog_of(repo) as catalog:
            assert brief(catalog.find()) == ["main-vpc/state/1"]
            write(repo, metadata(VPC, "state", 2))
            assert catalog.refresh().changed == 1
            assert brief(catalog.find()) == ["main-vpc/state/2"]
    with catalog_of(repo) as catalog:
        assert catalog.refresh().rebuilt is not None
        assert brief(catalog.find()) == ["main-vpc/state/2"]


def test_a_writer_needs_no_catalog_that_was_ever_filled(repo: Repo) -> None:
    write(repo, metadata(VPC, "state", 1))
    second = metadata(VPC, "state", 2)
    write(repo, second)
    with catalog_of(repo) as catalog:
        catalog.change(put=[version_row(second.location.metadata, second)])
        assert brief(catalog.find(all_versions=True)) == ["main-vpc/state/1", "main-vpc/state/2"]


@pytest.mark.parametrize("damage", [make_older, make_newer, remove], ids=lambda one: one.__name__)
def test_f111_a_rebuild_on_a_lazy_tree_loses_no_row(team: Team, damage: Callable[[Path], None]) -> None:
    theirs, lazy = team.clone("theirs"), team.clone("lazy", hydrate="lazy")
    write(theirs.repo, metadata(VPC, "state", 1), metadata(VPC, "state", 2), metadata(REPORT, "summary", 1))
    theirs.push()
    lazy.pull()
    before = listed(lazy.repo, all_versions=True)
    assert len(before) == 3
    assert not any(path.endswith("/raw") for path in lazy.files)
    damage(database(lazy.repo))
    assert listed(lazy.repo, all_versions=True) == before


@pytest.mark.parametrize("damage", [make_older, make_newer], ids=lambda one: one.__name__)
def test_f111_a_rebuild_keeps_rows_that_only_the_catalog_knows(team: Team, damage: Callable[[Path], None]) -> None:
    theirs, ours = team.clone("theirs"), team.clone("ours")
    write(theirs.repo, metadata(VPC, "state", 1), metadata(REPORT, "summary", 1))
    theirs.push()
    with Datastore(ours.repo) as datastore:
        datastore.sync.pull_changed([VPC])
    elsewhere = metadata(REPORT, "summary", 1)
    with catalog_of(ours.repo) as catalog:
        catalog.refresh()
        catalog.change(put=[version_row(elsewhere.location.metadata, elsewhere)])
    damage(database(ours.repo))
    assert listed(ours.repo) == ["main-vpc/state/1", "weekly/summary/1"]
    assert elsewhere.location.metadata not in ours.files


def test_a_row_that_an_older_catalog_kept_is_dropped_once_the_journal_says_that_it_is_deleted(team: Team) -> None:
    ours = team.clone("ours")
    made = metadata(VPC, "state", 1)
    write(ours.repo, made, metadata(VPC, "other", 1))
    assert len(listed(ours.repo)) == 2
    delete(ours.repo, made)
    make_older(database(ours.repo))
    assert listed(ours.repo) == ["main-vpc/other/1"]


def test_a_row_that_an_older_catalog_kept_is_dropped_once_base_has_all_there_is(team: Team) -> None:
    """A catalog that has not looked for so long that nobody can tell it what changed."""
    theirs, ours = team.clone("theirs"), team.clone("ours")
    made = metadata(VPC, "state", 1)
    write(theirs.repo, made, metadata(VPC, "other", 1))
    theirs.push()
    ours.pull()
    assert len(listed(ours.repo)) == 2
    delete(theirs.repo, made)
    theirs.push()
    ours.pull()
    with sqlite3.connect(database(ours.repo)) as db:
        db.execute("DELETE FROM meta WHERE key = 'position'")
        db.execute("PRAGMA user_version = 0")
    db.close()
    assert listed(ours.repo) == ["main-vpc/other/1"]


def test_lost_nodes_of_base_are_no_reason_to_answer_wrong(team: Team) -> None:
    theirs, ours = team.clone("theirs"), team.clone("ours")
    write(theirs.repo, metadata(VPC, "state", 1))
    theirs.push()
    ours.pull()
    assert listed(ours.repo) == ["main-vpc/state/1"]
    write(theirs.repo, metadata(VPC, "state", 2))
    theirs.push()
    ours.pull()
    shutil.rmtree(ours.repo.state / "nodes")
    with catalog_of(ours.repo) as catalog:
        assert catalog.refresh().rebuilt == "had lost track of the tree"
        assert brief(catalog.find()) == ["main-vpc/state/2"]


def test_f112_metadata_without_content_is_listed_without_a_request(team: Team, wire: Wire) -> None:
    theirs, lazy = team.clone("theirs"), team.clone("lazy", hydrate="lazy")
    with Records(theirs.repo) as records:
        records.data.save(VPC, "state", b'{"cidr": "10.0.0.0/16"}')
    theirs.push()
    lazy.pull()
    wire.seen.clear()
    assert listed(lazy.repo) == ["main-vpc/state/1"]
    assert wire.seen == []


def test_another_datastore_has_another_catalog(team: Team, tmp_path: Path) -> None:
    ours = team.clone("ours")
    write(ours.repo, metadata(VPC, "state", 1))
    assert listed(ours.repo) == ["main-vpc/state/1"]
    (tmp_path / "shared").mkdir()
    text = ours.repo.file.read_text()
    ours.repo.file.write_text(text.replace(f'url = "{team.url}"', f'path = "{tmp_path / "shared"}"'))
    trust(ours.repo.root)
    there = open_repo(ours.repo.root)
    assert listed(there) == []
    write(there, metadata(REPORT, "summary", 1))
    assert listed(there) == ["weekly/summary/1"]
    ours.repo.file.write_text(text)
    with catalog_of(ours.repo) as catalog:
        assert catalog.refresh().rebuilt == "was of another datastore"
        assert brief(catalog.find()) == ["main-vpc/state/1"]


def test_a_volume_that_is_not_mounted_costs_no_row(directory_repo: Repo) -> None:
    root = directory_repo.tree_root
    write(directory_repo, metadata(VPC, "state", 1))
    assert listed(directory_repo) == ["main-vpc/state/1"]
    away = root.with_name("away")
    root.rename(away)
    assert listed(directory_repo) == ["main-vpc/state/1"]
    root.mkdir()
    assert listed(directory_repo) == ["main-vpc/state/1"]
    root.rmdir()
    away.rename(root)
    with catalog_of(directory_repo) as catalog:
        assert catalog.refresh().changed == 0
        assert brief(catalog.find()) == ["main-vpc/state/1"]


def test_a_new_repo_has_nothing_to_tell(repo: Repo) -> None:
    with catalog_of(repo) as catalog:
        assert catalog.refresh().line is None
        assert catalog.find() == []


def test_a_catalog_that_cannot_be_written_is_an_error_that_says_so(directory_repo: Repo) -> None:
    from bayou.core.errors import StateError

    assert directory_repo.catalog == database(directory_repo)  # which is this user's now
    database(directory_repo).mkdir()
    with catalog_of(directory_repo) as catalog, pytest.raises(StateError, match=r"catalog\.db"):
        catalog.refresh()


def test_the_files_of_a_version_come_in_any_order(directory_repo: Repo) -> None:
    """A version is there if and only if its metadata is; a claimed number without any is seen when that comes."""
    made = metadata(VPC, "state", 1)
    (raw, content), (path, text) = files(made)
    with Datastore(directory_repo) as datastore:
        datastore.tree.write(raw, content)
    assert listed(directory_repo) == []
    with Datastore(directory_repo) as datastore:
        datastore.tree.write(path, text)
    assert listed(directory_repo) == ["main-vpc/state/1"]
    with Datastore(directory_repo) as datastore:
        datastore.tree.delete(path)
    assert listed(directory_repo) == []
    with Datastore(directory_repo) as datastore:
        datastore.tree.write(path, text)
    assert listed(directory_repo) == ["main-vpc/state/1"]


def test_names_that_look_like_versions_are_names(repo: Repo) -> None:
    write(repo, metadata(VPC, "5", 3), metadata(VPC, "5", 4), metadata(VPC, "übung 1.2", 1))
    assert listed(repo) == ["main-vpc/5/4", "main-vpc/übung 1.2/1"]
    database(repo).unlink()
    assert listed(repo) == ["main-vpc/5/4", "main-vpc/übung 1.2/1"]


def test_catalogs_do_not_mind_being_closed_twice(repo: Repo) -> None:
    with Datastore(repo) as datastore:
        catalog = Catalog(datastore.connection, datastore.tree)
        catalog.refresh()
        catalog.close()
        catalog.close()
        assert catalog.find() == []
        catalog.close()
