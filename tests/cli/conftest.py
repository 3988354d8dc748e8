"""What the tests of the command line share: a repo, an engine that answers as told, and two ways to run a command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests import api as api_functions
from tests.sync.conftest import proxy, s3_env, s3_team, team, wire  # noqa: F401

import bayou.sync.service
from bayou.cli import run
from bayou.repo import Repo, init_repo
from bayou.state.connection import Connection

SOURCE = Path(bayou.sync.service.__file__).resolve().parents[2]


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document on stdout; anything besides it is an error here."""
        found: dict[str, Any] = json.loads(self.out)
        return found

    @property
    def error(self) -> dict[str, Any]:
        """The one JSON error on stderr."""
        found: dict[str, Any] = json.loads(self.err)
        assert set(found) == {"error"}
        assert set(found["error"]) == {"code", "message", "hint"}
        return found["error"]


class FakeApi:
    """Functions of sync and maintenance that return, or raise, what a test chooses, and record their calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def answer(self, name: str, outcome: object) -> None:
        """Replace a function that a command calls, in the module that defines it.

        Of an open datastore, `calls` has the repo.
        """

        def function(*args: Any, **kwargs: Any) -> object:
            given = tuple(one.repo if isinstance(one, Connection) else one for one in args)
            self.calls.append((name, given, kwargs))
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome

        self._monkeypatch.setattr(getattr(api_functions, name).__module__ + f".{name}", function)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    return FakeApi(monkeypatch)


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repo:
    """A repo, with the caller standing in it."""
    made = init_repo(tmp_path / "repo")
    monkeypatch.chdir(made.root)
    return made


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run a command in this process."""

    def call(*args: str) -> Ran:
        capsys.readouterr()
        code = run(args)
        out, err = capsys.readouterr()
        return Ran(code, out, err)

    return call


@dataclass
class Processes:
    """Real processes, none of which outlives its test."""

    cwd: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(
        self, arguments: Sequence[str], *, stderr: int = subprocess.PIPE, **environ: str
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.cwd,
            env=os.environ | {"PYTHONPATH": str(SOURCE)} | environ,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            errors="backslashreplace",
        )
        self.started.append(process)
        return process

    def run(self, *args: str, **environ: str) -> Ran:
        """Run `python -m bayou`."""
        return self.finish(self.start(["-m", "bayou", *args], stderr=subprocess.PIPE, **environ))

    def script(self, text: str, *args: str, stderr: int = subprocess.PIPE, **environ: str) -> subprocess.Popen[str]:
        return self.start(["-c", text, *args], stderr=stderr, **environ)

    def finish(self, process: subprocess.Popen[str], timeout: float = 30) -> Ran:
        # Far below the minute after which a stuck request would give up by itself.
        out, err = process.communicate(timeout=timeout)
        return Ran(process.returncode, out, err)


@pytest.fixture
def processes(tmp_path: Path) -> Any:
    made = Processes(tmp_path)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
            process.communicate()
