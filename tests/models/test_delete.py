"""Deleting a model, and who is meant by a model's name."""

from __future__ import annotations

import pytest

from bayou.core.errors import ModelAmbiguous, ModelHasData, ModelNotFound
from bayou.data.layout import ModelRef
from bayou.data.records import Records
from bayou.models import create_model, delete_model, find_model, list_models, resolve_model
from bayou.repo import Repo, init_repo


@pytest.fixture
def repo(tmp_path) -> Repo:
    return init_repo(tmp_path / "repo")


def save(repo: Repo, model: ModelRef, name: str = "n") -> None:
    with Records(repo) as records:
        records.data.save(model, name, b"content")


def test_a_model_without_data_is_deleted_and_that_is_recorded(repo):
    made = create_model(repo, "aws/ec2", "web")
    other = create_model(repo, "aws/s3", "files")

    with Records(repo) as records:
        deleted = delete_model(records, made, with_data=False)
        assert records.evaluated.was_deleted("aws/ec2", made.id)

    assert (deleted.id, deleted.data_deleted) == (made.id, 0)
    assert list_models(repo).models == (other,)
    assert not (repo.root / "models/aws/ec2").exists()
    assert (repo.root / "models").is_dir()


def test_a_model_with_data_is_kept_unless_the_data_may_go_too(repo):
    made = create_model(repo, "net", "web")
    for name in ("a", "a", "b"):
        save(repo, made.ref, name)

    with Records(repo) as records:
        with pytest.raises(ModelHasData, match="2 items") as caught:
            delete_model(records, made, with_data=False)
        assert "--data" in caught.value.hint
        assert find_model(repo, "web") == made
        assert not records.evaluated.was_deleted("net", made.id)
        assert delete_model(records, made, with_data=True).data_deleted == 3
        assert records.data.find() == []


def test_a_model_whose_data_was_deleted_has_none(repo):
    made = create_model(repo, "net", "web")
    save(repo, made.ref)

    with Records(repo) as records:
        records.data.delete(made.ref, "n")
        delete_model(records, made, with_data=False)

    assert list_models(repo).models == ()


def test_a_delete_that_was_killed_half_way_can_be_repeated(repo, monkeypatch):
    """V19: the definition goes last, so that the model can still be named."""
    made = create_model(repo, "net", "web")
    save(repo, made.ref)
    with Records(repo) as records:
        monkeypatch.setattr(type(records.evaluated), "record_deleted", lambda *_: (_ for _ in ()).throw(OSError("cut")))
        with pytest.raises(OSError, match="cut"):
            delete_model(records, made, with_data=True)
        monkeypatch.undo()

        assert find_model(repo, "web") == made
        assert delete_model(records, made, with_data=True).data_deleted == 0
        assert records.evaluated.was_deleted("net", made.id)


def test_a_model_that_only_has_data_here_can_be_meant(repo):
    ghost = ModelRef("aws/ec2", "0f0e0d0c-0b0a-4908-8706-050403020100", "ghost")
    save(repo, ghost)

    assert resolve_model(repo, "ghost") == resolve_model(repo, ghost.id) == ghost
    with Records(repo) as records:
        assert resolve_model(repo, "ghost", records) == ghost


def test_a_definition_comes_before_data_of_the_same_name(repo):
    old = ModelRef("net", "0f0e0d0c-0b0a-4908-8706-050403020100", "web")
    save(repo, old)
    made = create_model(repo, "net", "web")

    assert resolve_model(repo, "web") == made.ref
    assert resolve_model(repo, old.id) == old


def test_data_of_two_models_of_one_name_needs_the_id(repo):
    one, two = (ModelRef("net", f"0f0e0d0c-0b0a-4908-8706-05040302010{number}", "ghost") for number in (1, 2))
    save(repo, one)
    save(repo, two)

    with pytest.raises(ModelAmbiguous, match=one.id):
        resolve_model(repo, "ghost")


def test_a_model_that_nobody_knows_cannot_be_meant(repo):
    with pytest.raises(ModelNotFound):
        resolve_model(repo, "nobody")
