"""One round: who works, who is killed when, drawn from one seed; and the proof that nothing was lost."""

from __future__ import annotations

import os
import random
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar
from unittest.mock import patch

from bayou.core.errors import BayouError
from bayou.sync.conflicts.copies import Conflicts
from bayou.worktree.atomic_write import is_temporary
from tests import api
from tests.sync.conftest import Clone, Team
from tests.sync.processes.forkserver import ForkServer
from tests.sync.processes.history import Version, read_history
from tests.sync.processes.judge import Account, judge
from tests.sync.processes.points import KINDS
from tests.sync.processes.worker import Orders, identity_of, read_log, rule

SEED = "BAYOU_KILL_SEED"
NAMES = ("a", "b", "c")

LONG = 100
"""Turns that nobody gets to the end of who is killed on time."""


class Lost(AssertionError):
    """A round that broke a promise, and the way to play it again."""


@dataclass(frozen=True, slots=True)
class Life:
    """One process: when it begins, how long it works, and what ends it, if anything does."""

    seed: str
    turns: int
    pause: float
    kill_after: float | None = None
    point: tuple[str, int, bool] | None = None


@dataclass
class Tally:
    """What was played."""

    rounds: int = 0
    processes: int = 0
    killed: int = 0
    commits: int = 0
    conflicts: int = 0
    promises: int = 0

    def __str__(self) -> str:
        return ", ".join(f"{count} {what}" for what, count in vars(self).items())


@dataclass
class Round:
    """A team whose clones work at once, and die at once."""

    team: Team
    seed: str
    tally: Tally
    environment: Mapping[str, str] = field(default_factory=dict)
    forgiving: bool = False
    slow: float = 0.2
    """About how long a process takes: a kill comes within that."""
    busy: int = 1
    """How many times as much a process does that is not killed from outside."""
    collected: bool = False
    small: bool = False
    quick: bool = False
    again: ClassVar[str] = "given_round_is"
    """Selects the test that plays a round again."""

    def play(self, servers: Sequence[ForkServer], meanwhile: Callable[[], object] = lambda: None) -> None:
        """Let clones work and be killed, `meanwhile` something else happens; then bring them together, and judge."""
        try:
            self._play(servers, meanwhile)
        except (AssertionError, BayouError) as error:
            raise Lost(
                f"{error}\n\nthe same again, on a directory: {SEED}='{self.seed}' "
                f"./dev test tests/sync/test_processes.py -k {self.again}"
            ) from error

    def _play(self, servers: Sequence[ForkServer], meanwhile: Callable[[], object]) -> None:
        rng = random.Random(self.seed)
        clones = {name: self.team.clone(name) for name in NAMES[: rng.choice((2, 3))]}
        lives = {name: self._lives(rng, name) for name in clones}
        renumbers = rng.random() < 0.5
        with ThreadPoolExecutor(len(clones) + 1) as pool:
            busy = [
                pool.submit(self._live, server, lives[name], partial(self._orders, name, clones[name], renumbers))
                for name, server in zip(clones, servers, strict=False)
            ]
            other = pool.submit(meanwhile)
            other.result()
            ends = [killed for one in busy for killed in one.result()]
        self._converge(clones, renumbers)
        history = self._history()
        accounts = [Account(name, read_log(self._log(name)), _copies(clone)) for name, clone in clones.items()]
        self._judge(history, accounts)
        self.tally.rounds += 1
        self.tally.processes += len(ends)
        self.tally.killed += sum(ends)
        self.tally.commits += len(history)
        self.tally.promises += sum(1 for account in accounts for _ in account.promised())
        self.tally.conflicts += sum(len(ids) for account in accounts for ids in account.copies.values())

    def _history(self) -> list[Version]:
        return read_history(self.team.store())

    def _judge(self, history: Sequence[Version], accounts: Sequence[Account]) -> None:
        judge(history, accounts)

    def _lives(self, rng: random.Random, name: str) -> list[Life]:
        """Draw the lives of a clone's processes: some are killed from outside, some at a step, the last one lives."""
        lives = []
        for number in range(rng.choice((1, 2, 3))):
            seed, pause = f"{self.seed} {name} {number}", rng.uniform(0.0, self.slow / 2)
            if rng.random() < 0.4:
                lives.append(Life(seed, LONG, pause, kill_after=rng.uniform(0.0, self.slow)))
            else:
                point = (rng.choice(KINDS), round(rng.paretovariate(0.8)), rng.random() < 0.5)
                lives.append(Life(seed, self.busy * rng.choice((2, 4, 8)), pause, point=point))
        return [*lives, Life(f"{self.seed} {name} last", self.busy * 3, rng.uniform(0.0, self.slow / 2))]

    def _live(self, server: ForkServer, lives: Sequence[Life], orders: Callable[[Life], Orders]) -> list[bool]:
        """Let one process after the other live; return which were killed."""
        ends = []
        for life in lives:
            time.sleep(life.pause)
            ends.append(server.run(orders(life), life.kill_after))
        return ends

    def _orders(self, name: str, clone: Clone, renumbers: bool, life: Life) -> Orders:
        return Orders(
            root=str(clone.repo.root),
            log=str(self._log(name)),
            clone=name,
            seed=life.seed,
            turns=life.turns,
            point=life.point,
            renumbers=renumbers,
            forgiving=self.forgiving,
            environment=self.environment,
            collected=self.collected,
            small=self.small,
            quick=self.quick,
        )

    def _log(self, name: str) -> Path:
        return self.team.root / f"{name}.log"

    def _converge(self, clones: Mapping[str, Clone], renumbers: bool) -> None:
        """Sync everybody with a plain command; then nothing is left to do, and all have what the store has."""
        for _ in range(2):
            for name, clone in clones.items():
                with patch.dict(os.environ, LOGNAME=name):  # who commits, in the store's log
                    report = clone.sync(renumber=rule(renumbers))
                assert not [*report.failed, *report.missing, *report.untracked], report
        fresh = self.team.clone("fresh")
        fresh.sync()
        for name, clone in clones.items():
            again = clone.sync()
            assert (again.engine, again.requests.total, again.pushed.files, again.pulled.files) == ("fast", 1, 0, 0), (
                f"{name} is not at rest: {again}"
            )
            mine, theirs = payload(clone), fresh.files
            other = sorted(path for path in mine.keys() | theirs.keys() if mine.get(path) != theirs.get(path))
            assert not other, (
                f"{name} differs from a fresh clone in {[(one, one in mine, one in theirs) for one in other]}"
            )
        verified = api.verify(fresh.repo, deep=True, repair=False)
        assert (verified.ok, verified.unindexed) == (True, []), verified


def payload(clone: Clone) -> dict[str, bytes]:
    """Return the files of a tree, but for the temporaries, files and directories, of killed processes."""
    files = clone.files
    return {path: files[path] for path in files if not any(is_temporary(name) for name in path.split("/"))}


def _copies(clone: Clone) -> dict[str, set[str]]:
    kept: dict[str, set[str]] = defaultdict(set)
    for one in Conflicts(clone.repo.conflicts).list():
        with open(one.copy, "rb") as file:
            kept[one.path].add(identity_of(one.path, file.read()))
    return kept
