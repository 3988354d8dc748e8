"""What killed writers leave in a tree goes; what a living one is about to name stays (V14)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest

from bayou.core.ids import ulid, ulid_ms
from bayou.sync.service import Datastore
from bayou.worktree.atomic_write import is_temporary
from tests.sync import children
from tests.sync.conftest import Clone, Team

DAY = 86_400.0
DIRECTORY = "data/t/m/n/1"

HALF_A_WRITE = """
from bayou.repo import open_repo
from bayou.sync.service import Datastore

with Datastore(open_repo(sys.argv[1])) as datastore, datastore.tree.writing("data/t/m/n/1/raw") as file:
    file.write(b"half")
    file.flush()
    die()
"""


@pytest.fixture
def clone(team: Team) -> Clone:
    """A clone with one file, in sync."""
    clone = team.clone("a")
    clone.write("files/x", "x")
    clone.sync()
    return clone


def ulid_of(days_ago: float) -> str:
    return ulid(round((time.time() - days_ago * DAY) * 1000))


def age(path: Path, days: float) -> None:
    moment = time.time() - days * DAY
    os.utime(path, (moment, moment))


def lay(clone: Clone, days: float, *, directory: bool = False) -> Path:
    """Leave a temporary that was begun and last written to so many days ago."""
    temporary = clone.repo.tree_root / DIRECTORY / f".bayou-{ulid_of(days)}.tmp"
    temporary.parent.mkdir(parents=True, exist_ok=True)
    if directory:
        temporary.mkdir()
        (temporary / "raw").write_bytes(b"half")
        age(temporary / "raw", days)
    else:
        temporary.write_bytes(b"half")
    age(temporary, days)
    return temporary


@contextmanager
def present_since(clone: Clone, days: float) -> Iterator[Datastore]:
    """A process, this one, that has been at work on the tree for so many days."""
    with patch("bayou.state.journal.ulid", lambda: ulid_of(days)):
        datastore = Datastore(clone.repo)
    with datastore:
        yield datastore


def temporaries(clone: Clone) -> list[str]:
    return [path for path in clone.files if is_temporary(path.rpartition("/")[2])]


def test_a_ulid_tells_when_it_was_made() -> None:
    assert ulid_ms(ulid(1_763_258_400_123)) == 1_763_258_400_123


def test_what_a_killed_writer_left_goes_a_day_later_with_the_directories_made_for_it(clone: Clone) -> None:
    assert children.run_to_death(HALF_A_WRITE, clone.repo.root)
    (left,) = temporaries(clone)
    clone.sync()
    assert temporaries(clone) == [left]
    file = clone.repo.tree_root / left
    age(file.rename(file.with_name(f".bayou-{ulid_of(1.1)}.tmp")), 1.1)
    report = clone.sync()
    assert clone.files == {"files/x": b"x"}
    assert not (clone.repo.tree_root / "data/t").exists()
    assert (report.engine, report.requests.total, report.warnings) == ("fast", 1, [])


def test_an_assembled_directory_goes_too_unless_something_in_it_is_new(clone: Clone) -> None:
    old, busy = lay(clone, 2, directory=True), lay(clone, 2, directory=True)
    age(busy / "raw", 0.5)
    clone.sync()
    assert not old.exists()
    assert (busy / "raw").read_bytes() == b"half"


@pytest.mark.parametrize("directory", [False, True])
def test_a_young_temporary_stays(clone: Clone, directory: bool) -> None:
    young = lay(clone, 0.9, directory=directory)
    clone.sync()
    assert young.exists()


def test_a_file_that_is_written_to_for_days_stays(clone: Clone) -> None:
    slow = lay(clone, 3)
    age(slow, 0.1)
    clone.sync()
    assert slow.exists()


def test_a_writer_that_is_still_here_keeps_what_it_began_however_long_ago(clone: Clone) -> None:
    with present_since(clone, 3) as datastore:
        dead = lay(clone, 4)
        with (
            patch("bayou.worktree.atomic_write.ulid", lambda: ulid_of(2)),
            datastore.tree.writing("data/t/m/n/1/raw") as file,
        ):
            file.write(b"slow, and whole")
            file.flush()
            (mine,) = [path for path in temporaries(clone) if not dead.match(path)]
            age(clone.repo.tree_root / mine, 2)
            clone.sync()
            assert temporaries(clone) == [mine]
    assert clone.files["data/t/m/n/1/raw"] == b"slow, and whole"
    assert clone.sync().pushed.files == 1


def test_a_process_that_came_later_protects_nothing_older(clone: Clone) -> None:
    with present_since(clone, 1.5):
        dead = lay(clone, 2)
        clone.sync()
        assert not dead.exists()


def test_what_a_change_set_names_waits_for_it(clone: Clone) -> None:
    awaited, dead = lay(clone, 2, directory=True), lay(clone, 2, directory=True)
    changes = clone.repo.state / "changes"
    changes.mkdir()
    change = changes / f"{ulid()}.json"
    change.write_text(f'{{"placements": [["data/t/m/n", "{awaited.name}"]]}}')
    clone.sync()
    assert awaited.exists()
    assert not dead.exists()
    change.unlink()
    clone.sync()
    assert not awaited.exists()


def test_only_a_look_at_the_whole_tree_that_may_change_it_sweeps(clone: Clone) -> None:
    dead = lay(clone, 2)
    clone.sync(dry_run=True)
    clone.sync(walk=False)
    assert dead.exists()
    clone.pull()
    assert not dead.exists()


def test_names_that_only_look_alike_are_left_alone(clone: Clone) -> None:
    (clone.repo.tree_root / "files/.bayou-notes.tmp").write_text("mine")
    age(clone.repo.tree_root / "files/.bayou-notes.tmp", 30)
    clone.sync()
    assert (clone.repo.tree_root / "files/.bayou-notes.tmp").read_text() == "mine"


def test_presence_of_processes_that_died_does_not_pile_up(clone: Clone) -> None:
    owners = clone.repo.state / "owners"
    for _ in range(3):
        (owners / ulid_of(2)).write_bytes(b"")
    (owners / ".nfs0001").write_bytes(b"")
    dead = lay(clone, 1.5)
    with Datastore(clone.repo):
        clone.sync()
        assert len(os.listdir(owners)) == 2
    assert not dead.exists()
    assert os.listdir(owners) == [".nfs0001"]
