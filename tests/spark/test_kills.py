"""Whoever is killed in the middle of a job: it finishes or says what happened, and the same command again completes it.

Real processes, real SIGKILLs. A job is made to wait where only its workers are, somebody is killed, and it goes on.
What a dead command has left to others is let go only after the next one is done: whatever comes late must be harmless.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from bayou.config import SparkConfig
from bayou.core.ids import ulid
from bayou.objectstore import keys
from bayou.packs.write import IN_FLIGHT
from bayou.spark.server.control import SparkServer
from bayou_testing.proxy import HttpProxy
from bayou_testing.seaweed import SeaweedServer
from tests.cli.conftest import Processes, Ran
from tests.spark.kill_scenes import (
    JOBS,
    MANY_FILES,
    MANY_PACKS,
    PACKS,
    WAITING_PACK,
    Scene,
    clean,
    large_push,
    large_push_of_packs,
)
from tests.spark.messy import entries_of
from tests.sync.conftest import Clone, Team

pytestmark = [
    pytest.mark.spark,
    pytest.mark.s3,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="workers are found by who has started them"),
]

_PATIENCE_S = 400.0
_LOST = {"spark_lost"}
_STORE_GONE = {"store_unavailable", "cannot_connect", "timed_out", "delete_failed"}


def kill_workers() -> None:
    """Kill every Python worker of the server: daemons fork them, which the server has started."""
    below = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = stat.read_text().rpartition(")")[2].split()[1]
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        below[int(parent)].append(int(stat.parent.name))
    workers = [worker for daemon in below[server()] for worker in below[daemon]]
    assert workers
    for worker in workers:
        with suppress(ProcessLookupError):  # an idle one, of another session
            os.kill(worker, signal.SIGKILL)


def server() -> int:
    found = SparkServer.of(SparkConfig()).running()
    assert found is not None
    return found.pid


def begin(processes: Processes, scene: Scene, *python: str) -> subprocess.Popen[str]:
    command = [*python, "--repo", str(scene.root), "--json", *scene.command]
    return processes.start(command, stderr=subprocess.PIPE, **scene.environ)


def finish(process: subprocess.Popen[str]) -> Ran:
    out, err = process.communicate(timeout=_PATIENCE_S)
    return Ran(process.returncode, out, err)


def reach(process: subprocess.Popen[str], scene: Scene) -> None:
    """Wait until the job waits."""
    until = time.monotonic() + _PATIENCE_S
    while not scene.pause.arrived():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)


def fresh(scene: Scene, name: str) -> Clone:
    """Return a clone that has pulled what others see."""
    clone = scene.team.clone(name)
    clone.pull(engine="point")
    return clone


def said(ran: Ran) -> str:
    """Return the code of an error that is one line and says what to do; "" if there was none."""
    if ran.code == 0:
        return ""
    assert ran.code in (1, 2), ran
    error = ran.error
    assert error["message"]
    assert "\n" not in error["message"]
    assert error["hint"]
    return str(error["code"])


def cut_short(scene: Scene, processes: Processes, kill: Callable[[subprocess.Popen[str]], None], *, late: bool) -> Ran:
    """Begin the command and kill somebody in its middle; what still waits goes on at once, or when all is over."""
    scene.pause.begin()
    process = begin(processes, scene, *scene.pause.main)
    reach(process, scene)
    kill(process)
    if not late:
        scene.pause.release()
    return finish(process)


def completed(scene: Scene, processes: Processes) -> None:
    """Look at what is there, run the command again, let go what waits, and look again."""
    try:
        scene.kept(fresh(scene, "after-the-kill"))
        again = finish(begin(processes, scene, "-m", "bayou"))
        assert again.code == 0, again
    finally:
        scene.pause.release()
    other = fresh(scene, "in-the-end")
    scene.done(other)
    assert clean(other)


def worker_killed(job: str, team: Team, proxy: HttpProxy, processes: Processes) -> None:
    scene = JOBS[job](team, proxy)
    ran = cut_short(scene, processes, lambda _: kill_workers(), late=False)
    assert said(ran) == "", ran
    completed(scene, processes)


def server_killed(job: str, team: Team, proxy: HttpProxy, processes: Processes) -> None:
    scene = JOBS[job](team, proxy)
    ran = cut_short(scene, processes, lambda _: os.kill(server(), signal.SIGKILL), late=True)
    # What nobody has asked Spark for, the command does by itself.
    assert said(ran) in (_LOST if "--engine" in scene.command else {""}), ran
    completed(scene, processes)


def driver_killed(job: str, team: Team, proxy: HttpProxy, processes: Processes) -> None:
    scene = JOBS[job](team, proxy)
    ran = cut_short(scene, processes, lambda process: process.kill(), late=True)
    assert ran.code == -signal.SIGKILL
    completed(scene, processes)


@pytest.mark.parametrize(("killed", "job"), [(driver_killed, "push"), (worker_killed, "push")])
def test_a_sync_in_which_somebody_is_killed(warm, killed, job, s3_team, proxy, processes) -> None:
    killed(job, s3_team, proxy, processes)


def test_v19_a_large_push_that_is_killed_has_kept_what_its_tasks_had_sent(warm, s3_team, proxy, processes) -> None:
    """A task that waits for one object has not ended: what it sent before is known from its report."""
    scene = large_push(s3_team, proxy)
    files, state = len(MANY_FILES), scene.root / ".bayou/state/sync.db"

    def recorded() -> set[str]:
        with closing(sqlite3.connect(f"{state.as_uri()}?mode=ro", uri=True)) as db:
            return {keys.payload(*row) for row in db.execute("SELECT path, push FROM upload WHERE done")}

    def written() -> list[str]:
        return [f"files/{row.path.partition('/files/')[2]}" for row in proxy.log.rows(method="PUT", path="/files/")]

    scene.pause.begin()
    process = begin(processes, scene, *scene.pause.main)
    reach(process, scene)
    until = time.monotonic() + _PATIENCE_S
    while len(recorded()) < files * 3 // 5:  # more than the half of the task that has ended
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)
    process.kill()
    assert finish(process).code == -signal.SIGKILL
    kept = recorded()
    before = written()
    assert kept <= set(before)

    again = finish(begin(processes, scene, "-m", "bayou"))

    assert again.code == 0, again
    # Tasks of the dead command still send the rest, to the same keys (V11): so keys are counted.
    later = set(written()[len(before) :])
    assert not later & kept
    assert 0 < len(later) <= files - len(kept) <= files * 2 // 5
    scene.pause.release()
    other = fresh(scene, "in-the-end")
    scene.done(other)
    assert clean(other)


def test_v19_a_push_of_packs_that_is_killed_has_kept_those_that_arrived_and_never_names_a_late_one(
    warm, s3_team, proxy, processes
) -> None:
    """A task waits for one pack: those before it are known from its report; that one arrives after the next push."""
    scene = large_push_of_packs(s3_team, proxy)
    files, state = len(MANY_PACKS), scene.root / ".bayou/state/sync.db"

    def recorded() -> dict[str, str]:
        with closing(sqlite3.connect(f"{state.as_uri()}?mode=ro", uri=True)) as db:
            return dict(db.execute("SELECT path, pack FROM upload WHERE done").fetchall())

    def packs() -> set[str]:
        stored = s3_team.keys()
        return {key.removeprefix(".bayou/packs/") for key in stored if key.startswith(".bayou/packs/")}

    scene.pause.begin()
    process = begin(processes, scene, *scene.pause.main)
    reach(process, scene)
    until = time.monotonic() + _PATIENCE_S
    # A task reports packs in the order in which they were made: all that were made before the one that waits. The
    # command records files in batches, so fewer of them. It must not wait for more: a request that is held is repeated.
    reported = (WAITING_PACK - IN_FLIGHT) * (files // PACKS)
    while len(recorded()) < reported // 2:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)
    process.kill()
    assert finish(process).code == -signal.SIGKILL
    kept = recorded()
    assert len(kept) < files
    before = packs()
    assert {f"{name}.zip" for name in kept.values()} <= before

    again = finish(begin(processes, scene, "-m", "bayou"))

    assert again.code == 0, again
    entries = entries_of(s3_team.store())
    assert {path: entries[path].pack for path in kept} == kept  # none of them was sent again
    assert not {entries[path].pack for path in entries.keys() - kept} & set(
        kept.values()
    )  # P1: nor was a pack added to
    scene.pause.release()
    late = packs() - {f"{entry.pack}.zip" for entry in entries.values()}
    assert late  # among them the pack that waited
    assert {entry.pack for entry in entries_of(s3_team.store()).values()} == {entry.pack for entry in entries.values()}
    other = fresh(scene, "in-the-end")
    scene.done(other)
    assert clean(other)


@pytest.mark.soak
@pytest.mark.parametrize("job", JOBS)
def test_a_worker_that_is_killed_costs_nothing(warm, job, s3_team, proxy, processes) -> None:
    worker_killed(job, s3_team, proxy, processes)


@pytest.mark.soak
@pytest.mark.parametrize("job", JOBS)
def test_a_server_that_is_killed_is_named_and_replaced(warm, job, s3_team, proxy, processes) -> None:
    server_killed(job, s3_team, proxy, processes)


@pytest.mark.soak
@pytest.mark.parametrize("job", JOBS)
def test_a_command_that_is_killed_is_completed_by_the_next(warm, job, s3_team, proxy, processes) -> None:
    driver_killed(job, s3_team, proxy, processes)


@pytest.fixture
def own_seaweed(tmp_path, quick_probe, monkeypatch) -> Iterator[SeaweedServer]:
    """A SeaweedFS that may be killed."""
    with SeaweedServer(tmp_path / "seaweed") as own:
        for name, value in own.env().items():
            monkeypatch.setenv(name, value)
        own.create_bucket("kills")
        yield own


@pytest.mark.soak
@pytest.mark.parametrize("job", JOBS)
def test_a_store_that_is_killed_is_named_and_loses_nothing(
    warm, job, own_seaweed: SeaweedServer, tmp_path, processes
) -> None:
    with HttpProxy(own_seaweed.host, own_seaweed.port) as proxy:
        team = Team(tmp_path, f"s3://kills/{ulid()}", {"endpoint": proxy.url})
        scene = JOBS[job](team, proxy)
        ran = cut_short(scene, processes, lambda _: own_seaweed.kill(), late=False)
        assert said(ran) in _STORE_GONE | ({""} if job in ("backfill", "retention") else set()), ran
        own_seaweed.restart()
        completed(scene, processes)
