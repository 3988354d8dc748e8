"""Commands whose work Spark does, each with a place in the middle of that work where it can be made to wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from threading import Event
from typing import Any, Protocol

from bayou.maintenance.gc import _store_clock
from bayou.objectstore import keys
from bayou.repo import init_repo, open_repo
from bayou_testing.faults import Hold, Rule
from bayou_testing.proxy import HttpProxy
from tests import api
from tests.data.retention.conftest import put, versions
from tests.spark.messy import entries_of
from tests.sync.conftest import Clone, Team

FILES = {f"files/d{at % 20}/{at}": Random(at).randbytes(1400) for at in range(260)}
"""As many as make several of the smallest packs, in as many directories as are listed each by itself."""

MANY_FILES = {f"files/d{at % 20}/{at}": b"%d" % at for at in range(1500)}
"""As many as make a transfer of two tasks, each of several hundred objects."""

MANY_PACKS = {f"files/d{at % 20}/{at:04}": Random(at).randbytes(3000) for at in range(600)}
"""As many as make `PACKS` of the smallest packs, or one less."""

PACKS = 30

WAITING_PACK = 20
"""The pack that waits, counted as they arrive. Up to `IN_FLIGHT` are on their way at once: it may be made earlier."""

SMALL_PACKS = {"BAYOU_PACK_SIZE": "64KiB"}
OBJECTS = {"BAYOU_PACK_BELOW": "0"}
PACKS_KEY = r"/\.bayou/packs/"

ITEMS = [f"item {at}" for at in range(12)]

BY_EXECUTOR = """
import os, sys, time
from bayou.spark import executor
from bayou.cli import main

folder, real = sys.argv.pop(1), executor.read_parts

