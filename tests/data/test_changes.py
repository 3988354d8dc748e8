"""Change sets: written down before their first step, and carried out by whoever comes next."""

from __future__ import annotations

import shutil

import pytest

from bayou.cli import run
from bayou.core.errors import StateError
from bayou.core.file_lock import FileLock
from bayou.data import changes
from bayou.data.changes import (
    ChangeSet,
    apply_changeset,
    exclusive_change,
)
from bayou.data.records import Records
from bayou.data.sync_hooks import finish_pending_changesets, pending_changesets
from bayou.repo import Repo, open_repo
from bayou.state.connection import Connection
from tests.data.models import MODEL, visible
from tests.sync.children import run_to_death
from tests.sync.conftest import Team

_DYING = """
from bayou.data.layout import ModelRef
from bayou.data.records import Records
from bayou.repo import open_repo
from bayou.worktree.tree import Worktree

Worktree.delete_many = die  # all versions are in place, and none is gone
with Records(open_repo(sys.argv[1])) as records:
    records.data.rename(ModelRef(*sys.argv[2].split("|")), "old", "new")
"""


def _die_in_a_rename(repo: Repo) -> None:
    with Records(repo) as records:
        for number in (1, 2):
            records.data.save(MODEL, "old", b"%d" % number)
    assert run_to_death(_DYING, repo.root, f"{MODEL.type}|{MODEL.id}|{MODEL.name}")
    assert len(pending_changesets(repo)) == 1


_RENAMED = {("main", "new", 1): b"1", ("main", "new", 2): b"2"}


def test_whoever_opens_the_records_finishes_what_a_dead_process_began(repo: Repo) -> None:
    _die_in_a_rename(repo)
    with Records(repo) as records:
        assert pending_changesets(repo) == []
        assert visible(records) == _RENAMED
        assert records.data.get(MODEL, "old").forwarded == ("old",)


def test_whoever_has_them_open_finishes_it_before_changing_anything(repo: Repo) -> None:
    with Records(repo) as records:
        records.data.save(MODEL, "log", b"", streaming=True)
        _die_in_a_rename(repo)
        records.data.append(MODEL, "log", b"x")
        assert pending_changesets(repo) == []
        assert visible(records) == _RENAMED | {("main", "log", 1): b"x"}


def test_a_sync_takes_no_half_of_it_to_others(team: Team) -> None:
    a = team.clone("a")
    _die_in_a_rename(a.repo)
    assert run(["datastore", "sync", "--dry-run", "--repo", str(a.repo.root)]) == 0
    assert len(pending_changesets(a.repo)) == 1  # a dry run changes nothing anywhere
    assert run(["datastore", "sync", "--repo", str(a.repo.root)]) == 0
    b = team.clone("b")
    b.pull()
    with Records(b.repo) as records:
        assert visible(records) == _RENAMED
    finish_pending_changesets(Connection(a.repo))  # nothing to do


def test_what_a_live_process_is_at_is_left_to_it(repo: Repo) -> None:
    _die_in_a_rename(repo)
    lock = FileLock(repo.state / "changes.lock")
    assert lock.acquire()
    with Records(repo):
        assert len(pending_changesets(repo)) == 1
    lock.release()


def test_a_turn_that_does_not_come_is_said_so(repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "LOCK_TIMEOUT_S", 0.0)
    lock = FileLock(repo.state / "changes.lock")
    with Records(repo) as records:
        records.data.save(MODEL, "x", b"1")
        repo.state.mkdir(exist_ok=True)
        assert lock.acquire()
        with pytest.raises(StateError, match="another process of this repo"):
            records.data.delete(MODEL, "x")
        assert records.data.save(MODEL, "x", b"2").version == 2  # new versions need no turn
        lock.release()
        assert records.data.delete(MODEL, "x") == 2


