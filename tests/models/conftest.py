"""Models that run: repos, definitions and sessions for the tests of models."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from bayou.data.outputs import Output
from bayou.data.records import Records
from bayou.models import Definition, load_definition
from bayou.models.run import RunRequest, prepare, run_method
from bayou.repo import Repo, init_repo
from bayou.session import write_session
from bayou.state.connection import Connection
from tests.sync.conftest import proxy, s3_env, s3_team, team  # noqa: F401


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return init_repo(tmp_path / "repo")


@pytest.fixture
def define(repo: Repo) -> Callable[..., Definition]:
    """Write a definition, as a person would."""

    def write(kind: str, name: str, arguments: dict[str, Any] | None = None, **more: Any) -> Definition:
        return define_in(repo, kind, name, arguments, **more)

    return write


def define_in(repo: Repo, kind: str, name: str, arguments: dict[str, Any] | None = None, **more: Any) -> Definition:
    path = f"models/{kind}/{name}.yaml"
    document = {"id": str(uuid.uuid4()), "name": name, "type": kind, "arguments": arguments or {}, **more}
    (repo.root / path).parent.mkdir(parents=True, exist_ok=True)
    (repo.root / path).write_text(yaml.safe_dump(document, sort_keys=False))
    return load_definition(repo, path)


@pytest.fixture
def go(repo: Repo) -> Callable[..., Output]:
    """Run a method, in a session of its own."""

    def run(model: Definition, method: str, **request: Any) -> Output:
        prepared = prepare(Connection(repo), RunRequest(model, method, **request))
        with write_session(repo, models=[model.ref]) as session:
            return run_method(session, prepared, cancel=threading.Event())

    return run


@pytest.fixture
def read(repo: Repo) -> Callable[..., bytes]:
    """Read the newest version of a model's data."""

    def content(model: Definition, name: str, version: int | None = None) -> bytes:
        with Records(repo) as records:
            return records.data.read(records.data.get(model.ref, name, version))

    return content


@pytest.fixture
def names(repo: Repo) -> Callable[[Definition], list[tuple[str, int]]]:
    """List the data of a model: names and versions."""

    def listed(model: Definition) -> list[tuple[str, int]]:
        with Records(repo) as records:
            rows = records.data.find(model=model.ref, all_versions=True)
        return sorted((row.name, row.version) for row in rows)

    return listed


def files(repo: Repo) -> set[str]:
    """Every file of the tree."""
    root = repo.tree_root
    return {file.relative_to(root).as_posix() for file in root.rglob("*") if file.is_file()}
