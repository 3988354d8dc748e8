"""Collection, on real trees: what is told is what goes, and nothing goes by itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from bayou.data.layout import ModelRef
from bayou.data.records import Records
from bayou.data.retention import plan_gc, run_gc
from bayou.data.runs import Run
from bayou.repo import Repo, init_repo
from tests import api
from tests.data.retention.conftest import LATER, WEB, Clone, Team, collected, planned, put, size, versions
from tests.maintenance.setups import set_up

RUN = "01JCQ7S9Z5T8A1B2C3D4E5F6G7"


@pytest.fixture
def repo(tmp_path) -> Repo:
    """A repo whose datastore is its own directory."""
    return init_repo(tmp_path / "repo")


def test_f117_no_write_deletes_anything(team: Team, tmp_path):
    """Upgrading, moving and syncing count as writes too: a cap is applied when somebody asks for it."""
    clone = team.clone("A")
    put(clone.repo, "n", *[b"%d" % number for number in range(12)])
    put(clone.repo, "n", b"last", keep="3", lifetime="10m")
    everything = list(range(1, 14))

    clone.sync()
    assert versions(clone.repo, "n") == everything
    (tmp_path / "elsewhere").mkdir()
    set_up(clone, Team(tmp_path, (tmp_path / "elsewhere").as_uri(), {}))
    clone.sync()
    put(clone.repo, "n", b"one more", keep="3")
    clone.sync()
    fresh = Team(tmp_path, (tmp_path / "elsewhere").as_uri(), {}).clone("B")
    fresh.pull()

    assert versions(clone.repo, "n") == versions(fresh.repo, "n") == [*everything, 14]
    assert len(collected(clone.repo, LATER).versions) == 11
    assert versions(clone.repo, "n") == [11, 12, 14]
    clone.push()
    fresh.pull()
    assert versions(fresh.repo, "n") == [11, 12, 14]


@pytest.mark.parametrize("kind", ["one", "one/two", "one/two/three"])
def test_f120_the_preview_is_the_run_and_bytes_are_bytes_freed(repo, kind):
    model = ModelRef(kind, WEB.id, "web")
    put(repo, "surplus", b"x" * 1000, b"y" * 2000, b"z", model=model, keep="1")
    put(repo, "expired", b"x" * 500, b"y" * 700, model=model, lifetime="10m")
    put(repo, "kept", b"stays", model=model)

    plan = planned(repo, LATER)
    before = size(repo)
    gone = collected(repo, LATER)

    assert plan == gone
    assert (plan.expired, len(plan.versions)) == (2, 4)
    assert gone.bytes == before - size(repo)
    assert gone.bytes > 1000 + 2000 + 500 + 700
    assert versions(repo, "surplus", model) == [3]
    assert versions(repo, "expired", model) == []
    assert collected(repo, LATER).versions == ()


@pytest.mark.s3
@pytest.mark.usefixtures("loose_objects")  # of packs, a compaction frees the bytes: tests/maintenance/test_compact.py
def test_f120_what_is_freed_here_is_freed_in_the_store_after_the_grace(s3_team: Team):
    clone = s3_team.clone("A")
    put(clone.repo, "surplus", b"x" * 1000, b"y" * 2000, b"z", keep="1")
    put(clone.repo, "expired", b"x" * 500, b"y" * 700, lifetime="10m")
    clone.sync()
    before = sum(s3_team.keys()[key] for key in s3_team.payload_keys())

    gone = collected(clone.repo, LATER)
    clone.push()
    kept = api.collect(clone.repo, dry_run=False, grace_s=3600.0)
    # S3 tells whole seconds: as of a moment from now, all of this is over.
    freed = api.collect(clone.repo, dry_run=False, grace_s=-2.0)

    after = sum(s3_team.keys()[key] for key in s3_team.payload_keys())
    assert (gone.expired, len(gone.versions)) == (2, 4)
    assert kept.objects_deleted == 0
    assert freed.objects_deleted > 0
    assert before - after == gone.bytes


def test_f120_content_that_is_not_here_is_counted_too(team: Team):
    """A lazy tree frees nothing of it here, but the store does."""
    clone = team.clone("A")
    put(clone.repo, "n", b"x" * 1000, b"y" * 2000, keep="1")
    clone.sync()
    lazy = team.clone("B", hydrate="lazy")
    lazy.pull()

    assert planned(lazy.repo) == planned(clone.repo)
    assert collected(lazy.repo).bytes == planned(clone.repo).bytes
    lazy.push()
    clone.pull()
    assert versions(clone.repo, "n") == versions(lazy.repo, "n") == [2]


def test_a_number_is_not_used_again_after_all_versions_expired(repo):
    put(repo, "n", b"1", b"2", lifetime="10m")

    collected(repo, LATER)
    put(repo, "n", b"3")

    assert versions(repo, "n") == [3]


def run_record(repo: Repo) -> None:
    with Records(repo) as records:
        records.runs.save(Run(RUN, "w1", "nightly", "succeeded", "2030-01-01T00:00:00.000Z"))


def test_data_of_a_run_expires_with_the_runs_record(team: Team):
    clone = team.clone("A")
    run_record(clone.repo)
    put(clone.repo, "n", b"content", run=RUN, lifetime="run")
    clone.sync()
    assert planned(clone.repo, LATER).versions == ()

    with Records(clone.repo) as records:
        records.runs.delete(RUN)
    clone.sync()

    assert [one.why for one in planned(clone.repo, LATER).versions] == ["expired"]


def test_in_a_directory_data_of_a_run_expires_with_the_runs_record(repo):
    run_record(repo)
    put(repo, "n", b"content", run=RUN, lifetime="run")
    assert planned(repo, LATER).versions == ()

    with Records(repo) as records:
        records.runs.delete(RUN)

    assert planned(repo, LATER).expired == 1


@pytest.fixture
def shared_run(team: Team) -> Clone:
    """A clone that has pushed a run and its data."""
    clone = team.clone("A")
    run_record(clone.repo)
    put(clone.repo, "n", b"content", run=RUN, lifetime="run")
    clone.sync()
    return clone


def test_f119_a_run_that_is_not_here_is_not_gone_in_a_lazy_tree(team: Team, shared_run: Clone):
    lazy = team.clone("B", hydrate="lazy")
    lazy.pull()

    assert planned(lazy.repo, LATER).versions == ()


def test_f119_a_run_that_is_not_here_is_not_gone_after_a_pull_of_one_model(team: Team, shared_run: Clone):
    scoped = team.clone("B")
    with Records(scoped.repo) as records:
        records.sync.pull_changed([WEB])

    assert versions(scoped.repo, "n") == [1]
    assert not list(scoped.repo.tree_root.glob("workflow-runs/*/*"))
    assert planned(scoped.repo, LATER).versions == ()


def test_f119_a_run_that_is_not_here_is_not_gone_where_runs_are_excluded(team: Team, shared_run: Clone):
    excluding = team.clone("B", exclude=["workflow-runs/**"])
    excluding.pull()

    assert versions(excluding.repo, "n") == [1]
    assert not list(excluding.repo.tree_root.glob("workflow-runs/*/*"))
    assert planned(excluding.repo, LATER).versions == ()


def test_f119_a_run_whose_file_somebody_removed_by_hand_is_not_gone(shared_run: Clone):
    (file,) = shared_run.repo.tree_root.glob("workflow-runs/*/*")
    file.unlink()

    assert planned(shared_run.repo, LATER).versions == ()


def test_f119_nothing_expires_while_part_of_what_is_known_of_the_store_is_lost(shared_run: Clone):
    """V5: who does not know what the store has cannot say what it has not."""
    (file,) = shared_run.repo.tree_root.glob("workflow-runs/*/*")
    file.unlink()
    for node in (shared_run.repo.state / "nodes").rglob("*"):
        if node.is_file():
            node.unlink()

    assert planned(shared_run.repo, LATER).versions == ()


def test_f119_nothing_expires_in_a_directory_that_is_not_there_just_now(repo, tmp_path):
    """A shared directory that is not mounted: the catalog still knows its data, and nobody sees its runs."""
    run_record(repo)
    put(repo, "n", b"content", run=RUN, lifetime="run")
    assert planned(repo, LATER).versions == ()
    repo.tree_root.rename(tmp_path / "unmounted")
    repo.tree_root.mkdir()

    assert planned(repo, LATER).versions == ()


def test_f121_what_cannot_be_read_is_named_and_never_collected(repo):
    put(repo, "n", b"1", b"2", b"3", keep="1")
    put(repo, "other", b"1", b"2", keep="1")
    item = repo.tree_root / "data" / WEB.type / WEB.id / "n"
    (item / "2" / "metadata.yaml").write_text("{ this is not\n")
    (item / "4").mkdir()
    (item / "4" / "raw").write_bytes(b"nobody knows what this is")

    plan = planned(repo, LATER)
    gone = collected(repo, LATER)

    assert {(one.row.name, one.row.version) for one in gone.versions} == {("n", 1), ("other", 1)}
    assert any("n/2/metadata.yaml" in text for text in plan.warnings)
    assert (item / "2" / "metadata.yaml").read_text() == "{ this is not\n"
    assert (item / "2" / "raw").read_bytes() == b"2"
    assert (item / "4" / "raw").read_bytes() == b"nobody knows what this is"


def test_f121_what_became_unreadable_after_the_preview_is_spared(repo):
    put(repo, "n", b"1", b"2", b"3", keep="1")
    with Records(repo) as records:
        plan = plan_gc(records, LATER)
        file = repo.tree_root / "data" / WEB.type / WEB.id / "n" / "2" / "metadata.yaml"
        file.write_text("{ this is not\n")
        gone = run_gc(records, plan)

    assert [one.row.version for one in plan.versions] == [1, 2]
    assert [one.row.version for one in gone.versions] == [1]
    assert file.exists()


def test_a_run_deletes_the_plan_and_nothing_else(repo):
    """What has become surplus since waits for the next preview; what somebody else has deleted is not counted."""
    put(repo, "n", b"1", b"2", b"3", keep="2")
    put(repo, "m", b"1", b"2", keep="1")
    with Records(repo) as records:
        plan = plan_gc(records, LATER)
        records.data.save(WEB, "n", b"4", keep="2")
        records.data.delete(WEB, "m", 1)
        gone = run_gc(records, plan)

    assert {(one.row.name, one.row.version) for one in plan.versions} == {("n", 1), ("m", 1)}
    assert {(one.row.name, one.row.version) for one in gone.versions} == {("n", 1)}
    assert versions(repo, "n") == [2, 3, 4]


def test_what_somebody_agreed_to_is_what_was_shown(repo):
    """Between the question and the answer another version became surplus, and one of those shown was spared."""
    put(repo, "n", b"1", b"2", b"3", keep="2")
    put(repo, "m", b"1", b"2", keep="1")
    shown = planned(repo, LATER)
    put(repo, "n", b"4", keep="2")
    put(repo, "m", b"3")

    with Records(repo) as records:
        gone = run_gc(records, plan_gc(records, LATER).within(shown))

    assert {(one.row.name, one.row.version) for one in shown.versions} == {("n", 1), ("m", 1)}
    assert {(one.row.name, one.row.version) for one in gone.versions} == {("n", 1)}
    assert (versions(repo, "n"), versions(repo, "m")) == ([2, 3, 4], [1, 2, 3])


def test_a_preview_changes_nothing(team: Team):
    clone = team.clone("A")
    put(clone.repo, "n", b"1", b"2", b"3", keep="1")
    clone.sync()
    before, status = clone.files, clone.status()

    planned(clone.repo, LATER)

    assert clone.files == before
    assert clone.status().journal_paths == status.journal_paths == 0


def test_many_versions_go_in_several_steps(repo, monkeypatch):
    monkeypatch.setattr("bayou.data.retention.rules.VERSIONS_PER_CHANGE", 3)
    put(repo, "a", *[b"x" * number for number in range(8)], keep="1")
    put(repo, "b", *[b"y" * number for number in range(5)], lifetime="10m")
    plan = planned(repo, LATER)
    before = size(repo)

    gone = collected(repo, LATER)

    assert gone == plan
    assert gone.bytes == before - size(repo)
    assert len(gone.versions) == 7 + 5
    assert (versions(repo, "a"), versions(repo, "b")) == ([8], [])


def test_a_lifetime_is_told_from_when_the_version_was_written(repo):
    put(repo, "n", b"1", lifetime="10m")
    now = datetime.now(UTC)

    assert planned(repo, now + timedelta(minutes=9)).versions == ()
    assert planned(repo, now + timedelta(minutes=11)).expired == 1
