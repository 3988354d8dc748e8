"""17.10: a hostile file of `models/` or `workflows/` is one reported problem, and hides no other (V25)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bayou.errors import ModelInvalid, WorkflowInvalid
from bayou.model import create_model
from bayou.model.find import find_model, list_models
from bayou.repo import Repo, init_repo
from bayou.workflow.create import create_workflow
from bayou.workflow.find import find_workflow, list_workflows
from bayou.workflow.source import parse_source
from tests.records.hostile import NUMBERS, UNPARSABLE

ID = "3f0e7bd2-62cf-4c59-9d0f-36d0a2f3e0b1"
NOT_HERE = ("indented", "newlines", "wide indentation")
BAD = {
    **UNPARSABLE,
    **{f"arguments.{kind}": f"id: {ID}\nname: x\ntype: net\narguments: {{a: {text}}}\n".encode()
       for kind, text in NUMBERS.items() if len(text) > 1000 or text.startswith((".", "20", "1.0e", "!!"))},
}  # fmt: skip


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return init_repo(tmp_path / "repo")


def test_17_10_hostile_definitions_hide_no_others(repo: Repo) -> None:
    create_model(repo, "net", "good")
    for at, content in enumerate(BAD.values()):
        (repo.root / "models" / "net" / f"bad-{at}.yaml").write_bytes(content)
    os.mkfifo(repo.root / "models" / "net" / "pipe.yaml")
    found = list_models(repo)
    assert [one.name for one in found.models] == ["good"]
    assert len(found.bad) == len(BAD) + 1
    for error in found.bad:
        assert error.message.startswith("models/net/")
        assert error.message.isprintable()
        assert len(error.message) < 500
    assert find_model(repo, "good").name == "good"
    with pytest.raises(ModelInvalid):
        find_model(repo, "bad-0")


def test_17_10_hostile_workflows_hide_no_others(repo: Repo) -> None:
    create_workflow(repo, "good")
    for at, content in enumerate(BAD.values()):
        (repo.root / "workflows" / f"bad-{at}.yaml").write_bytes(content)
    found = list_workflows(repo)
    assert [one.name for one in found.workflows] == ["good"]
    assert len(found.bad) == len(BAD)
    for error in found.bad:
        assert error.message.startswith("workflows/")
        assert error.message.isprintable()
        assert len(error.message) < 500
    assert find_workflow(repo, "good").name == "good"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [\n", "line 2"),
        ("a: 1\nb: *x\n", "line 2: there is no anchor x"),
        ("a: 1\na: 2\n", "line 2: a stands there twice"),
        ("a: 1\nb: .nan\n", "line 2: nan is no number that can be kept"),
        ("a: 1\nb: 2026-01-01\n", "line 2: 2026-01-01 is taken for a date"),
        ("a: 1\nb: !x y\n", "line 2: could not read the tag !x"),
        ("a: 1\n---\nb: 2\n", "line 2: it has more than one document"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, problem: str) -> None:
    with pytest.raises(WorkflowInvalid) as caught:
        parse_source(text.encode(), "workflows/bad.yaml")
    assert f"workflows/bad.yaml, {problem}" in caught.value.message
