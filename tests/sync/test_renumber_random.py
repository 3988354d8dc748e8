"""Clones make versions, pull and push in any way, and die at any request: no version is lost, and none doubled."""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest

from bayou.data.sync_hooks import renumber
from bayou.sync.plan.policy import ModelRef
from bayou.sync.service import Datastore
from bayou_testing.faulty import Crash, Fault, crash, lost_answer
from tests.sync.conftest import Clone, Team, Wire
from tests.sync.test_renumber import version, versions

MODELS = [ModelRef("t", name, name) for name in ("m1", "m2")]
ITEMS = [f"{model.prefixes()[0]}log" for model in MODELS]


def save(clone: Clone, item: str, content: str) -> None:
    """Save a version as a repository does: under the next number that this machine knows of."""
    taken = clone.repo.tree_root / item
    here = [int(name) for name in os.listdir(taken) if name.isdigit()] if taken.is_dir() else []
    with Datastore(clone.repo) as datastore:
        known = [int(path.split("/")[4]) for path in datastore.sync.known(f"{item}/")]
        number = 1 + max([*here, *known], default=0)
        with datastore.tree.stage_directory(item) as assembly:
            files = {path.rpartition("/")[2]: data for path, data in version(number, content, item=item).items()}
            for name, data in files.items():
                assembly.write(name, data)
            assembly.sync()
            assert assembly.install(f"{item}/{number}", list(files))


def exchange(clone: Clone, rng: random.Random) -> None:
    """Sync in one of the ways that there are."""
    match rng.randrange(4):
        case 0:
            clone.sync(mode=rng.choice(["sync", "push", "pull"]), renumber=renumber, walk=rng.random() < 0.5)
        case 1:
            with Datastore(clone.repo, renumber=renumber) as datastore:
                datastore.sync.pull_changed([rng.choice(MODELS)])
        case 2:
            with Datastore(clone.repo, renumber=renumber) as datastore:
                datastore.sync.push_changed()
        case 3:
            with Datastore(clone.repo, renumber=renumber) as datastore:
                datastore.sync.pull_changed([rng.choice(MODELS)])
                datastore.sync.push_changed()


def play(team: Team, wire: Wire, rng: random.Random, steps: int) -> None:
    clones = [team.clone(name) for name in "abc"]
    clones[0].push()  # a store with a head: the probe before the first one has threads that no crash is meant for
    saved: Counter[tuple[str, str]] = Counter()
    for step in range(steps):
        clone = rng.choice(clones)
        if rng.random() < 0.4:
            item, content = rng.choice(ITEMS), f"{clone.repo.root.name} {step}"
            save(clone, item, content)
            saved[item, content] += 1
            continue
        error = rng.choice([None, None, crash, crash, lost_answer])
        if error is not None:
            wire.cut(Fault(nth=rng.randrange(1, 12), when=rng.choice(["before", "after"]), error=error))
        try:
            exchange(clone, rng)
        except Crash:
            pass
        wire.cut()
    for _ in range(3):
        for clone in clones:
            report = clone.sync(renumber=renumber)
            assert report.conflicts == []
    for clone in clones:
        found = Counter((item, content) for item in ITEMS for content in versions(clone, item).values())
        assert found == saved
        assert clone.files == clones[0].files
        assert clone.status().in_sync


@pytest.mark.usefixtures("no_backoff")
def test_whatever_three_clones_do_every_version_is_there_once(team: Team, wire: Wire, rng: random.Random) -> None:
    play(team, wire, rng, 40)


@pytest.mark.soak
@pytest.mark.usefixtures("no_backoff")
@pytest.mark.parametrize("round_", range(20))
def test_whatever_three_clones_do_every_version_is_there_once_at_length(
    team: Team, wire: Wire, rng: random.Random, round_: int
) -> None:
    play(team, wire, rng, 60)
