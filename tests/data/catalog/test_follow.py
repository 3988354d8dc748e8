"""The catalog follows the tree: writes, deletes and pulls, also where a process died before it told of them."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from bayou.data.catalog import derive
from bayou.data.records import Records
from bayou.repo import Repo
from bayou.sync.service import Datastore
from bayou.worktree.hashing import FileStat
from tests.data.catalog.scene import (
    REPORT,
    VPC,
    age,
    brief,
    catalog_of,
    delete,
    listed,
    metadata,
    output_file,
    run_file,
    write,
)
from tests.sync.conftest import Team


def test_what_a_repository_saves_is_listed_and_needs_no_catching_up(repo: Repo) -> None:
    with Records(repo) as records:
        records.data.save(VPC, "state", b"{}")
        records.data.save(VPC, "state", b"[]")
        assert brief(records.data.find()) == ["main-vpc/state/2"]
    with catalog_of(repo) as catalog:
        assert catalog.refresh().line is None
        assert brief(catalog.find(all_versions=True)) == ["main-vpc/state/1", "main-vpc/state/2"]


def test_the_row_that_a_write_makes_is_the_row_that_a_rebuild_makes(repo: Repo) -> None:
    with Records(repo) as records:
        records.data.save(VPC, "state", b"{}", tags={"env": "prod"}, lifetime="7d", keep="3", streaming=True)
        before = records.catalog.find()
    (repo.root / ".bayou" / "catalog.db").unlink()
    with catalog_of(repo) as catalog:
        assert catalog.refresh().rebuilt == "was missing"
        assert catalog.find() == before


def test_f115_a_file_whose_row_was_never_written_is_caught_up_with_and_said_so(repo: Repo) -> None:
    assert listed(repo) == []
    write(repo, metadata(VPC, "state", 1), metadata(VPC, "state", 2))
    with catalog_of(repo) as catalog:
        assert catalog.refresh().line == "the catalog caught up with 2 changes"
        assert brief(catalog.find()) == ["main-vpc/state/2"]
        assert catalog.refresh().line is None


def test_f115_a_deleted_file_whose_row_stayed_is_caught_up_with(repo: Repo) -> None:
    first, second = metadata(VPC, "state", 1), metadata(VPC, "state", 2)
    write(repo, first, second)
    assert listed(repo) == ["main-vpc/state/2"]
    delete(repo, second)
    assert listed(repo) == ["main-vpc/state/1"]


def test_a_deleted_version_is_never_the_latest_and_its_number_stays_known(repo: Repo) -> None:
    write(repo, metadata(VPC, "state", 1), metadata(VPC, "state", 2, deleted=True))
    with catalog_of(repo) as catalog:
        catalog.refresh()
        assert brief(catalog.find()) == brief(catalog.find(all_versions=True)) == ["main-vpc/state/1"]
        assert [(row.version, row.latest, row.deleted) for row in catalog.versions(VPC.id, "state")] == [
            (1, True, False),
            (2, False, True),
        ]
        assert catalog.highest(VPC.id, "state") == 2
        latest = catalog.latest(VPC.id, "state")
        assert latest is not None
        assert latest.version == 1


def test_rows_can_be_found_by_name_id_tag_model_type_and_run(repo: Repo) -> None:
    made = metadata(VPC, "state", 1, tags={"env": "prod", "a.b": 'quote"d'})
    write(repo, made, metadata(REPORT, "state", 1, tags={"env": "test"}), metadata(REPORT, "summary", 3))
    with catalog_of(repo) as catalog:
        catalog.refresh()
        for filters in (
            {"id": made.id, "model": VPC.name},
            {"tags": {"env": "prod"}},
            {"tags": {"a.b": 'quote"d', "env": "prod"}},
            {"model": VPC.name},
            {"model": VPC.id},
            {"type": "aws/ec2/vpc"},
        ):
            assert brief(catalog.find(**filters)) == ["main-vpc/state/1"], filters
        assert brief(catalog.find(name="state")) == ["main-vpc/state/1", "weekly/state/1"]
        assert catalog.find(type="aws/ec2") == []
        assert catalog.find(tags={"env": "staging"}) == []


def test_nothing_is_written_to_the_catalog_while_nothing_changes(repo: Repo) -> None:
    write(repo, metadata(VPC, "state", 1))
    with catalog_of(repo) as catalog:
        catalog.refresh()
    if repo.config.datastore.url is None:
        age(repo)
        assert listed(repo) == ["main-vpc/state/1"]
    with catalog_of(repo) as catalog:
        before = catalog._file.read(lambda db: db.execute("PRAGMA data_version").fetchone())
        total = catalog._file.read(lambda db: db.total_changes)
        assert catalog.refresh().changed == 0
        assert catalog._file.read(lambda db: (db.total_changes, db.execute("PRAGMA data_version").fetchone())) == (
            total,
            before,
        )


def test_a_pull_brings_rows_and_takes_those_that_a_peer_deleted(team: Team) -> None:
    ours, theirs = team.clone("ours"), team.clone("theirs")
    first, second = metadata(VPC, "state", 1), metadata(VPC, "state", 2)
    write(theirs.repo, first, second)
    theirs.push()
    ours.pull()
    assert listed(ours.repo) == ["main-vpc/state/2"]
    delete(theirs.repo, second)
    write(theirs.repo, metadata(REPORT, "summary", 1))
    theirs.push()
    assert listed(ours.repo) == ["main-vpc/state/2"]
    ours.pull()
    with catalog_of(ours.repo) as catalog:
        assert catalog.refresh().changed == 2
        assert brief(catalog.find()) == ["main-vpc/state/1", "weekly/summary/1"]


def test_f110_a_pull_of_one_model_lists_its_data_and_outputs_without_a_rebuild(team: Team) -> None:
    ours, theirs = team.clone("ours"), team.clone("theirs")
    write(theirs.repo, metadata(VPC, "state", 1), metadata(REPORT, "summary", 1))
    theirs.write_all(dict([output_file(VPC, "o-1"), output_file(REPORT, "o-2")]))
    theirs.push()
    assert listed(ours.repo) == []
    with Datastore(ours.repo) as datastore:
        datastore.sync.pull_changed([VPC])
    with catalog_of(ours.repo) as catalog:
        refreshed = catalog.refresh()
        assert (refreshed.rebuilt, refreshed.changed) == (None, 2)
        assert brief(catalog.find()) == ["main-vpc/state/1"]
        assert [output.id for output in catalog.outputs(VPC.id)] == ["o-1"]
        assert catalog.outputs(REPORT.id) == []


def test_f116_a_fresh_clone_finds_a_run_with_the_status_that_it_has_each_time(team: Team) -> None:
    writer, peer, fresh = team.clone("writer"), team.clone("peer"), team.clone("fresh")
    writer.write(*run_file("deploy", "01JRUN", "running"))
    writer.push()
    fresh.pull()
    with catalog_of(fresh.repo) as catalog:
        catalog.refresh()
        assert [run.run_id for run in catalog.runs(status="running")[0]] == ["01JRUN"]
        assert catalog.runs(status="failed") == ([], 0)
    peer.pull()
    peer.write(*run_file("deploy", "01JRUN", "failed", failed_step="plan", finished_at="2026-02-01T11:00:00.000Z"))
    peer.push()
    fresh.pull()
    with catalog_of(fresh.repo) as catalog:
        catalog.refresh()
        assert catalog.runs(status="running") == ([], 0)
        (run,), total = catalog.runs(status="failed")
        assert (run.run_id, run.failed_step, total) == ("01JRUN", "plan", 1)


def test_runs_are_searched_by_text_time_workflow_and_tag_and_counted_beyond_the_limit(repo: Repo) -> None:
    jobs = [{"name": "build", "steps": [{"name": "compile", "status": "failed", "error": "No space left"}]}]
    with Datastore(repo) as datastore:
        datastore.tree.write_many(
            [
                run_file("deploy", "01JA", "succeeded", tags={"team": "core"}, inputs={"region": "eu-1"}),
                run_file("deploy", "01JB", "failed", started_at="2026-03-01T00:00:00.000Z", jobs=jobs),
                run_file("backup", "01JC", "succeeded", started_at="2026-04-01T00:00:00.000Z"),
            ]
        )
    with catalog_of(repo) as catalog:
        catalog.refresh()

        def found(**filters: Any) -> tuple[list[str], int]:
            runs, total = catalog.runs(**filters)
            return [run.run_id for run in runs], total

        assert found() == (["01JC", "01JB", "01JA"], 3)
        assert found(limit=1) == (["01JC"], 3)
        assert found(text="no SPACE") == (["01JB"], 1)
        assert found(text="01jc") == (["01JC"], 1)
        assert found(text="eu-1") == (["01JA"], 1)
        assert found(text="100%") == ([], 0)
        assert found(since="2026-03-01T00:00:00.000Z") == (["01JC", "01JB"], 2)
        assert found(workflow="deploy", tags={"team": "core"}) == (["01JA"], 1)
        assert found(workflow="backup-id") == (["01JC"], 1)
        run = catalog.run("01JB")
        assert run is not None
        assert run.workflow == "deploy"


def test_a_change_that_is_taken_back_and_pushed_is_taken_back_in_the_catalog(team: Team) -> None:
    """Base is what it was, and the journal is empty again: only the rows that are gone from it tell."""
    ours = team.clone("ours")
    made = metadata(VPC, "state", 1)
    write(ours.repo, made)
    ours.push()
    ours.write(made.location.metadata, metadata(VPC, "state", 1, tags={"draft": "yes"}).to_bytes())
    assert listed(ours.repo, tags={"draft": "yes"}) == ["main-vpc/state/1"]
    ours.write(made.location.metadata, made.to_bytes())
    ours.push()
    assert listed(ours.repo, tags={"draft": "yes"}) == []


def test_a_version_that_came_and_went_between_two_pushes_goes_from_the_catalog(team: Team) -> None:
    """Base never knew of it, and the push forgets the rows that did."""
    ours = team.clone("ours")
    write(ours.repo, metadata(VPC, "kept", 1))
    ours.push()
    made = metadata(VPC, "state", 1)
    write(ours.repo, made)
    assert listed(ours.repo) == ["main-vpc/kept/1", "main-vpc/state/1"]
    delete(ours.repo, made)
    ours.push()
    with catalog_of(ours.repo) as catalog:
        assert catalog.refresh().line == "the catalog caught up with 1 change"
        assert brief(catalog.find()) == ["main-vpc/kept/1"]


def test_two_changes_within_one_step_of_a_clock_are_both_seen(directory_repo: Repo) -> None:
    """The second leaves the directory's mtime as the first one did."""
    first, second = metadata(VPC, "state", 1), metadata(VPC, "state", 2)
    write(directory_repo, first)
    folder = directory_repo.tree_root / first.location.item
    moment = folder.stat().st_mtime_ns
    assert listed(directory_repo) == ["main-vpc/state/1"]
    write(directory_repo, second)
    os.utime(folder, ns=(moment, moment))
    assert listed(directory_repo) == ["main-vpc/state/2"]


