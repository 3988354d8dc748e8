"""A round during which the store is compacted and collected, by processes that are killed as the others are."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar

from bayou.objectstore import keys, open_store
from tests import api
from tests.sync.conftest import Clone
from tests.sync.processes.audit import audit
from tests.sync.processes.forkserver import ForkServer
from tests.sync.processes.history import Version, named_by_head, read_history
from tests.sync.processes.judge import Account
from tests.sync.processes.points import KINDS_OF_UPKEEP
from tests.sync.processes.rounds import LONG, Life, Round, Tally
from tests.sync.processes.upkeep import (
    GRACES,
    Deleting,
    KeeperLine,
    KeeperOrders,
    Missed,
    Upkept,
    complete,
    read_keeper_log,
)
from tests.sync.processes.worker import parsed_here, small_index

KEEPERS = ("k", "l")

FOREIGN = keys.as_listed("elsewhere/notes")
"""An object of another program, below the same prefix."""

_GONE_BY = -2.0
"""A grace that ends in the future, as if a day had passed: clocks of stores are coarse."""


@dataclass
class UpkeepTally(Tally):
    """What was played, and what the keepers did."""

    compactions: int = 0
    moved: int = 0
    collections: int = 0
    announced: int = 0
    """Objects that were to be deleted; some processes were killed before that."""
    missed: int = 0

    def add(self, line: KeeperLine) -> None:
        match line:
            case Upkept("compact", count):
                self.compactions += 1
                self.moved += count
            case Upkept("collect"):
                self.collections += 1
            case Deleting():
                self.announced += len(line.keys)
            case Missed():
                self.missed += 1
            case _:
                pass


@dataclass
class KeptRound(Round):
    """A team whose store is kept by others while its clones work and die; these die, too.

    The store has a head before: a collection without a grace would delete the probes of a client that makes the first.
    """

    tally: UpkeepTally
    keepers: Sequence[ForkServer] = ()
    graces: Sequence[float] = GRACES
    again: ClassVar[str] = "given_round_with_upkeep"
    _clones: dict[str, Clone] = field(default_factory=dict)

    def _play(self, servers: Sequence[ForkServer], meanwhile: Callable[[], object]) -> None:
        rng = random.Random(f"{self.seed} upkeep")
        self.collected, self.quick, self.small = True, True, rng.random() < 0.5
        below = rng.choice(("0", "2KiB", "256KiB", "256KiB"))  # as a push decides; a compaction packs all that is small
        self.environment = {**self.environment, "BAYOU_PACK_BELOW": below}
        self.team.store().put(FOREIGN, b"not Bayou's")
        self._clones = {name: self.team.clone(name) for name in KEEPERS[: len(self.keepers)]}
        with parsed_here(), small_index() if self.small else nullcontext():
            super()._play(servers, lambda: self._keep(rng, meanwhile))
            self._clean()

    def _keep(self, rng: random.Random, meanwhile: Callable[[], object]) -> None:
        """Let the keepers work and die."""
        lives = {name: list(self._lives_of_keeper(rng, name)) for name in self._clones}
        with ThreadPoolExecutor(len(lives) + 1) as pool:
            other = pool.submit(meanwhile)
            busy = [
                pool.submit(self._live, server, lives[name], partial(self._orders_of_keeper, name))
                for name, server in zip(lives, self.keepers, strict=True)
            ]
            ends = [killed for one in busy for killed in one.result()]
            other.result()
        self.tally.processes += len(ends)
        self.tally.killed += sum(ends)

    def _lives_of_keeper(self, rng: random.Random, name: str) -> Iterator[Life]:
        """Draw the lives of a keeper's processes: some are killed from outside, some at a step, the last one lives."""
        for number in range(rng.choice((2, 3, 4))):
            seed, pause = f"{self.seed} {name} {number}", rng.uniform(0.0, self.slow / 10)
            if rng.random() < 0.4:
                yield Life(seed, LONG, pause, kill_after=rng.uniform(self.slow / 4, self.slow))
            else:
                point = (rng.choice(KINDS_OF_UPKEEP), round(rng.paretovariate(0.5)), rng.random() < 0.5)
                yield Life(seed, rng.choice((2, 4)), pause, point=point)
        yield Life(f"{self.seed} {name} last", 3, rng.uniform(0.0, self.slow / 10))

    def _orders_of_keeper(self, name: str, life: Life) -> KeeperOrders:
        return KeeperOrders(
            root=str(self._clones[name].repo.root),
            log=str(self._log(name)),
            clone=name,
            seed=life.seed,
            turns=life.turns,
            point=life.point,
            forgiving=self.forgiving,
            environment=self.environment,
            small=self.small,
            quick=self.quick,
            archive=str(self._archive),
            graces=self.graces,
        )

    @property
    def _archive(self) -> Path:
        return self.team.root / "archive"

    def _history(self) -> list[Version]:
        """Read every version from the archive: the store no longer has those that were collected."""
        self._archive.mkdir(exist_ok=True)
        complete(self._archive, self.team.store())
        return read_history(open_store(self._archive.as_uri()))

    def _judge(self, history: Sequence[Version], accounts: Sequence[Account]) -> None:
        lines = [line for name in self._clones for line in read_keeper_log(self._log(name))]
        deletions = [line for line in lines if isinstance(line, Deleting)]
        wrong = audit(self.team.store(), history, accounts, deletions, self._fresh_files("auditor"))
        assert not wrong, "\n".join(wrong)
        super()._judge(history, accounts)
        for line in lines:
            self.tally.add(line)

    def _clean(self) -> None:
        """Compact and collect in peace: exactly what the head names is left, and that has all files."""
        files = self._fresh_files("before")
        keeper = next(iter(self._clones.values()))
        for _ in range(2):  # a compaction leaves what only the next collection may delete
            moved = api.compact(keeper.repo, dry_run=False, grace_s=_GONE_BY, engine="point")
            assert not moved.failures, moved
            api.collect(keeper.repo, dry_run=False, grace_s=_GONE_BY, engine="point")
        verified = api.verify(keeper.repo, deep=True, repair=False)
        assert (verified.ok, verified.unindexed, verified.leftovers) == (True, [], 0), verified
        assert self._fresh_files("after") == files
        listed, named = self.team.keys(), named_by_head(self.team.store())
        extra = {key for key in listed if key not in named and not key.startswith(f"{keys.LEASES}/")}
        assert extra == {FOREIGN}, f"a collection leaves {sorted(extra)}"

    def _fresh_files(self, name: str) -> dict[str, bytes]:
        clone = self.team.clone(name)
        report = clone.pull()
        assert report.exit_code == 0, report
        return clone.files
