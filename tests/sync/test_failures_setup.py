"""Migration and setup: section 8 of tests/failures.md. Configuration switches last; a killed setup can run again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import bayou.objectstore.open as store_open
from bayou.config import parse_config
from bayou.core.errors import (
    AccessDenied,
    AlreadyExists,
    BayouError,
    DeadlinePassed,
    NoConditionalWrites,
    NotFound,
    PreconditionFailed,
    SyncError,
)
from bayou.objectstore.backends.directory import LocalTransport
from bayou.objectstore.transport import Create, Match, PutResult
from bayou_testing.faulty import Fault, FaultyTransport
from bayou_testing.proxy import HttpProxy
from tests import api
from tests.maintenance.setups import newcomer, set_up
from tests.sync.conftest import OBJECTS, UPLOADS, Team, Wire
from tests.sync.indexes import entries_of

LOCAL = {f"files/local-{number}": f"local {number}" for number in range(10)}
OURS = {path: content.encode() for path, content in LOCAL.items()}


def stocked(team: Team, count: int) -> dict[str, bytes]:
    """Let somebody else push some files; return them."""
    files = {f"files/remote-{number}": f"remote {number}".encode() for number in range(count)}
    other = team.clone("other")
    other.write_all(files)
    other.sync()
    return files


def fresh(team: Team, name: str = "fresh") -> dict[str, bytes]:
    clone = team.clone(name)
    assert clone.sync().exit_code == 0
    return clone.files


@pytest.mark.usefixtures("loose_objects")
def test_f055_a_push_that_fails_midway_leaves_the_repo_as_it_was(team: Team, wire: Wire) -> None:
    a = newcomer(team, "a", LOCAL)
    config = a.repo.file.read_text()
    wire.cut(Fault("put", OBJECTS, nth=5, times=99, error=lambda: AccessDenied("403")))
    with pytest.raises(SyncError, match="could not be moved"):
        set_up(a, team)
    assert (a.repo.file.read_text(), a.files) == (config, OURS)
    wire.cut()
    wire.seen.clear()
    report = set_up(a, team)
    assert (report.pushed, len(wire.sent("put", OBJECTS))) == (6, 6)
    assert fresh(team) == OURS
    assert a.status().in_sync


def test_f056_a_push_that_does_not_end_in_time_switches_and_can_be_finished(
    both_ways: str, team: Team, wire: Wire
) -> None:
    a = newcomer(team, "a", LOCAL)
    nth = 1 if both_ways == "packs" else 5
    wire.cut(Fault("put", UPLOADS, nth=nth, times=99, error=lambda: DeadlinePassed("not finished after 1 s")))
    report = set_up(a, team, timeout=60)
    assert report.unfinished == "not finished after 1 s"
    assert a.repo.config.datastore.url == team.url
    assert not a.status().in_sync
    wire.cut()
    assert a.push().exit_code == 0
    assert fresh(team) == OURS
    assert (a.status().in_sync, a.status().journal_paths) == (True, 0)


def test_f056_a_hydration_that_does_not_end_in_time_switches_and_can_be_finished(
    both_ways: str, team: Team, wire: Wire
) -> None:
    there = stocked(team, 5)
    a = newcomer(team, "a")
    nth = 1 if both_ways == "packs" else 2
    wire.cut(Fault("get", UPLOADS, nth=nth, times=99, error=lambda: DeadlinePassed("not finished after 1 s")))
    assert set_up(a, team).unfinished is not None
    wire.cut()
    a.sync()
    assert a.files == there


def test_f056_time_that_passes_before_anything_moves_switches_nothing(team: Team, wire: Wire) -> None:
    a = newcomer(team, "a", LOCAL)
    config = a.repo.file.read_text()
    wire.cut(Fault("list", "^$", error=lambda: DeadlinePassed("not finished after 1 s")))
    with pytest.raises(DeadlinePassed):
        set_up(a, team)
    assert (a.repo.file.read_text(), a.files) == (config, OURS)


def test_f057_joining_without_migration_fills_the_tree(team: Team) -> None:
    there = stocked(team, 17)
    a = newcomer(team, "a", LOCAL)
    report = set_up(a, team, skip_migration=True)
    assert (report.pulled, report.pushed, report.migrated) == (17, 0, 0)
    assert a.files == {**OURS, **there}
    synced = a.sync()
    assert (synced.untracked, synced.pushed.files) == (sorted(LOCAL), 0)
    assert fresh(team) == there


@pytest.mark.usefixtures("loose_objects")
def test_f058_what_is_reported_is_what_the_server_saw(s3_team: Team, proxy: HttpProxy) -> None:
    stocked(s3_team, 12)
    a = newcomer(s3_team, "a", LOCAL)

    def moved() -> tuple[int, int, int, int, int]:
        puts, gets = proxy.log.rows(method="PUT", path=OBJECTS), proxy.log.rows(method="GET", path=OBJECTS)
        swaps = proxy.log.count(method="PUT", path=r"head\.json$")
        return len(puts), sum(row.received for row in puts), len(gets), sum(row.sent for row in gets), swaps

    proxy.log.clear()
    report = set_up(a, s3_team)
    assert (report.pushed, report.bytes_pushed, report.pulled, report.bytes_pulled, 1) == moved()
    assert (report.pushed, report.pulled) == (10, 12)
    other = s3_team.clone("later")
    other.sync()
    other.write("files/remote-0", "changed there")
    other.sync()
    a.write("files/local-0", "changed here")
    proxy.log.clear()
    synced = a.sync()
    pulled, pushed = synced.pulled, synced.pushed
    assert (pushed.files, pushed.bytes, pulled.files, pulled.bytes, 1) == moved()
    assert synced.requests.total == len(proxy.log.rows())


def test_f059_files_that_no_journal_names_are_migrated(team: Team) -> None:
    there = stocked(team, 3)
    a = newcomer(team, "a", LOCAL)
    report = set_up(a, team)
    assert (report.pushed, report.pulled, report.migrated) == (10, 3, 10)
    assert a.status().in_sync
    assert a.files == fresh(team) == {**OURS, **there}


VERSION = "data/t/m/n/1"


def test_f060_a_name_on_both_sides_loses_neither_content_in_a_store(team: Team) -> None:
    other = team.clone("other")
    other.write_all({"files/x": b"theirs", "files/equal": b"equal", f"{VERSION}/raw": b"theirs"})
    other.sync()
    a = newcomer(
        team,
        "a",
        {"files/x": "ours", "files/equal": "equal", f"{VERSION}/raw": "ours", f"{VERSION}/extra": "ours too"},
    )
    first = set_up(a, team)
    kept = {one.path: Path(one.copy or "").read_text() for one in first.conflicts}
    assert kept == {"files/x": "ours", f"{VERSION}/raw": "ours", f"{VERSION}/extra": "ours too"}
    assert a.files == fresh(team) == {"files/x": b"theirs", "files/equal": b"equal", f"{VERSION}/raw": b"theirs"}
    again = set_up(a, team)
    assert (again.conflicts, again.pushed, again.pulled) == ([], 0, 0)
    assert {one.path for one in api.conflicts(a.repo)} == kept.keys()


def test_f060_a_name_on_both_sides_loses_neither_content_in_a_directory(team: Team) -> None:
    target = team.root / "shared"
    theirs = {"files/x": "theirs", "files/equal": "equal", f"{VERSION}/raw": "theirs", f"{VERSION}/meta": "both"}
    for path, content in theirs.items():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_text(content)
    version = {f"{VERSION}/raw": "ours", f"{VERSION}/meta": "both", f"{VERSION}/extra": "ours"}
    a = newcomer(team, "a", {"files/x": "ours", "files/equal": "equal", "files/only": "ours", **version})
    old = a.repo.tree_root
    first = set_up(a, target)
    kept = {one.path: Path(one.copy or "").read_text() for one in first.conflicts}
    assert kept == {"files/x": "ours", **version}
    # A version directory is theirs, whole: nothing of ours was mixed into it.
    assert a.files == {path: content.encode() for path, content in (theirs | {"files/only": "ours"}).items()}
    assert not (old / "files/only").exists()
    assert (old / "files/x").read_text() == "ours"
    assert set_up(a, target).conflicts == []


@pytest.mark.parametrize("hydrate", ["full", "lazy"])
def test_f061_from_a_store_to_a_directory_everything_moves(team: Team, hydrate: str) -> None:
    other = team.clone("other")
    files = {"data/t/m/n/1/raw": b"1", "data/t/m/n/2/raw": b"2", "files/x": b"x"}
    other.write_all(files)
    other.sync()
    a = team.clone("a", hydrate=hydrate)
    a.sync()
    assert len(a.files) == (3 if hydrate == "full" else 1)
    cache = a.repo.tree_root
    report = set_up(a, team.root / "shared")
    assert (report.migrated, a.files) == (3, files)
    assert a.repo.tree_root == team.root / "shared"
    assert not [file for file in cache.rglob("*") if file.is_file()]


def test_f061_what_cannot_be_fetched_leaves_everything_as_it_was(team: Team) -> None:
    other = team.clone("other")
    for path, data in {"data/t/m/n/1/raw": b"1", "files/x": b"x"}.items():
        other.write(path, data)
        other.sync()
    a = team.clone("a", hydrate="lazy")
    a.sync()
    config = a.repo.file.read_text()
    team.store().delete([entries_of(team.store())["data/t/m/n/1/raw"].key])
    with pytest.raises(SyncError, match="data/t/m/n/1/raw"):
        set_up(a, team.root / "shared")
    assert (a.repo.file.read_text(), a.files) == (config, {"files/x": b"x"})
    assert not [file for file in (team.root / "shared").rglob("*") if file.is_file()]


COMMENTED = """\
# What this repo is for.
repo_id = "9f3b1c1e-6f0b-4e6f-8f5e-0a3a4b0d7c11" # never changes

