"""Finding, opening and making a repo."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import bayou
from bayou import repo as repo_module
from bayou.config import load_config
from bayou.config.trust import write_private
from bayou.config.write import write_file
from bayou.core.errors import AlreadyInitialized, ConfigInvalid, NotARepo, UsageError
from bayou.repo import find_repo, init_repo, open_repo
from tests.trusting import trust


def everything(root: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(root)): path.read_bytes() if path.is_file() else None for path in root.rglob("*")}


def test_a_new_repo_has_its_places_and_teaches(tmp_path):
    repo = init_repo(tmp_path / "new" / "repo")

    assert repo.root == tmp_path / "new" / "repo"
    assert set(os.listdir(repo.root)) == {"bayou.toml", "models", "workflows", ".bayou"}
    assert (repo.root / ".bayou" / ".gitignore").read_text() == "*\n"
    assert "bayou datastore setup" in repo.file.read_text()
    assert open_repo(repo.root) == repo


def test_git_ignores_local_state_and_sees_the_rest(tmp_path):
    repo = init_repo(tmp_path)
    (repo.state / "sync.db").write_text("local")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)

    listed = subprocess.run(
        ["git", "-C", str(tmp_path), "status", "--porcelain", "-uall"], check=True, capture_output=True, text=True
    )

    assert listed.stdout.splitlines() == ["?? bayou.toml"]


def test_a_second_init_is_refused_and_changes_nothing(tmp_path):
    repo = init_repo(tmp_path)
    before = everything(tmp_path)

    with pytest.raises(AlreadyInitialized) as caught:
        init_repo(tmp_path)

    assert everything(tmp_path) == before
    assert caught.value.exit_code == 2
    assert open_repo(tmp_path).config.repo_id == repo.config.repo_id


def test_every_repo_has_an_id_of_its_own(tmp_path):
    assert init_repo(tmp_path / "a").config.repo_id != init_repo(tmp_path / "b").config.repo_id


@pytest.mark.parametrize("step", range(5))
def test_an_init_that_was_cut_anywhere_is_completed_by_the_next(tmp_path, monkeypatch, step):
    """V19: the marker comes last."""
    real_mkdir, real_write, real_file = Path.mkdir, write_private, write_file
    left = iter(range(step))

    def cut(real):
        def call(*args, **kwargs):
            if next(left, None) is None:
                raise KeyboardInterrupt
            return real(*args, **kwargs)

        return call

    monkeypatch.setattr(Path, "mkdir", cut(real_mkdir))
    monkeypatch.setattr(repo_module, "write_private", cut(real_write))
    monkeypatch.setattr(repo_module, "write_file", cut(real_file))
    with pytest.raises(KeyboardInterrupt):
        init_repo(tmp_path)
    monkeypatch.undo()
    assert not (tmp_path / "bayou.toml").exists()

    init_repo(tmp_path)

    assert set(os.listdir(tmp_path)) == {"bayou.toml", "models", "workflows", ".bayou"}
    assert (tmp_path / ".bayou" / ".gitignore").read_text() == "*\n"


def test_of_two_that_init_at_the_same_moment_one_wins(tmp_path, monkeypatch):
    real = write_file

    def late(file: Path, text: str, *, create: bool) -> None:
        monkeypatch.setattr(repo_module, "write_file", real)
        init_repo(tmp_path)
        real(file, text, create=create)

    monkeypatch.setattr(repo_module, "write_file", late)
    with pytest.raises(AlreadyInitialized):
        init_repo(tmp_path)

    load_config(tmp_path / "bayou.toml", {})
    assert not list(tmp_path.glob("*.tmp"))


def test_init_works_on_a_file_system_as_it_is(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)

    assert open_repo(init_repo(tmp_path).root).root == tmp_path


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "models").write_text("")

    with pytest.raises(UsageError, match="models is in the way"):
        init_repo(tmp_path)

    assert not (tmp_path / "bayou.toml").exists()


def test_a_bad_environment_is_refused_before_anything_is_made(tmp_path, monkeypatch):
    monkeypatch.setenv("BAYOU_SYNC_TIMEOUT", "soon")

    with pytest.raises(ConfigInvalid, match="BAYOU_SYNC_TIMEOUT"):
        init_repo(tmp_path / "repo")

    assert os.listdir(tmp_path) == []


def test_the_nearest_parent_with_a_marker_is_the_repo(tmp_path):
    outer, inner = init_repo(tmp_path), init_repo(tmp_path / "a" / "inner")
    (deep := inner.root / "b" / "c").mkdir(parents=True)

    assert find_repo(deep) == inner.root
    assert find_repo(tmp_path / "a") == outer.root


def test_outside_any_repo_the_error_says_how_to_make_one(tmp_path):
    with pytest.raises(NotARepo, match=r"no bayou\.toml here or above") as caught:
        find_repo(tmp_path)

    assert "`bayou init`" in str(caught.value.hint)


def test_a_named_directory_must_be_the_repo_itself(tmp_path):
    repo = init_repo(tmp_path)
    (repo.root / "sub").mkdir()

    assert find_repo("/", explicit=repo.root) == repo.root
    with pytest.raises(NotARepo, match=r"has no bayou\.toml"):
        find_repo(repo.root, explicit=repo.root / "sub")


def test_local_state_is_never_inside_the_tree(tmp_path):
    """V8."""
    repo = init_repo(tmp_path)

    assert repo.tree_root == tmp_path / ".bayou" / "tree"
    assert not repo.state.is_relative_to(repo.tree_root)
    assert not repo.conflicts.is_relative_to(repo.tree_root)


@pytest.mark.parametrize(
    ("path", "tree"), [("../shared", "{root}/../shared"), ("/mnt/x", "/mnt/x"), ("~/x", "{home}/x")]
)
def test_a_directory_datastore_is_the_tree(tmp_path, path, tree):
    repo = init_repo(tmp_path / "repo")
    repo.file.write_text(f'repo_id = "{repo.config.repo_id}"\n[datastore]\npath = "{path}"\n')

    trust(repo.root)
    opened = open_repo(repo.root)

    assert opened.tree_root == Path(tree.format(root=repo.root, home=Path.home()))
    with pytest.raises(UsageError, match="no store to talk to"):
        opened.store()


def test_a_configured_store_is_opened_in_its_scope(tmp_path, monkeypatch):
    repo = init_repo(tmp_path / "repo")
    monkeypatch.setenv("BAYOU_DATASTORE", (tmp_path / "store").as_uri())
    monkeypatch.setenv("BAYOU_NAMESPACE", "infra")
    monkeypatch.setenv("BAYOU_CONCURRENCY", "5")

    store = open_repo(repo.root).store()

    assert (store.url, store.namespace, store.concurrency) == (f"{(tmp_path / 'store').as_uri()}/infra", "infra", 5)
    assert store.requests.total == 0


def test_offline_is_said_by_the_caller_or_by_the_environment(tmp_path, monkeypatch):
    init_repo(tmp_path)

    assert not open_repo(tmp_path).offline
    assert open_repo(tmp_path, offline=True).offline
    monkeypatch.setenv("BAYOU_OFFLINE", "1")
    assert open_repo(tmp_path).offline


def test_the_package_opens_a_repo(tmp_path):
    repo = init_repo(tmp_path)

    assert bayou.open(tmp_path).repo == repo
    assert isinstance(bayou.open(tmp_path), bayou.Repo)
    with pytest.raises(AttributeError, match="nonsense"):
        bayou.nonsense  # noqa: B018


def test_importing_the_package_loads_nothing_else():
    script = "import sys; before = set(sys.modules); import bayou; print(*sorted(set(sys.modules) - before))"

    ran = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)

    assert [name for name in ran.stdout.split() if name.startswith("bayou")] == ["bayou"]