def waiting(kernel, folder):
    def wait(part):
        try:
            os.close(os.open(folder + "/arrived", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            pass
        else:
            while not os.path.exists(folder + "/release"):
                time.sleep(0.02)
        yield from kernel(part)

    return wait

executor.read_parts = lambda spark, schema, parts, kernel: real(spark, schema, parts, waiting(kernel, folder))
main()
"""
"""A command the first task of whose job waits, before it looks at anything, until the test says that it may go on."""


class Pause(Protocol):
    """The place where a job waits."""

    @property
    def main(self) -> Sequence[str]:
        """How to start the command that waits: the arguments of a Python, before its own."""

    def begin(self) -> None: ...
    def arrived(self) -> bool: ...
    def release(self) -> None: ...


@dataclass
class AtRequest:
    """A job waits with one of the requests that only workers send."""

    proxy: HttpProxy
    fits: Mapping[str, Any]
    hold: Hold = field(default_factory=lambda: Hold(Event()))
    main: Sequence[str] = ("-m", "bayou")

    def begin(self) -> None:
        self.proxy.faults.add(Rule(self.hold, **self.fits))

    def arrived(self) -> bool:
        return self.hold.arrived.is_set()

    def release(self) -> None:
        """Let the request through, and wait until it is: its sender may be gone, but it takes effect."""
        if self.hold.release.is_set():
            return
        before = self.proxy.log.count(method=self.fits["method"])
        self.hold.release.set()
        while self.proxy.log.count(method=self.fits["method"]) == before:
            time.sleep(0.01)


@dataclass
class AtKernel:
    """A job that sends no requests waits in a kernel."""

    script: str
    folder: Path

    @property
    def main(self) -> Sequence[str]:
        return "-c", self.script, str(self.folder)

    def begin(self) -> None:
        self.folder.mkdir()

    def arrived(self) -> bool:
        return (self.folder / "arrived").exists()

    def release(self) -> None:
        (self.folder / "release").touch()


@dataclass
class Scene:
    """A clone, a command, and what must be true of the store however often the command was cut short.

    `kept` looks at a fresh clone after the accident, `done` when the same command has succeeded.
    """

    team: Team
    root: Path
    command: Sequence[str]
    pause: Pause
    kept: Callable[[Clone], None]
    done: Callable[[Clone], None]
    environ: Mapping[str, str] = field(default_factory=dict)


def same_files(files: Mapping[str, bytes]) -> Callable[[Clone], None]:
    def check(fresh: Clone) -> None:
        assert fresh.files == files

    return check


def some_files(files: Mapping[str, bytes]) -> Callable[[Clone], None]:
    def check(fresh: Clone) -> None:
        assert fresh.files.items() <= files.items()

    return check


def pushed(team: Team, files: Mapping[str, bytes], sync: str = 'pack_size = "64KiB"') -> Clone:
    clone = team.clone("writer")
    with open(clone.repo.file, "a") as file:
        file.write(f"[sync]\n{sync}\n")
    clone.reopen()
    clone.write_all(dict(files))
    clone.push(engine="point")
    return clone


def push(team: Team, proxy: HttpProxy) -> Scene:
    """A push that waits with its third pack."""
    return push_of(FILES, {"path": PACKS_KEY, "nth": 3}, SMALL_PACKS, team, proxy)


def push_objects(team: Team, proxy: HttpProxy) -> Scene:
    return push_of(FILES, {"path": "/files/", "nth": 60}, OBJECTS, team, proxy)


def large_push(team: Team, proxy: HttpProxy) -> Scene:
    """A push that waits when most is sent, in one task of two; the other sends its half and ends."""
    return push_of(MANY_FILES, {"path": "/files/", "nth": 1400}, OBJECTS, team, proxy)


def large_push_of_packs(team: Team, proxy: HttpProxy) -> Scene:
    """A push that waits with a pack when most packs are sent, in its only task."""
    return push_of(MANY_PACKS, {"path": PACKS_KEY, "nth": WAITING_PACK}, SMALL_PACKS, team, proxy)


def push_of(
    files: dict[str, bytes], waits: Mapping[str, Any], environ: Mapping[str, str], team: Team, proxy: HttpProxy
) -> Scene:
    clone = team.clone("here")
    clone.write_all(files)

    def done(fresh: Clone) -> None:
        assert fresh.files == files
        assert clone.status().in_sync

    return Scene(
        team,
        clone.repo.root,
        ("datastore", "sync", "--push", "--engine", "spark"),
        AtRequest(proxy, {"method": "PUT", **waits}),
        kept=some_files(files),
        done=done,
        environ=environ,
    )


def pull(team: Team, proxy: HttpProxy) -> Scene:
    """A pull that waits with its third pack."""
    pushed(team, FILES)
    return pull_of({"path": PACKS_KEY, "nth": 3}, team, proxy)


def pull_objects(team: Team, proxy: HttpProxy) -> Scene:
    pushed(team, FILES, "pack_below = 0")
    return pull_of({"path": "/files/", "nth": 60}, team, proxy)


def pull_of(waits: Mapping[str, Any], team: Team, proxy: HttpProxy) -> Scene:
    clone = team.clone("here")

    def done(fresh: Clone) -> None:
        assert fresh.files == clone.files == FILES
        assert clone.status().in_sync

    return Scene(
        team,
        clone.repo.root,
        ("datastore", "sync", "--pull", "--engine", "spark"),
        AtRequest(proxy, {"method": "GET", **waits}),
        kept=same_files(FILES),
        done=done,
    )


def verify(team: Team, proxy: HttpProxy) -> Scene:
    clone = pushed(team, FILES)
    return Scene(
        team,
        clone.repo.root,
        ("datastore", "verify", "--deep", "--engine", "spark"),
        AtRequest(proxy, {"method": "GET", "path": PACKS_KEY, "nth": 3}),
        kept=same_files(FILES),
        done=same_files(FILES),
    )


def collect(team: Team, proxy: HttpProxy) -> Scene:
    clone = pushed(team, FILES)
    clone.write_all(dict.fromkeys([*FILES][:150], b"newer"))
    clone.delete(*[*FILES][150:170])
    clone.push(engine="point")
    files, pushed_at = clone.files, time.time() * 1000
    assert len(files) == 240
    while _store_clock(team.store()) <= pushed_at:
        time.sleep(0.05)  # its clock has whole seconds: what was current in this one is kept

    def done(fresh: Clone) -> None:
        assert fresh.files == files
        stored = team.keys()
        objects = {key for key in stored if not key.startswith(".bayou/") or key.startswith(".bayou/packs/")}
        assert objects == {entry.key for entry in entries_of(team.store()).values()}

    return Scene(
        team,
        clone.repo.root,
        ("datastore", "gc", "--grace", "0s", "--engine", "spark"),
        AtRequest(proxy, {"method": "GET", "query": "list-type", "nth": 1}),  # this process deletes, and lists nothing
        kept=same_files(files),
        done=done,
    )


def discover(team: Team, proxy: HttpProxy) -> Scene:
    store = team.store()
    for _ in store.map(lambda one: store.put(keys.payload(one[0], None), one[1]), FILES.items()):
        pass
    repo = init_repo(team.root / "here")

    def done(fresh: Clone) -> None:
        here = Clone(open_repo(repo.root))
        assert fresh.files == here.files == FILES
        assert {entry.push for entry in entries_of(store).values()} == {None}

    return Scene(
        team,
        repo.root,
        ("datastore", "setup", team.url, "--option", f"endpoint={proxy.url}", "--engine", "spark"),
        AtRequest(
            proxy, {"method": "GET", "query": r"^(?!.*delimiter=)(?=.*list-type=2).*prefix=[^&]*files", "nth": 4}
        ),
        kept=same_files(FILES),
        done=done,
    )


def replicate(team: Team, proxy: HttpProxy) -> Scene:
    clone = pushed(team, FILES)
    url = f"{team.url}-copy"

    def done(fresh: Clone) -> None:
        assert fresh.files == FILES
        other = Team(team.root, url, team.options).clone("replica")
        other.pull(engine="point")
        assert other.files == FILES
        assert clean(other)

    return Scene(
        team,
        clone.repo.root,
        ("datastore", "replicate", url, "--option", f"endpoint={proxy.url}", "--engine", "spark"),
        AtRequest(proxy, {"method": "PUT", "path": r"-copy/(files|\.bayou/packs)/", "nth": 1}),
        kept=same_files(FILES),
        done=done,
    )


def recorded(team: Team) -> Clone:
    clone = team.clone("here")
    for name in ITEMS:
        put(clone.repo, name, b"1", b"22", b"333", b"4444", keep="2")
    clone.push(engine="point")
    return clone


def has_versions(*expected: int) -> Callable[[Clone], None]:
    def check(fresh: Clone) -> None:
        for name in ITEMS:
            assert versions(fresh.repo, name) == [*expected]

    return check


def backfill(team: Team, proxy: HttpProxy) -> Scene:
    clone = recorded(team)
    for file in (clone.repo.root / ".bayou").glob("catalog.db*"):
        file.unlink()

    def done(fresh: Clone) -> None:
        has_versions(1, 2, 3, 4)(fresh)
        has_versions(1, 2, 3, 4)(clone)

    return Scene(
        team,
        clone.repo.root,
        ("data", "list"),
        AtKernel(BY_EXECUTOR, team.root / "kernel"),
        kept=has_versions(1, 2, 3, 4),
        done=done,
        environ={"BAYOU_POINT_LIMIT": "10"},
    )


def retention(team: Team, proxy: HttpProxy) -> Scene:
    clone = recorded(team)

    def kept(fresh: Clone) -> None:
        for name in ITEMS:
            assert versions(fresh.repo, name) in ([1, 2, 3, 4], [3, 4])

    return Scene(
        team,
        clone.repo.root,
        ("data", "gc", "--yes", "--engine", "spark"),
        AtKernel(BY_EXECUTOR, team.root / "kernel"),
        kept=kept,
        done=has_versions(3, 4),
    )


def clean(clone: Clone) -> bool:
    """Read everything that a store's index names."""
    report = api.verify(clone.repo, deep=True, repair=False, engine="point")
    return report.ok and not report.unindexed and report.checked > 0


JOBS: dict[str, Callable[[Team, HttpProxy], Scene]] = {
    "discover": discover,
    "push": push,
    "push_objects": push_objects,
    "pull": pull,
    "pull_objects": pull_objects,
    "verify": verify,
    "collect": collect,
    "backfill": backfill,
    "retention": retention,
    "replicate": replicate,
}
