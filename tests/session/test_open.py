"""A repo as programs have it: `bayou.open`."""

from __future__ import annotations

import pytest

import bayou
from bayou.core.errors import ModelNotFound
from bayou.repo import init_repo
from bayou.sync.service import Datastore
from tests.sync.conftest import Team, Wire


def test_an_open_repo_has_everything_that_a_program_works_with(team: Team) -> None:
    clone = team.clone("a")

    with bayou.open(clone.repo.root) as repo:
        model = repo.models.create("@org/shell", "nightly").ref
        with repo.write_session(models=["nightly"]) as session:
            saved = session.records.data.save(model, "usage", b"51 %")

        assert repo.data.get(model, "usage").read() == b"51 %"
        assert [row.version for row in repo.data.versions(model, "usage")] == [saved.version] == [1]
        assert (repo.root, repo.config) == (clone.repo.root, clone.repo.config)
        assert repo.sync.status().in_sync
        assert repo.tree.exists(saved.location.raw)
        assert [one.name for one in repo.models.list().models] == ["nightly"]
        assert repo.models.get("nightly").ref == model
        assert repo.outputs.list(model) == []
        assert repo.runs.search() == ([], 0)


def test_opening_a_repo_opens_no_state_until_it_is_used(team: Team, wire: Wire) -> None:
    clone = team.clone("a")

    with bayou.open(clone.repo.root) as repo:
        assert repo.models.list().models == ()

    assert not (clone.repo.root / ".bayou" / "state").exists()
    assert wire.seen == []


def test_f128_a_closed_repo_has_given_up_its_place_in_the_journal_and_can_be_used_again(team: Team) -> None:
    clone = team.clone("a")
    repo = bayou.open(clone.repo.root)
    repo.tree.write("files/x", b"1")
    owners = clone.repo.state / "owners"
    assert len(list(owners.iterdir())) == 1

    repo.close()
    repo.close()

    assert list(owners.iterdir()) == []
    assert repo.tree.exists("files/x")
    repo.close()


def test_offline_is_for_all_its_sessions(team: Team, wire: Wire) -> None:
    clone = team.clone("a")

    with bayou.open(clone.repo.root, offline=True) as repo:
        model = repo.models.create("@org/shell", "nightly").ref
        with repo.write_session(models=[model]) as session:
            session.records.data.save(model, "usage", b"51 %")

    assert wire.seen == []
    assert clone.push().pushed.files == 2


def test_a_model_that_nobody_knows_is_an_error_before_anything_is_sent(team: Team, wire: Wire) -> None:
    clone = team.clone("a")

    with bayou.open(clone.repo.root) as repo, pytest.raises(ModelNotFound):
        repo.write_session(models=["nobody"])

    assert wire.seen == []


def test_what_was_there_before_is_there_still(team: Team) -> None:
    repo = init_repo(team.root / "alone")

    with Datastore(bayou.open(repo.root).repo) as datastore:
        datastore.tree.write("files/x", b"1")

    assert isinstance(bayou.open(repo.root), bayou.Repo)