def test_nothing_is_deleted_for_versions_that_never_got_their_place(repo: Repo) -> None:
    _die_in_a_rename(repo)
    # Somebody removed what was placed, and what waits: then the old versions must stay.
    shutil.rmtree(repo.tree_root / f"data/{MODEL.type}/{MODEL.id}/new")
    with Records(repo) as records:
        assert pending_changesets(repo) == []
        assert visible(records) == {("main", "old", 1): b"1", ("main", "old", 2): b"2"}


def test_a_change_of_another_datastore_waits_until_the_repo_has_that_one_again(team: Team) -> None:
    a = team.clone("a")
    _die_in_a_rename(a.repo)
    here = a.repo.file.read_text()
    a.repo.file.write_text(here.replace('url = "', 'namespace = "other"\nurl = "'))
    with Records(open_repo(a.repo.root)) as records:
        records.data.save(MODEL, "log", b"", streaming=True)
        records.data.append(MODEL, "log", b"x")
    assert len(pending_changesets(a.repo)) == 1
    a.repo.file.write_text(here)
    with Records(open_repo(a.repo.root)) as records:
        assert pending_changesets(a.repo) == []
        assert visible(records) == _RENAMED | {("main", "log", 1): b"x"}


def test_a_change_that_cannot_be_read_does_not_keep_anybody_from_reading(repo: Repo) -> None:
    with Records(repo) as records:
        records.data.save(MODEL, "x", b"1")
    (repo.state / "changes").mkdir(parents=True)
    (repo.state / "changes" / "01.json").write_text('{"of": "a later Bayou"}')
    with Records(repo) as records:
        assert visible(records) == {("main", "x", 1): b"1"}
        with pytest.raises(StateError, match=r"01\.json cannot be read") as raised:
            records.data.delete(MODEL, "x")
        assert ".bayou/state/changes/01.json" in str(raised.value.hint)


def test_a_change_that_cannot_be_written_down_changes_nothing(
    repo: Repo,
) -> None:
    with Records(repo) as records:
        records.data.save(MODEL, "x", b"1")
        (repo.state / "changes").parent.mkdir(exist_ok=True)
        (repo.state / "changes").write_bytes(b"in the way")
        for call in (lambda: records.data.delete(MODEL, "x"), lambda: records.data.rename(MODEL, "x", "y")):
            with pytest.raises(StateError, match="cannot note a change"):
                call()
        assert visible(records) == {("main", "x", 1): b"1"}


def test_a_step_may_be_done_twice(records: Records) -> None:
    saved = records.data.save(MODEL, "x", b"1")
    wanted = ChangeSet(deletes=(saved.location.raw, saved.location.metadata))
    for _ in range(2):
        with exclusive_change(records.context):
            apply_changeset(records.context, wanted)
        assert visible(records) == {}


def test_a_number_that_somebody_takes_meanwhile_is_not_replaced(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2, 3):
        records.data.save(MODEL, "x", b"%d" % number)
    real = records.context.__class__.highest
    answers = iter([0, 1])
    monkeypatch.setattr(
        records.context.__class__, "highest", lambda self, item: next(answers, None) or real(self, item)
    )
    saved = records.data.save(MODEL, "x", b"4")
    assert saved.version == 4
    assert visible(records) == {("main", "x", number): b"%d" % number for number in (1, 2, 3, 4)}


def test_a_published_version_whose_number_is_taken_gets_the_next(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    with records.data.stage() as stage:
        stage.save(MODEL, "x", b"staged")
        real = changes._write_file

        def write_file(*args: object) -> None:
            records.data.save(MODEL, "x", b"faster")
            real(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(changes, "_write_file", write_file)
        (published,) = stage.publish()
    assert published.version == 2
    assert visible(records) == {("main", "x", 1): b"faster", ("main", "x", 2): b"staged"}
    assert records.data.get(MODEL, "x", 1).metadata.id == published.id
    assert open_repo(records.repo.root).state.exists()
