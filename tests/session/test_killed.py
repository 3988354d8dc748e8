"""A session that is killed at any request leaves no lease behind after its TTL, and loses nothing (V14, V19)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from bayou.leases import open_leases
from bayou.session import write_session
from bayou.sync.plan.policy import ModelRef
from bayou.worktree.atomic_write import is_temporary
from tests.sync import children
from tests.sync.conftest import Clone, Team
from tests.sync.simulation.places import quick_directory

ONE = ModelRef("@org/shell", "11111111-1111-4111-8111-111111111111", "one")

WRITES = """
import json
from pathlib import Path
import bayou.leases.leases as leases
import bayou.objectstore.open as store_open
from bayou.repo import open_repo
from bayou.session import write_session
from bayou.objectstore.backends.directory import LocalTransport
from bayou.sync.plan.policy import ModelRef
from bayou_testing.faulty import Fault, FaultyTransport

root, number, when, ttl, journal = sys.argv[1:6]
leases.TTL_S = float(ttl)
repo = open_repo(root)
fault = Fault(nth=int(number), when=when, error=die)
store = Path(repo.config.datastore.url.removeprefix("file://"))
one = FaultyTransport(LocalTransport(store), [fault])  # for lease, pull and push alike: requests count through
store_open.BUILT_IN["file"] = lambda place, _: one
model = ModelRef(*json.loads(sys.argv[6]))
with write_session(repo, models=[model]) as session:
    session.records.data.save(model, "log", b"of the one that dies")
    Path(journal).write_text("saved")
"""

TTL_S = 0.4
REQUESTS = 10
"""A session sends more: three for its lease, one to pull, five to push, one to release."""


@pytest.fixture
def place() -> Iterator[Path]:
    with quick_directory() as directory:
        yield directory


# What is left after one request is what is left before the next, but for what runs side by side.
@pytest.mark.parametrize("when", ["before", pytest.param("after", marks=pytest.mark.soak)])
def test_a_session_that_is_killed_at_any_request_is_followed_by_one_that_finds_everything(
    place: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bayou.leases.leases.TTL_S", TTL_S)
    for number in range(1, 60):
        root = place / str(number)
        (root / "store").mkdir(parents=True)
        team = Team(root, (root / "store").as_uri(), {})
        a, b = team.clone("a"), team.clone("b")
        a.push()
        saved = root / "saved"

        died = children.run_to_death(
            WRITES, a.repo.root, number, when, TTL_S, saved, json.dumps([ONE.type, ONE.id, ONE.name])
        )
        here = dict(a.files)
        left = bool(open_leases(a.repo).list())
        contents = _work_on(a)

        assert open_leases(a.repo).list() == [], f"killed {when} request {number}"
        both = [b"of the one that dies", b"of the next"]
        # A renewal in the background may be what it dies of, after the save and before its word of it.
        assert contents == both or (contents == both[1:] and not saved.exists()), f"killed {when} request {number}"
        b.pull()
        # It may die in the middle of a write, whose half is swept away later: tomorrow.
        assert b.files == _whole(a.files)
        assert _whole(here).items() <= a.files.items()
        shutil.rmtree(root)
        if not died and not left and number > REQUESTS:
            return
    pytest.fail("it never came to an end")


def _whole(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return what nobody is writing, or was."""
    return {path: data for path, data in files.items() if not any(map(is_temporary, path.split("/")))}


def _work_on(clone: Clone) -> list[bytes]:
    """Save another version, as the next command does; return what all of them hold."""
    with write_session(clone.repo, models=[ONE]) as session:
        data = session.records.data
        session.records.data.save(ONE, "log", b"of the next")
        versions = sorted(row.version for row in data.versions(ONE, "log"))
        return [data.read(data.get(ONE, "log", version)) for version in versions]
