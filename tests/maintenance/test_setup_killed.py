"""F062: a setup is killed after each of its steps in turn, by a real SIGKILL; then the same command is typed again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from bayou.repo import open_repo
from tests.maintenance.setups import newcomer, set_up
from tests.sync import children
from tests.sync.conftest import Clone, Team

FILES = {"data/t/m/n/1/raw": b"1", "data/t/m/n/1/metadata.yaml": b"m", "files/x": b"x", "outputs/t/m/o.yaml": b"o"}
TEXTS = {path: content.decode() for path, content in FILES.items()}

# One process for all: each setup runs in a fork of it, which dies where it is told to.
SETUPS = """
import importlib, json
from bayou.repo import open_repo
from bayou.objectstore import probe
from bayou.maintenance.setup import setup
from bayou.sync import hydrate

probe.ROUNDS = 0

def after_step(step, count):
    module, _, names = step.partition(":")
    owner = importlib.import_module(module)
    *classes, name = names.split(".")
    for one in classes:
        owner = getattr(owner, one)
    after(owner, name, count)

died = []
for root, target, step, count in json.loads(sys.argv[1]):
    child = os.fork()
    if child == 0:
        after_step(step, count)
        setup(open_repo(root), target, namespace=None, options={}, lazy=False, skip_migration=False, timeout=None)
        os._exit(0)
    died.append(os.WIFSIGNALED(os.waitpid(child, 0)[1]))
print(json.dumps(died))
"""

INTO_STORE = [
    ("bayou.maintenance.setup:probe", 1),
    ("bayou.index.discovery:create_head", 1),
    ("bayou.maintenance.setup:_copy_into", 1),
    ("bayou.packs.write:PackWriter.drain", 1),
    ("bayou.sync.commit.commit:swap_head", 1),
    ("bayou.sync.commit.publish:_record_commit", 1),
    ("bayou.maintenance.setup:run", 1),
    ("bayou.maintenance.setup:write_datastore", 1),
]
INTO_DIRECTORY = [
    ("bayou.worktree.atomic_write:AtomicFile.rename", 2),
    ("bayou.maintenance.setup:copy", 1),
    ("bayou.maintenance.setup:write_datastore", 1),
    ("bayou.worktree.tree:Worktree.delete", 2),
    ("bayou.maintenance.setup:remove_moved", 1),
]


@dataclass(frozen=True)
class Move:
    """A repo that is about to move, and where to."""

    clone: Clone
    target: str


def from_local_to_store(team: Team, name: str) -> Move:
    return Move(newcomer(team, name, TEXTS), f"{team.url}-{name}")


def from_local_to_directory(team: Team, name: str) -> Move:
    return Move(newcomer(team, name, TEXTS), str(team.root / f"shared-{name}"))


def from_directory_to_store(team: Team, name: str) -> Move:
    clone = newcomer(team, name)
    set_up(clone, team.root / f"shared-{name}")
    for path, content in TEXTS.items():
        clone.lay(path, content)
    return Move(clone, f"{team.url}-{name}")


def from_store_to_directory(team: Team, name: str) -> Move:
    clone = newcomer(team, name, TEXTS)
    set_up(clone, f"{team.url}-{name}")
    lazy = newcomer(team, f"{name}-lazy")
    set_up(lazy, f"{team.url}-{name}", lazy=True)
    return Move(lazy, str(team.root / f"shared-{name}"))


def from_store_to_store(team: Team, name: str) -> Move:
    lazy = from_store_to_directory(team, name).clone
    return Move(lazy, f"{team.url}-{name}-two")


def payload(clone: Clone) -> dict[str, bytes]:
    """What lies in the tree, but for the temporary files that a killed process leaves behind."""
    return {path: content for path, content in clone.files.items() if not path.endswith(".tmp")}


def whole(team: Team, clone: Clone, name: str) -> bool:
    """Whether the place that the configuration names has everything, for whoever opens it now."""
    repo = open_repo(clone.repo.root)
    if repo.config.datastore.url is None:
        return payload(Clone(repo)) == FILES
    fresh = Team(team.root, repo.config.datastore.url, {}).clone(name)
    fresh.sync()
    return fresh.files == FILES


@pytest.mark.parametrize(
    ("prepare", "steps"),
    [
        (from_local_to_store, INTO_STORE),
        (from_local_to_directory, INTO_DIRECTORY),
        (
            from_directory_to_store,
            [("bayou.worktree.atomic_write:AtomicFile.rename", 2), *INTO_STORE[2:4], *INTO_STORE[-2:]],
        ),
        (from_store_to_directory, [("bayou.maintenance.setup:complete", 1), *INTO_DIRECTORY]),
        (from_store_to_store, [("bayou.maintenance.setup:hydrate", 1), *INTO_STORE[2:4], *INTO_STORE[-2:]]),
    ],
)
def test_f062_at_every_moment_the_configuration_names_a_place_whose_data_is_complete(
    team: Team, quick_probe: None, prepare: Callable[[Team, str], Move], steps: list[tuple[str, int]]
) -> None:
    moves = [prepare(team, f"repo{number}") for number in range(len(steps))]
    orders = [
        (str(move.clone.repo.root), move.target, step, count) for move, (step, count) in zip(moves, steps, strict=True)
    ]
    died = json.loads(children.output(SETUPS, json.dumps(orders)))
    assert died == [True] * len(steps)
    for number, (move, (step, _)) in enumerate(zip(moves, steps, strict=True)):
        assert whole(team, move.clone, f"then{number}"), step
        move.clone.reopen()
        again = set_up(move.clone, move.target)
        assert (again.conflicts, again.unfinished) == ([], None), step
        place = move.clone.repo.config.datastore
        assert move.target in (place.url, place.path), step
        assert whole(team, move.clone, f"end{number}"), step
        assert payload(move.clone) == FILES, step
        if place.path is not None:
            assert not Path(move.clone.repo.root, ".bayou/tree/files/x").exists(), step