def test_a_write_under_way_while_the_catalog_looks_is_seen_by_the_next_look(team: Team) -> None:
    ours = team.clone("ours")
    made = metadata(VPC, "state", 1)
    assert listed(ours.repo) == []
    with Datastore(ours.repo) as datastore, datastore.tree.writing(made.location.metadata) as file:
        assert listed(ours.repo) == []
        file.write(made.to_bytes())
    assert listed(ours.repo) == ["main-vpc/state/1"]


@pytest.mark.parametrize("marked", ["data/aws/ec2/vpc", None], ids=["directory", "everything"])
def test_what_a_program_writes_by_itself_below_a_mark_is_found(team: Team, marked: str | None) -> None:
    ours = team.clone("ours")
    kept, made = metadata(VPC, "kept", 1), metadata(VPC, "state", 1)
    write(ours.repo, kept)
    assert listed(ours.repo) == ["main-vpc/kept/1"]
    with Datastore(ours.repo) as datastore:
        mark = datastore.sync.mark_dirty(marked)
        assert listed(ours.repo) == ["main-vpc/kept/1"]
        ours.lay(made.location.metadata, made.to_bytes())
        assert listed(ours.repo) == ["main-vpc/kept/1", "main-vpc/state/1"]
        mark.done()
    with catalog_of(ours.repo) as catalog:
        assert catalog.refresh().changed == 0
        assert catalog.refresh().changed == 0


