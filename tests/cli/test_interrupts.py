"""Ctrl-C at chosen moments: the hint says what is true then, and the command that it names does what it says.

A proxy holds one request; the command gets SIGINT while it waits for the answer. The held request reaches the store
only after the command that the hint names has run.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from tests.cli.conftest import Processes, Ran
from tests.sync.conftest import OBJECTS, UPLOADS, Clone, Team

from bayou.core.ids import ulid
from bayou.models import create_model
from bayou.repo import init_repo
from bayou_testing.faults import Hold, Rule
from bayou_testing.latency import LatencyProxy
from bayou_testing.proxy import HttpProxy

_HEAD, _NODES, _PACKS, _LEASES = r"\.bayou/head\.json$", r"\.bayou/nodes/", r"\.bayou/packs/", r"\.bayou/leases/"
_ARRIVES_WITHIN = 60.0
_GO_ON = re.compile(r"to go on: `bayou ([^`]+)`")

soak = pytest.mark.soak

WORKFLOW = """
id: 0b2f6c52-6f3a-4c5e-9d3e-1a7f5f0c9a11
name: w
jobs:
  - name: only
    steps:
      - name: one
        model: m
        method: execute
"""


class Interrupted:
    """Runs commands in a clone: one is interrupted while a request is held, the other is the one its hint names."""

    def __init__(self, processes: Processes, proxy: HttpProxy) -> None:
        self._processes = processes
        self._proxy = proxy
        self.release = threading.Event()

    def at(self, rule: dict[str, Any], clone: Clone, *args: str) -> Ran:
        self._processes.cwd = clone.repo.root
        held = Hold(self.release)
        self._proxy.faults.add(Rule(held, **{"nth": 1, **rule}))
        process = self._processes.start(["-m", "bayou", *args])
        until = time.monotonic() + _ARRIVES_WITHIN
        while not held.arrived.wait(0.1):
            if process.poll() == 0 and not any(("method" in rule, "path" in rule)):
                pytest.skip("the command sends fewer requests")
            if process.poll() is not None or time.monotonic() > until:
                process.kill()
                pytest.fail(f"no such request: {process.communicate()}")
        process.send_signal(signal.SIGINT)
        ran = self._processes.finish(process)
        assert ran.code == 130, ran
        assert re.search(r"error: interrupted(; the input is kept here)?\nhint: ", ran.err), ran
        self._proxy.faults.clear()
        return ran

    def go_on(self, ran: Ran, expected: str) -> Ran:
        """Run the command that the hint names."""
        named = _GO_ON.search(ran.err)
        assert named is not None, ran
        assert named[1] == expected
        return self._processes.run(*shlex.split(named[1]))

    def run_patiently(self, *args: str) -> Ran:
        """Run a command that may wait for a lease: a thread inside a held request could not release it."""
        return self._processes.finish(self._processes.start(["-m", "bayou", *args]), timeout=100)

    def run(self, *args: str, clone: Clone | None = None) -> Ran:
        if clone is not None:
            self._processes.cwd = clone.repo.root
        return self._processes.run(*args)


@pytest.fixture
def interrupted(processes: Processes, proxy: HttpProxy) -> Any:
    made = Interrupted(processes, proxy)
    yield made
    made.release.set()


def moment(method: str, path: str, nth: int = 1) -> dict[str, Any]:
    return {"method": method, "path": path, "nth": nth}


LARGE = b"large" * 100_000
FILES = {"files/large": LARGE, "files/small": b"small"}


@pytest.mark.parametrize(
    ("when", "kept"),
    [
        pytest.param(moment("GET", _HEAD), "nothing was transferred, and what changed here stays", marks=soak),
        pytest.param(moment("PUT", OBJECTS), "nothing was transferred|1 file", marks=soak),
        pytest.param(moment("PUT", _PACKS), "nothing was transferred|1 file", marks=soak),
        pytest.param(moment("PUT", _NODES), "nothing was transferred|already in the store", marks=soak),
        (moment("PUT", _HEAD), r"2 files \(500 KB\) already in the store, and not sent again"),
    ],
    ids=["head", "object", "pack", "nodes", "swap"],
)
def test_a_push_says_what_has_arrived_and_does_not_send_that_again(s3_team: Team, interrupted, proxy, when, kept):
    clone = s3_team.clone("a")
    clone.write("files/first", "x")
    clone.push()
    clone.write_all(FILES)

    ran = interrupted.at(when, clone, "datastore", "sync", "--push")

    assert re.search(kept, ran.err), ran
    proxy.log.clear()
    again = interrupted.go_on(ran, "datastore sync --push")
    assert again.code == 0, again
    assert again.out.startswith("pushed 2 files (500 KB)")
    if "2 files" in ran.err:
        assert not proxy.log.rows(method="PUT", path=UPLOADS)
    peer = s3_team.clone("b")
    peer.pull()
    assert FILES.items() <= peer.files.items()


@pytest.mark.parametrize(
    ("when", "kept"),
    [
        pytest.param(moment("GET", _HEAD), "nothing was transferred", marks=soak),
        pytest.param(moment("GET", _NODES), "nothing was transferred", marks=soak),
        (moment("GET", OBJECTS), "nothing was transferred"),
        pytest.param(moment("GET", _PACKS), r"nothing was transferred|1 file \(500 KB\) pulled, and kept", marks=soak),
    ],
    ids=["head", "nodes", "object", "pack"],
)
def test_a_pull_says_what_it_has_pulled_and_the_hint_pulls_the_rest(s3_team: Team, interrupted, when, kept):
    clone, peer = s3_team.clone("a"), s3_team.clone("b")
    clone.write_all(FILES)
    clone.push()

    ran = interrupted.at(when, peer, "datastore", "sync", "--pull")

    assert re.search(kept, ran.err), ran
    assert interrupted.go_on(ran, "datastore sync --pull").code == 0
    assert peer.files == FILES


@pytest.fixture
def modelled(s3_team: Team) -> Clone:
    clone = s3_team.clone("a")
    create_model(clone.repo, "command/shell", "m", {"run": "echo hi"})
    clone.write("files/first", "x")
    clone.push()
    return clone


@pytest.mark.parametrize(
    ("when", "saved"),
    [
        (moment("PUT", _LEASES), False),
        pytest.param(moment("GET", _HEAD), False, marks=soak),
        pytest.param(moment("PUT", _PACKS), True, marks=soak),
        pytest.param(moment("PUT", _NODES), True, marks=soak),
        (moment("PUT", _HEAD), True),
    ],
    ids=["lease", "head", "pack", "nodes", "swap"],
)
def test_a_put_says_whether_it_is_saved_and_the_hint_saves_or_pushes_it(modelled: Clone, interrupted, when, saved):
    (modelled.repo.root / "in.txt").write_text("content")

    ran = interrupted.at(when, modelled, "data", "put", "m", "item", "in.txt")

    assert ("it is saved here, and not pushed yet" in ran.err) is saved, ran
    assert ("the input is kept here" in ran.err) is not saved  # V22
    again = interrupted.go_on(ran, "datastore sync --push" if saved else "datastore sync")
    assert again.code == 0, again
    versions = interrupted.run("data", "versions", "m", "item", "--json")
    assert [row["version"] for row in versions.document["versions"]] == [1]
    assert interrupted.run("datastore", "status", "--json").document["journal"]["paths"] == 0


@pytest.mark.parametrize(
    ("when", "kept"),
    [
        pytest.param(moment("GET", OBJECTS), "out.bin is as it was", marks=soak),
    ],
    ids=["object"],
)
def test_a_get_to_a_file_leaves_it_as_it_was(s3_team: Team, modelled: Clone, interrupted, when, kept):
    (modelled.repo.root / "in.bin").write_bytes(LARGE)
    assert interrupted.run("data", "put", "m", "item", "in.bin", clone=modelled).code == 0
    lazy = s3_team.clone("lazy", hydrate="lazy")
    shutil.copytree(modelled.repo.root / "models", lazy.repo.root / "models", dirs_exist_ok=True)
    lazy.pull()
    (lazy.repo.root / "out.bin").write_text("old")

    ran = interrupted.at(when, lazy, "data", "get", "m", "item", "-o", "out.bin")

    assert kept in ran.err
    assert (lazy.repo.root / "out.bin").read_text() == "old"
    assert interrupted.go_on(ran, "data get m item -o out.bin").code == 0
    assert (lazy.repo.root / "out.bin").read_bytes() == LARGE


@pytest.mark.parametrize(
    ("when", "left"),
    [
        pytest.param(moment("PUT", _LEASES), "steps", id="lease"),
        pytest.param(moment("PUT", _LEASES, 2), "push", id="release", marks=soak),
        pytest.param(moment("PUT", _NODES), "push", id="nodes", marks=soak),
    ],
)
def test_an_interrupted_workflow_is_resumed_or_pushed_by_its_hint(modelled: Clone, interrupted, when, left):
    (modelled.repo.root / "workflows").mkdir(exist_ok=True)
    (modelled.repo.root / "workflows" / "w.yaml").write_text(WORKFLOW)

    ran = interrupted.at(when, modelled, "workflow", "run", "w")

    run_id = re.search(r"run (\w+) (keeps its finished steps|has succeeded here)", ran.err)
    assert run_id is not None, ran
    again = interrupted.go_on(ran, f"workflow resume {run_id[1]}" if left == "steps" else "datastore sync --push")
    assert again.code == 0, again
    rows = interrupted.run("workflow", "run", "search", "--json").document["runs"]
    assert [(row["run_id"], row["status"]) for row in rows] == [(run_id[1], "succeeded")]


@pytest.mark.parametrize(
    ("when", "kept"),
    [
        pytest.param(moment("GET", _HEAD), "bayou.toml is as it was", marks=soak),
        pytest.param(moment("GET", OBJECTS), "bayou.toml is as it was", marks=soak),
    ],
    ids=["head", "object"],
)
def test_an_interrupted_setup_leaves_the_configuration_and_is_done_by_its_hint(
    s3_team: Team, interrupted, tmp_path, proxy, when, kept
):
    clone = s3_team.clone("a")
    clone.write_all(FILES)
    clone.push()
    fresh = Clone(init_repo(tmp_path / "fresh"))
    before = fresh.repo.file.read_text()
    args = ("datastore", "setup", s3_team.url, "--option", f"endpoint={proxy.url}")

    ran = interrupted.at(when, fresh, *args)

    assert kept in ran.err
    assert fresh.repo.file.read_text() == before
    assert interrupted.go_on(ran, shlex.join(args)).code == 0
    assert fresh.files == FILES


@pytest.mark.parametrize(
    ("args", "when", "kept"),
    [
        pytest.param(("datastore", "verify", "--deep"), moment("GET", OBJECTS), "nothing was changed", marks=soak),
        pytest.param(("datastore", "gc"), moment("GET", _HEAD), "nothing was deleted", marks=soak),
        pytest.param(("datastore", "compact"), moment("GET", _HEAD), "nothing was moved", marks=soak),
        pytest.param(("datastore", "hydrate"), moment("GET", OBJECTS), "nothing was fetched", marks=soak),
    ],
    ids=["verify", "gc", "compact", "hydrate"],
)
def test_maintenance_says_what_it_changed_and_is_repeated_by_its_hint(s3_team: Team, interrupted, args, when, kept):
    clone = s3_team.clone("a", **({"hydrate": "lazy"} if "hydrate" in args else {}))
    other = s3_team.clone("b")
    other.write_all({"data/t/m/n/1/raw": LARGE, "data/t/m/n/1/metadata.yaml": b"{}"})
    other.push()
    clone.pull()

    ran = interrupted.at(when, clone, *args)

    assert kept in ran.err
    assert interrupted.go_on(ran, shlex.join(args)).code == 0


def test_a_passed_deadline_has_the_same_hint(s3_team: Team, interrupted, proxy):
    clone = s3_team.clone("a")
    clone.write_all(FILES)
    proxy.faults.add(Rule(Hold(interrupted.release), method="PUT", path=_NODES))

    ran = interrupted.run("datastore", "sync", "--push", "--timeout", "2", clone=clone)

    assert ran.code == 124
    assert "to go on: `bayou datastore sync --push --timeout 2`" in ran.err
    assert "more time" in ran.err


SIZE = 25 << 20
"""Four parts of 8 MiB or less."""

_SENT = re.compile(r"(\d+) MB of (\S+) are in the store, and are not sent again")
_FETCHED = re.compile(r"(\d+) MB of (\S+) are here, and are not fetched again")


@pytest.fixture
def shaped(tmp_path, s3_env) -> Any:
    """A team at the far end of a slow link, and the link."""
    with LatencyProxy(s3_env.host, s3_env.port, seconds=0.01, rate=6e6) as link:
        yield Team(tmp_path, f"s3://sync-tests/{ulid()}", {"endpoint": link.url}), link


def acknowledged(clone: Clone) -> bool:
    """Whether the store has acknowledged two parts of a large file, as this clone has recorded."""
    try:
        with closing(sqlite3.connect(f"file:{clone.repo.state}/sync.db?mode=ro", uri=True)) as db:
            return bool(db.execute("SELECT count(*) >= 2 FROM part").fetchone()[0])
    except sqlite3.OperationalError:
        return False


def staged(clone: Clone) -> bool:
    """Whether a part of a large file is here."""
    return any(file.stat().st_size > 0 for file in (clone.repo.state / "incoming").glob("*.partial"))


def interrupt_once(processes: Processes, clone: Clone, ready: Callable[[Clone], bool], *args: str) -> Ran:
    """Run a command, and press Ctrl-C as soon as it is so far."""
    processes.cwd = clone.repo.root
    process = processes.start(["-m", "bayou", *args])
    until = time.monotonic() + _ARRIVES_WITHIN
    while not ready(clone):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    ran = processes.finish(process)
    assert ran.code == 130, ran
    return ran


def go_on(processes: Processes, ran: Ran) -> None:
    named = _GO_ON.search(ran.err)
    assert named is not None, ran
    again = processes.finish(processes.start(["-m", "bayou", *shlex.split(named[1])]), timeout=100)
    assert again.code == 0, again


@pytest.mark.parametrize("command", ["sync", pytest.param("put", marks=soak)])
def test_an_upload_that_is_interrupted_in_the_middle_of_a_file_says_what_is_in_the_store(shaped, processes, command):
    """Seen: "nothing was transferred", with 24 of 30 MB in the store."""
    team, link = shaped
    clone = team.clone("a")
    create_model(clone.repo, "command/shell", "m", {"run": "echo hi"})
    clone.write("files/first", "x")
    clone.push()
    if command == "sync":
        clone.lay("files/large.bin", os.urandom(SIZE))
        args = ["datastore", "sync", "--push", "--adopt"]
    else:
        (clone.repo.root / "in.bin").write_bytes(os.urandom(SIZE))
        args = ["data", "put", "m", "item", "in.bin"]

    ran = interrupt_once(processes, clone, acknowledged, *args)

    said = _SENT.search(ran.err)
    assert said is not None, ran
    assert "nothing was transferred" not in ran.err
    assert said[2] == "files/large.bin" if command == "sync" else said[2].startswith("data/")
    if command == "sync":
        assert "not tracked: 1 file" in processes.run("datastore", "status").out
    before = link.usage().bytes_up
    go_on(processes, ran)
    assert link.usage().bytes_up - before <= SIZE - int(said[1]) * 1e6 + 1e6, said[0]


@pytest.mark.parametrize("command", ["sync", pytest.param("setup", marks=soak)])
def test_a_download_that_is_interrupted_in_the_middle_of_a_file_says_what_is_here(shaped, processes, tmp_path, command):
    team, link = shaped
    content = os.urandom(SIZE)
    clone = team.clone("a")
    clone.write("files/large.bin", content)
    clone.push()
    here = team.clone("b") if command == "sync" else Clone(init_repo(tmp_path / "fresh"))
    setup = ("datastore", "setup", team.url, "--option", f"endpoint={link.url}")

    ran = interrupt_once(processes, here, staged, *(("datastore", "sync", "--pull") if command == "sync" else setup))

    said = _FETCHED.search(ran.err)
    assert said is not None, ran
    assert said[2] == "files/large.bin"
    before = link.usage().bytes_down
    go_on(processes, ran)
    assert link.usage().bytes_down - before <= SIZE - int(said[1]) * 1e6 + 1e6, said[0]
    assert here.files["files/large.bin"] == content


LONG_COMMANDS = {
    "pull": "datastore sync --pull",
    "sync": "datastore sync",
    "get": "data get m item -o out.bin",
    "setup": "datastore setup URL --option endpoint=ENDPOINT",
    "verify": "datastore verify --deep",
    "repair": "datastore verify --repair",
    "gc": "datastore gc",
    "compact": "datastore compact",
    "hydrate": "datastore hydrate",
    "replicate": "datastore replicate file://REPLICA",
    "export": "datastore export exported",
    "append": "data append m log in.txt",
    "delete": "data delete m item -y",
    "data gc": "data gc -y",
    "data prune": "data prune GONE -y",
    "model": "model run m execute",
    "workflow": "workflow run w",
}


BEFORE = {
    "data append": ["data put m log in.txt --streaming"],
    "data gc": ["data put m old in.txt --keep 1", "data put m old in.bin --keep 1"],
    "data prune": ["data put gone item in.txt"],
}
"""What the clone with the models does before a command that would have nothing to do."""


@soak
@pytest.mark.parametrize("nth", range(1, 6))
@pytest.mark.parametrize("line", LONG_COMMANDS.values(), ids=LONG_COMMANDS)
def test_a_long_command_that_is_interrupted_at_a_request_is_finished_by_its_hint(
    s3_team: Team, modelled: Clone, interrupted, proxy, tmp_path, line, nth
):
    (modelled.repo.root / "in.bin").write_bytes(LARGE)
    (modelled.repo.root / "in.txt").write_text("some lines\n")
    assert interrupted.run("data", "put", "m", "item", "in.bin", clone=modelled).code == 0
    gone = create_model(modelled.repo, "command/shell", "gone", {"run": "echo hi"})
    for before in BEFORE.get(" ".join(line.split()[:2]), ()):
        ran = interrupted.run(*before.split())
        assert ran.code == 0, ran
    (modelled.repo.root / gone.path).unlink()
    here = s3_team.clone("here", hydrate="lazy") if "setup" not in line else Clone(init_repo(tmp_path / "fresh"))
    shutil.copytree(modelled.repo.root / "models", here.repo.root / "models", dirs_exist_ok=True)
    (here.repo.root / "workflows" / "w.yaml").write_text(WORKFLOW)
    (here.repo.root / "in.txt").write_text("more lines\n")
    if "setup" not in line and "--pull" not in line:
        here.pull()
    if line == "datastore sync":
        here.write_all(FILES)
    replica = str(tmp_path / "replica")
    for name, value in (("URL", s3_team.url), ("ENDPOINT", proxy.url), ("REPLICA", replica), ("GONE", gone.id)):
        line = line.replace(name, value)

    ran = interrupted.at({"nth": nth}, here, *shlex.split(line))

    assert "Traceback" not in ran.err, ran.err
    named = _GO_ON.search(ran.err)
    assert named is not None, ran
    again = interrupted.run_patiently(*shlex.split(named[1]))
    assert again.code == 0, (ran, again)
    verified = interrupted.run("datastore", "verify", "--deep", "--json")
    assert verified.code == 0, verified
    assert interrupted.run("datastore", "status", "--json").document["waiting"] == 0
