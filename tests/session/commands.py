"""`bayou` commands as real processes, with and without a terminal."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import bayou
from bayou.leases import open_leases
from bayou.models import create_model
from bayou.sync.plan.policy import ModelRef
from tests.cli.conftest import Ran
from tests.sync.conftest import Clone, Team

SOURCE = Path(bayou.__path__[0]).parent
MAIN = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from bayou.cli import main; main()"
"""Whoever started the tests may have told us to ignore SIGINT; a terminal never does."""

PATIENT = f"""
import bayou.cli.signals as signals, bayou.leases.lease as one, bayou.leases.leases as group
signals.GRACE_S = one.RELEASE_S = group.RELEASE_S = group.ABANDON_S = 3600
{MAIN}
"""
"""Let only the main thread end the process, and give it time to free its leases, however busy this machine is."""

_OWN_TERMINAL = "import os; os.close(os.open(os.ttyname(0), os.O_RDWR))"
"""The first terminal that a session opens is its own: Ctrl-C there is a signal here."""


@dataclass
class Running:
    """A command that was started; with a terminal, its output is what that shows."""

    process: subprocess.Popen[str]
    terminal: int | None = None
    shown: str = ""

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def type(self, keys: bytes) -> None:
        """Type on the terminal."""
        assert self.terminal is not None
        os.write(self.terminal, keys)

    def read_until(self, text: str) -> str:
        """Read the terminal until it shows this text, or the command has ended."""
        while text not in self.shown and self._read():
            pass
        return self.shown

    def finish(self) -> Ran:
        """Wait for the end; far less than the minute after which a stuck request would give up by itself."""
        if self.terminal is None:
            out, err = self.process.communicate(timeout=90)
            return Ran(self.process.returncode, out, err)
        while self._read():
            pass
        os.close(self.terminal)
        return Ran(self.process.wait(timeout=90), self.shown, "")

    def _read(self) -> bool:
        assert self.terminal is not None
        if not select.select([self.terminal], [], [], 90)[0]:
            raise TimeoutError(self.shown)
        try:
            came = os.read(self.terminal, 4096)
        except OSError:  # the other end is closed
            return False
        self.shown += came.decode(errors="replace")
        return bool(came)


@dataclass
class Commands:
    """Starts commands; none outlives its test."""

    root: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    puts: int = 0

    def start(self, clone: Clone, *arguments: str, main: str = MAIN, **environ: str) -> Running:
        process = subprocess.Popen(
            [sys.executable, "-c", main, *arguments],
            cwd=clone.repo.root,
            env=_environment(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return Running(process)

    def start_on_a_terminal(self, clone: Clone, *arguments: str, main: str = MAIN, **environ: str) -> Running:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-c", f"{_OWN_TERMINAL}\n{main}", *arguments],
            cwd=clone.repo.root,
            env=_environment({"TERM": "xterm", **environ}),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            text=True,
        )
        os.close(theirs)
        self.started.append(process)
        return Running(process, ours)

    def run(self, clone: Clone, *arguments: str, main: str = MAIN, **environ: str) -> Ran:
        return self.start(clone, *arguments, main=main, **environ).finish()

    def put(self, clone: Clone, model: str, content: str | None = None, name: str = "log") -> Sequence[str]:
        """Return the arguments that put this content; without it, of content that no put had before.

        A put of the content that the last version has makes no version, and pushes nothing.
        """
        self.puts += 1
        content = f"put {self.puts}" if content is None else content
        file = self.root / f"content-{content}"
        file.write_text(content)
        return "data", "put", model, name, str(file), "--json"


def _environment(environ: dict[str, str]) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCE), "BAYOU_LOCK_TIMEOUT": "30", **environ}


def clones(team: Team, *names: str, models: Sequence[str] = ("one",)) -> tuple[list[Clone], list[ModelRef]]:
    """Make clones with the same models, on a store that has a head."""
    first, *others = [team.clone(name) for name in names]
    made = [create_model(first.repo, "@org/shell", model) for model in models]
    for other in others:
        shutil.copytree(first.repo.root / "models", other.repo.root / "models", dirs_exist_ok=True)
    first.push()
    return [first, *others], [ModelRef(one.type, one.id, one.name) for one in made]


def held(clone: Clone) -> list[str]:
    """Return the keys of the leases that somebody has."""
    return [lease.key for lease in open_leases(clone.repo).list()]
