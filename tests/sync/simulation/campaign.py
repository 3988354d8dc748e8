"""Play scenario after scenario, and tell how to see a bad one again.

As a program, `python -m tests.sync.simulation.campaign SEED INTERLEAVINGS` plays until that many interleavings are
explored, and prints how many scenarios that took; a violation ends it with its trace. How far it is goes to stderr.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import bayou
from tests.sync.simulation.places import quick_directory
from tests.sync.simulation.world import World

SEED = "BAYOU_SIM_SEED"
_TAIL = 400
_TOLD_EVERY = 1000


class Found(AssertionError):
    """A scenario that breaks a property, with its trace and the way to play it again."""


@dataclass
class Tally:
    """What was played. An interleaving is one order of the steps of commands that ran at the same time."""

    scenarios: int = 0
    interleavings: int = 0

    def __str__(self) -> str:
        return f"{self.interleavings} interleavings in {self.scenarios} scenarios"


def play(seed: int, tally: Tally) -> None:
    """Play one scenario."""
    with quick_directory() as directory:
        world = World(seed, directory)
        try:
            world.run()
        except Exception as error:
            told = "\n".join(world.trace[-_TAIL:])
            raise Found(
                f"{type(error).__name__}: {error}\n\n{told}\n\nthe same again: {SEED}={seed} ./dev test "
                f"tests/sync/simulation -k given_seed"
            ) from error
    tally.scenarios += 1
    tally.interleavings += len(world.interleavings)


def explore(rng: random.Random, interleavings: int, *, clients: int | None = None) -> Tally:
    """Play until so many interleavings are explored, with two clients, with three, or (None) with either."""
    tally = Tally()
    while tally.interleavings < interleavings:
        third = rng.randrange(2) if clients is None else clients - 2
        before = tally.interleavings
        play(2 * rng.randrange(1 << 40) + third, tally)
        if tally.interleavings // _TOLD_EVERY > before // _TOLD_EVERY:
            print(tally, file=sys.stderr, flush=True)
    return tally


def explore_on_all_cores(seed: str, interleavings: int) -> Tally:
    """Play in as many processes as there are cores; the first that finds something raises.

    Each stays on a core of its own: of its threads one runs at a time, and to wake one on another core takes longer.
    """
    cores = sorted(os.sched_getaffinity(0))
    root = Path(__file__).parents[3]
    paths = os.pathsep.join([str(Path(bayou.__path__[0]).parent), str(root)])
    share = -(-interleavings // len(cores))
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", __name__, f"{seed} {number}", str(share)],
            cwd=root,
            env={**os.environ, "PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(len(cores))
    ]
    whole = Tally()
    try:
        for worker, core in zip(workers, cores, strict=True):
            os.sched_setaffinity(worker.pid, {core})
        for worker in workers:
            printed, _ = worker.communicate()
            if worker.returncode:
                raise Found(printed)
            told = json.loads(printed)
            whole.scenarios += told["scenarios"]
            whole.interleavings += told["interleavings"]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    return whole


if __name__ == "__main__":
    try:
        done = explore(random.Random(sys.argv[1]), int(sys.argv[2]))
    except Found as found:
        print(found)
        sys.exit(1)
    print(json.dumps({"scenarios": done.scenarios, "interleavings": done.interleavings}))