def test_an_unchanged_record_is_not_read_again_although_its_inode_is_beyond_2_63(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mergerfs and CIFS have such inodes."""
    of, read = FileStat.of, derive._read_file

    def large(status: os.stat_result) -> FileStat:
        names = ("st_size", "st_mtime_ns", "st_ctime_ns")
        given = {name: getattr(status, name) for name in names}
        return of(SimpleNamespace(**given, st_ino=2**64 - status.st_ino))  # type: ignore[arg-type]

    monkeypatch.setattr(FileStat, "of", large)
    opened: list[str] = []
    monkeypatch.setattr(derive, "_read_file", lambda spot, most: opened.append(spot.path) or read(spot, most))
    ours = team.clone("ours")
    write(ours.repo, metadata(VPC, "state", 1))
    age(ours.repo)
    with Datastore(ours.repo) as datastore:
        mark = datastore.sync.mark_dirty(None)
        assert listed(ours.repo) == ["main-vpc/state/1"]
        assert opened
        opened.clear()
        assert listed(ours.repo) == ["main-vpc/state/1"]
        mark.done()
    assert not opened


def test_a_state_directory_that_was_made_anew_is_noticed_although_its_journal_looks_alike(team: Team) -> None:
    ours = team.clone("ours")
    write(ours.repo, metadata(VPC, "state", 1))
    assert listed(ours.repo) == ["main-vpc/state/1"]
    ours.lose_state()
    write(ours.repo, metadata(VPC, "other", 1))
    assert listed(ours.repo) == ["main-vpc/other/1", "main-vpc/state/1"]


@pytest.mark.parametrize("many", [False, True], ids=["few versions", "many versions"])
def test_a_directory_tells_of_every_change_that_bayou_makes(
    directory_repo: Repo, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    """Of many versions only those are looked at that can change in place."""
    if many:
        monkeypatch.setattr("bayou.data.catalog.follow_directory.MOST_COMPARED", 0)
    made = [metadata(VPC, name, version) for name in ("a", "b") for version in (1, 2, 3)]
    write(directory_repo, *made)
    age(directory_repo)

    def versions() -> list[str]:
        age(directory_repo)
        return listed(directory_repo, all_versions=True)

    every = [f"main-vpc/{name}/{version}" for name in "ab" for version in (1, 2, 3)]
    assert versions() == every
    delete(directory_repo, made[1])
    assert versions() == [every[0], *every[2:]]
    write(directory_repo, metadata(VPC, "a", 3, deleted=True))
    assert versions() == [every[0], *every[3:]]
    write(directory_repo, metadata(VPC, "a", 1, size=77))
    with catalog_of(directory_repo) as catalog:
        catalog.refresh()
        latest = catalog.latest(VPC.id, "a")
        assert latest is not None
        assert (latest.version, latest.size) == (1, 77)
    write(directory_repo, metadata(VPC, "b", 4))
    assert versions() == [every[0], *every[3:], "main-vpc/b/4"]
    delete(directory_repo, *made[3:], metadata(VPC, "b", 4))
    assert versions() == [every[0]]
    with catalog_of(directory_repo) as catalog:
        assert catalog.refresh().changed == 0