[sync]
# The link is slow here.
timeout = 120
"""


def test_f063_setting_the_same_thing_twice_moves_nothing_and_keeps_comments(team: Team) -> None:
    a = newcomer(team, "a", LOCAL)
    a.repo.file.write_text(COMMENTED)
    a.reopen()
    first = set_up(a, team, namespace="n")
    assert (first.pushed, first.namespace) == (10, "n")
    text = a.repo.file.read_text()
    second = set_up(a, team, namespace="n")
    assert (second.pushed, second.pulled, second.migrated, second.conflicts) == (0, 0, 0, [])
    assert a.repo.file.read_text() == text
    assert text.startswith(COMMENTED)
    config = parse_config(text, "bayou.toml")
    assert (config.datastore.url, config.datastore.namespace, config.sync.timeout) == (team.url, "n", 120)


class Careless(FaultyTransport):
    """A server that honours some preconditions, or checks them at another moment than it writes."""

    promise = ""

    def put(self, key: str, data: Any, *, condition: Any = None, **more: Any) -> PutResult:
        if self.promise == "nothing" or (self.promise == "creation" and isinstance(condition, Match)):
            condition = None
        elif self.promise == "a look before" and condition is not None:
            self._look(key, condition, more["timeout"])
            time.sleep(0.01)  # as long as a slow server takes between its check and its write
            condition = None
        return super().put(key, data, condition=condition, **more)

    def _look(self, key: str, condition: Create | Match, timeout: float) -> None:
        """Raise what a good server would raise, as of now."""
        try:
            etag = self.inner.head(key, timeout=timeout).etag
        except NotFound:
            etag = None
        if isinstance(condition, Create) and etag is not None:
            raise AlreadyExists(key)
        if isinstance(condition, Match) and etag != condition.etag:
            raise PreconditionFailed(key)


@pytest.mark.parametrize("promise", ["nothing", "creation", "a look before"])
def test_f064_a_store_that_ignores_preconditions_is_refused(
    team: Team, monkeypatch: pytest.MonkeyPatch, promise: str
) -> None:
    def careless(place: Any, _: Any) -> Careless:
        transport = Careless(LocalTransport(Path(place.bucket)))
        transport.promise = promise
        return transport

    monkeypatch.setitem(store_open.BUILT_IN, "file", careless)
    a = newcomer(team, "a", LOCAL)
    config = a.repo.file.read_text()
    with pytest.raises(NoConditionalWrites, match="does not honour conditional writes"):
        set_up(a, team)
    assert (a.repo.file.read_text(), a.files) == (config, OURS)
    assert team.keys() == {}
    # A first push that would create the head is as careful as setup.
    b = team.clone("b")
    b.write("files/x", "x")
    with pytest.raises(NoConditionalWrites):
        b.push()
    assert team.keys() == {}


def test_a_setup_that_is_refused_names_the_reason_before_any_request(team: Team, wire: Wire) -> None:
    a = newcomer(team, "a", LOCAL)
    for target, more in (
        ("s3://bucket/../x", {}),
        ("nowhere://x", {}),
        (team.url, {"namespace": "data"}),
        (str(team.root / "a/.bayou/state"), {}),
        (str(team.root / "no/such/parent"), {}),
        (str(team.root / "directory"), {"namespace": "n"}),
    ):
        with pytest.raises(BayouError):
            set_up(a, target, **more)
    assert wire.seen == []
