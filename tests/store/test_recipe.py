"""A store opened by another process: with the caller's credentials and nobody else's, and none of them on show."""

from __future__ import annotations

import os
import pickle

import pytest

from bayou.store import credentials, keys
from bayou.store.recipe import Recipe

SECRET = "nobody-sees-this"


@pytest.fixture
def plain_keys(monkeypatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "me")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "eu-west-1")


def test_a_recipe_carries_the_providers_environment_and_shows_nothing_of_it(plain_keys):
    recipe = pickle.loads(pickle.dumps(Recipe.of("s3://bucket/p", "infra", {"endpoint": "http://127.0.0.1:1"})))

    assert recipe.environ["AWS_SECRET_ACCESS_KEY"] == SECRET
    assert SECRET not in repr(recipe) + str(recipe)
    assert "PATH" not in recipe.environ


def test_who_opens_it_has_these_credentials_and_no_others(plain_keys, monkeypatch):
    recipe = Recipe.of("s3://bucket/p", "infra", {"endpoint": "http://127.0.0.1:1"})
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another's")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "another's")

    store = recipe.open()

    assert (store.url, store.namespace) == ("s3://bucket/p/infra", "infra")
    assert os.environ["AWS_SECRET_ACCESS_KEY"] == SECRET
    assert "AWS_SESSION_TOKEN" not in os.environ


def test_a_profile_is_resolved_where_it_is_known(monkeypatch, tmp_path):
    (tmp_path / "credentials").write_text(f"[work]\naws_access_key_id = me\naws_secret_access_key = {SECRET}\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))

    monkeypatch.setattr("bayou.store.credentials._granted", {})

    recipe = Recipe.of("s3://bucket", None, {"profile": "work", "endpoint": "http://127.0.0.1:1"})
    (tmp_path / "credentials").unlink()  # as on another machine
    pickle.loads(pickle.dumps(recipe)).open()

    assert SECRET not in repr(recipe) + str(recipe.environ)
    given = credentials.aws(recipe.options)
    assert (given()["access_key_id"], given()["secret_access_key"]) == ("me", SECRET)


def test_one_process_opens_the_stores_of_two_accounts(plain_keys, monkeypatch, tmp_path):
    (tmp_path / "credentials").write_text("[backup]\naws_access_key_id = other\naws_secret_access_key = theirs\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setattr("bayou.store.credentials._granted", {})
    mine = Recipe.of("s3://mine", None, {})
    theirs = Recipe.of("s3://theirs", None, {"profile": "backup"})

    for recipe in (theirs, mine, theirs):
        recipe.open()

    assert os.environ["AWS_SECRET_ACCESS_KEY"] == SECRET
    assert credentials.aws(mine.options) is None
    assert credentials.aws(theirs.options)()["secret_access_key"] == "theirs"


def test_a_directory_needs_no_credentials(tmp_path):
    store = Recipe.of(tmp_path.as_uri(), None, {}).open()
    store.put(keys.payload("data/a", None), b"1")

    assert (tmp_path / "data/a").read_bytes() == b"1"
