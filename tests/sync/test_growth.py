"""What must not grow: requests one after the other, and what a mark costs (section 15 of tests/failures.md)."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest

import bayou.objectstore.open as store_open
from bayou.objectstore.backends.directory import LocalTransport
from bayou.state.database import Database
from bayou.sync.service import Datastore
from bayou_testing.faulty import FaultyTransport
from tests.sync.conftest import Team

PATIENCE_S = 30


class Together(LocalTransport):
    """A store that answers a write only when so many of its kind are waiting for an answer."""

    waiting: dict[str, threading.Barrier]
    met: set[str]

    def put(self, key: str, *args: Any, **kwargs: Any) -> Any:
        for kind, barrier in self.waiting.items():
            if re.search(kind, key) and kind not in self.met:
                barrier.wait(PATIENCE_S)  # BrokenBarrierError, should they come one after the other
                self.met.add(kind)
        return super().put(key, *args, **kwargs)


@pytest.mark.usefixtures("loose_objects")
def test_f124_payload_and_index_nodes_are_written_side_by_side(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    clone = team.clone("a")
    clone.write_all({f"data/t/m{number}/n/1/raw": b"%d" % number for number in range(1000)})
    clone.push()
    clone.write_all({f"data/t/m{number}/n/2/raw": b"%d" % number for number in range(1000)})
    meeting = {r"/~": threading.Barrier(32), r"\.bayou/nodes/": threading.Barrier(2)}

    met = let_meet(monkeypatch, meeting)

    assert clone.push().pushed.files == 1000
    assert met == set(meeting)


def test_a_pack_and_the_nodes_that_name_its_files_are_written_side_by_side(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three round trips push a file: the head; pack and nodes; the swap."""
    clone = team.clone("a")
    clone.write("data/t/m/n/1/raw", "1")
    clone.push()
    clone.write("data/t/m/n/2/raw", "2")
    both = r"\.bayou/(packs|nodes)/"

    met = let_meet(monkeypatch, {both: threading.Barrier(2)})

    assert clone.push().pushed.files == 1
    assert met == {both}


def let_meet(monkeypatch: pytest.MonkeyPatch, meeting: dict[str, threading.Barrier]) -> set[str]:
    """Make directory stores wait for writes of these kinds; return the kinds that have met, as they do."""
    met: set[str] = set()

    def connect(place: Any, _: Any) -> FaultyTransport:
        transport = Together(Path(place.bucket))
        transport.waiting, transport.met = meeting, met
        return FaultyTransport(transport)

    monkeypatch.setitem(store_open.BUILT_IN, "file", connect)
    return met


def test_f126_a_mark_costs_the_same_however_many_came_before(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Database, "pragmas", ("journal_mode = WAL", "synchronous = OFF"))  # the bytes are the same
    clone = team.clone("a")
    written = []
    with Datastore(clone.repo) as datastore:
        for part in range(10):
            before = _written()
            for number in range(2000):
                datastore.sync.mark_dirty(f"files/{part}/{number}").done()
            written.append(_written() - before)

    assert clone.status().journal_paths == 20_000
    assert max(written[1:]) < 2 * min(written[1:])


def _written() -> int:
    """Return how many bytes this process has written so far."""
    found = re.search(r"^wchar: (\d+)$", Path("/proc/self/io").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])
