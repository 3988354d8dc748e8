"""A collection that is killed at any step leaves the old state or the new one, and can be run again."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bayou.data.metadata import Metadata
from bayou.data.records import Records
from bayou.data.retention import plan_gc, run_gc
from bayou.repo import Repo, open_repo
from bayou.worktree.atomic_write import is_temporary
from tests.data.forks import fork, mortal
from tests.data.retention.conftest import LATER, WEB, Team, collected, put
from tests.sync.simulation.places import quick_directory


@pytest.fixture
def scene() -> Iterator[Path]:
    """A repo in which some versions have had their time: of one item the older, of another all."""
    with quick_directory() as directory:
        (directory / "store").mkdir()
        clone = Team(directory, (directory / "store").as_uri(), {}).clone("set")
        put(clone.repo, "surplus", b"1", b"22", b"333", keep="1")
        put(clone.repo, "expired", b"1", b"22", lifetime="10m")
        put(clone.repo, "kept", b"1", b"22")
        clone.sync()
        with Records(clone.repo) as records:
            records.catalog.refresh()
        yield directory


def visible(repo: Repo) -> set[tuple[str, int]]:
    """What is there: the files and the catalog say the same, and every version is whole."""
    root = repo.tree_root / "data" / WEB.type / WEB.id
    with Records(repo) as records:
        rows = records.data.find(all_versions=True)
        for row in rows:
            assert len(records.data.read(records.data.get(WEB, row.name, row.version))) == row.size
    seen = set()
    for file in root.glob("*/*/metadata.yaml"):
        metadata = Metadata.from_bytes(file.read_bytes(), str(file))
        if not metadata.deleted:
            seen.add((file.parent.parent.name, int(file.parent.name)))
    assert {(row.name, row.version) for row in rows} == seen
    return seen


def files(repo: Repo) -> dict[str, bytes]:
    """All files but temporary ones, which everybody ignores and the next sync clears away."""
    root = repo.tree_root
    found = (file for file in root.rglob("*") if file.is_file() and not is_temporary(file.name))
    return {str(file.relative_to(root)): file.read_bytes() for file in found}


def killed_at_every_step(copy: Callable[[], Repo]) -> Iterator[tuple[int, Repo]]:
    """Collect in processes that die, each one step later than the one before, until one lives; yield what is left."""
    for step in itertools.count(1):
        repo = copy()

        def collect(repo: Repo = repo, step: int = step) -> None:
            mortal(step)
            with Records(repo) as records:
                run_gc(records, plan_gc(records, LATER))

        _, status = os.waitpid(fork(collect), 0)
        if status == 0:
            return
        assert status == signal.SIGKILL
        yield step, repo


def test_a_collection_killed_at_any_step_is_done_or_not_and_done_by_the_next(scene: Path):
    numbers = itertools.count()

    def copy() -> Repo:
        target = scene / f"copy{next(numbers)}"
        shutil.copytree(scene / "set", target)
        return open_repo(target)

    undisturbed = copy()
    before = visible(undisturbed)
    collected(undisturbed, LATER)
    after, expected = visible(undisturbed), files(undisturbed)
    assert before - after == {("surplus", 1), ("surplus", 2), ("expired", 1), ("expired", 2)}
    seen = set()

    for step, repo in killed_at_every_step(copy):
        found = visible(repo)
        assert found in (before, after), f"killed before step {step}"
        seen.add(frozenset(found))
        assert not list(repo.state.glob("changes/*.json")), "what was left undone is done"
        collected(repo, LATER)
        assert files(repo) == expected, f"killed before step {step}"
        shutil.rmtree(repo.root)

    assert seen == {frozenset(before), frozenset(after)}, "some were killed before it counted, some after"
    assert next(numbers) > 10
