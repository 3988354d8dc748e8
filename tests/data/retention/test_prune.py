"""Pruning: whose data may go, and whose may not (F118)."""

from __future__ import annotations

import pytest

from bayou.core.errors import ModelInvalid, ModelNotFound, UsageError
from bayou.data.layout import ModelRef
from bayou.data.records import Records
from bayou.models import create_model, delete_model, find_model
from bayou.models.prune import PrunePlan, plan_prune, run_prune
from bayou.repo import Repo, init_repo
from tests.data.retention.conftest import Team, put, size, versions


@pytest.fixture
def repo(tmp_path) -> Repo:
    return init_repo(tmp_path / "repo")


def planned(repo: Repo, *named: str) -> PrunePlan:
    with Records(repo) as records:
        return plan_prune(records, named)


def delete(repo: Repo, name: str, *, with_data: bool = False) -> None:
    with Records(repo) as records:
        delete_model(records, find_model(repo, name), with_data=with_data)


def note(repo: Repo, model: ModelRef) -> None:
    """Record that a model was deleted, as `model delete` does."""
    with Records(repo) as records:
        records.evaluated.record_deleted(model)


def test_f118_data_of_a_model_that_another_clone_defines_is_mentioned_and_stays(team: Team):
    a, b = team.clone("a"), team.clone("b")
    made = create_model(a.repo, "aws/ec2", "web")
    put(a.repo, "n", b"1", b"2", model=made.ref)
    a.sync()
    b.pull()

    plan = planned(b.repo)

    assert plan.versions == ()
    assert plan.models == frozenset()
    assert plan.undefined == ((made.ref, 2),)
    with Records(b.repo) as records:
        assert run_prune(records, plan).versions == ()
    assert versions(b.repo, "n", made.ref) == [1, 2]


def test_data_of_a_model_that_was_deleted_elsewhere_is_orphaned(team: Team):
    """Data that a third clone saved while the model was being deleted: its owner is gone for good."""
    a, b = team.clone("a"), team.clone("b")
    made = create_model(a.repo, "aws/ec2", "web")
    a.sync()
    delete(a.repo, "web")
    a.sync()
    put(b.repo, "n", b"1", b"22", model=made.ref)
    b.sync()

    plan = planned(b.repo)
    before = size(b.repo)
    with Records(b.repo) as records:
        gone = run_prune(records, plan)

    assert plan == gone
    assert (gone.models, [row.version for row in gone.versions]) == (frozenset({made.id}), [1, 2])
    assert gone.bytes == before - size(b.repo)
    assert planned(b.repo).versions == ()
    b.push()
    a.pull()
    assert versions(a.repo, "n", made.ref) == []


def test_a_model_that_is_defined_here_keeps_its_data_whatever_is_noted(repo):
    made = create_model(repo, "net", "web")
    put(repo, "n", b"1", model=made.ref)
    note(repo, made.ref)

    assert planned(repo) == PrunePlan((), 0)


def test_data_goes_when_the_caller_names_its_model(repo):
    gone, other = ModelRef("net", "id-1", "one"), ModelRef("a/b", "id-2", "two")
    put(repo, "n", b"1", model=gone)
    put(repo, "n", b"1", model=other)

    plan = planned(repo, "id-1")

    assert plan.models == {"id-1"}
    assert plan.undefined == ((other, 1),)


def test_a_model_that_is_defined_here_cannot_be_named(repo):
    made = create_model(repo, "net", "web")
    put(repo, "n", b"1", model=made.ref)

    with pytest.raises(UsageError, match="defined here"):
        planned(repo, made.id)


def test_a_model_without_data_cannot_be_named(repo):
    with pytest.raises(ModelNotFound, match="id-1"):
        planned(repo, "id-1")


def test_nothing_is_orphaned_while_a_definition_cannot_be_read(repo):
    """V5: it may be the one that owns the data."""
    ghost = ModelRef("net", "id-1", "one")
    put(repo, "n", b"1", model=ghost)
    note(repo, ghost)
    (repo.root / "models" / "net").mkdir()
    (repo.root / "models" / "net" / "bad.yaml").write_text("nope: 1\n")

    with pytest.raises(ModelInvalid, match=r"bad\.yaml"):
        planned(repo)


def test_what_is_deleted_already_is_not_pruned_again(repo):
    made = create_model(repo, "net", "web")
    put(repo, "n", b"1", b"2", model=made.ref)
    delete(repo, "web", with_data=True)

    assert planned(repo) == PrunePlan((), 0)
