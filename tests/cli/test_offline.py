"""17.13: offline, no command sends a request: what needs the store says so, and does nothing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests import api
from tests.cli.test_data_shared import Person
from tests.sync.conftest import Clone, Team, Wire

from bayou.core.errors import Offline
from bayou.leases import open_leases
from bayou.repo import open_repo

NEEDS_THE_STORE = [
    ("datastore", "verify"),
    ("datastore", "verify", "--deep"),
    ("datastore", "verify", "--repair"),
    ("datastore", "verify", "--forget", "data/x"),
    ("datastore", "gc"),
    ("datastore", "gc", "--dry-run"),
    ("datastore", "compact"),
    ("datastore", "compact", "--dry-run"),
    ("datastore", "log"),
    ("datastore", "hydrate"),
    ("datastore", "hydrate", "data"),
    ("datastore", "export", "{}/exported"),
    ("datastore", "cat", "--locate", "data/x"),
    ("datastore", "lock", "status"),
    ("datastore", "lock", "release", "store", "--nonce", "n"),
    ("datastore", "replicate", "file://{}/other"),
    ("datastore", "replicate", "file://{}/other", "--dry-run"),
    ("datastore", "setup", "file://{}/other"),
    ("datastore", "setup", "file://{}/other", "--skip-migration"),
    ("datastore", "setup", "{}/directory"),
]
GOES_ON = [
    ("datastore", "status"),
    ("datastore", "sync"),
    ("datastore", "sync", "--push"),
    ("datastore", "sync", "--pull"),
    ("datastore", "sync", "--dry-run", "--adopt"),
    ("datastore", "conflicts"),
    ("model", "create", "aws/ec2", "other"),
    ("model", "list"),
    ("model", "get", "web"),
    ("model", "types"),
    ("model", "outputs", "web"),
    ("model", "run", "sh", "execute"),
    ("model", "delete", "other", "-y"),
    ("data", "put", "web", "new", "bayou.toml"),
    ("data", "put", "web", "streamed", "bayou.toml", "--streaming"),
    ("data", "append", "web", "streamed", "bayou.toml"),
    ("data", "list"),
    ("data", "versions", "web", "report"),
    ("data", "get", "web", "report"),
    ("data", "query", "size > 0 && content != ''"),
    ("data", "rename", "web", "new", "newer"),
    ("data", "delete", "web", "newer", "-y"),
    ("data", "gc", "-y"),
    ("data", "prune", "-y"),
    ("workflow", "create", "flow"),
    ("workflow", "list"),
    ("workflow", "validate", "flow"),
    ("workflow", "run", "search"),
    ("workflow", "delete", "flow", "-y"),
]


@pytest.fixture
def clone(team: Team, command, monkeypatch) -> Clone:
    """A clone that is in sync with a store."""
    made = team.clone("ann")
    ann = Person(made, command)
    ann.does("model", "create", "aws/ec2", "web")
    ann.does("model", "create", "command/shell", "sh", "--arg", f"run={sys.executable} -m bayou datastore verify; true")
    ann.does("data", "put", "web", "report", str(made.repo.file))
    monkeypatch.chdir(made.repo.root)
    return made


def files(root: Path) -> dict[str, bytes]:
    return {str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()}


@pytest.mark.parametrize("way", ["variable", "flag"])
def test_no_command_sends_a_request(clone: Clone, team: Team, wire: Wire, command, monkeypatch, way):
    if way == "variable":
        monkeypatch.setenv("BAYOU_OFFLINE", "1")
    flag = ["--offline"] if way == "flag" else []
    before = files(team.root / "store")
    configured = clone.repo.file.read_bytes()
    wire.seen.clear()
    for words in NEEDS_THE_STORE:
        args = [word.format(team.root) for word in words]
        ran = command(*flag, *args, "--json")
        assert (ran.code, ran.error["code"]) == (2, "offline"), (words, ran.err)
        assert "BAYOU_OFFLINE" in ran.error["hint"]
        assert clone.repo.file.read_bytes() == configured
    for words in GOES_ON:
        ran = command(*flag, *words)
        assert ran.code == 0, (words, ran.err)

    assert wire.seen == []
    assert files(team.root / "store") == before, "nor has a process that a method started"
    assert not (team.root / "other").exists()
    assert not (team.root / "directory").exists()


@pytest.mark.usefixtures("loose_objects")
def test_forget_and_repair_offline_leave_a_damaged_store_alone(clone: Clone, team: Team, command, monkeypatch):
    """The entry whose object is lost would be given up, by a commit."""
    lost = next(file for file in (team.root / "store" / "data").rglob("*") if file.is_file() and "raw" in str(file))
    lost.unlink()
    found = command("datastore", "verify", "--json")
    (path,) = found.document["missing"]
    before = files(team.root / "store")
    monkeypatch.setenv("BAYOU_OFFLINE", "1")

    assert command("datastore", "verify", "--forget", path).code == 2
    assert command("datastore", "verify", "--repair").code == 2
    assert files(team.root / "store") == before

    monkeypatch.delenv("BAYOU_OFFLINE")
    assert command("datastore", "verify", "--forget", path).code == 0


def test_status_offline_tells_what_is_known_here(clone: Clone, wire: Wire, command):
    online = command("datastore", "status", "--json").document
    assert command("data", "put", "web", "more", "bayou.toml", "--offline").code == 0
    wire.seen.clear()

    ran = command("--offline", "datastore", "status", "--json")

    assert ran.code == 0
    assert wire.seen == []
    found = ran.document
    assert found["healthy"] is None
    assert found["index"] is None
    assert found["base"] == {"in_sync": False, "seq": online["base"]["seq"]}
    assert found["journal"]["paths"] > 0
    assert {found[key] == online[key] for key in ("url", "namespace", "hydrate", "tree")} == {True}
    shown = command("datastore", "status", "--offline")
    assert "the store was not asked" in shown.out
    assert shown.err == ""


def test_a_store_is_left_for_a_directory_offline_where_nothing_is_brought_along(clone: Clone, team: Team, wire: Wire):
    repo = open_repo(clone.repo.root, offline=True)
    wire.seen.clear()

    options: dict[str, str] = {}
    directory = str(team.root / "directory")
    api.setup(repo, directory, namespace=None, options=options, lazy=False, skip_migration=True, timeout=None)

    assert wire.seen == []


def test_a_program_has_no_way_to_the_store_either(clone: Clone, wire: Wire):
    repo = open_repo(clone.repo.root, offline=True)
    wire.seen.clear()

    with pytest.raises(Offline):
        repo.store()
    with pytest.raises(Offline):
        open_leases(repo).list()
    with pytest.raises(Offline):
        api.hydrate(repo, None)
    assert wire.seen == []


def test_a_real_process_offline_opens_no_connection(s3_team: Team, proxy, command):
    """A store that counts requests, on the network."""
    made = s3_team.clone("ann")
    ann = Person(made, command)
    ann.does("model", "create", "aws/ec2", "web")
    ann.does("data", "put", "web", "report", str(made.repo.file))
    proxy.log.clear()
    bayou = shutil.which("bayou", path=str(Path(sys.executable).parent))
    assert bayou is not None
    for words in (["datastore", "verify", "--forget", "x"], ["datastore", "status"], ["datastore", "lock", "status"]):
        ran = subprocess.run(
            [bayou, "--offline", *words], cwd=made.repo.root, capture_output=True, timeout=60, check=False
        )
        assert ran.returncode == (0 if words[1] == "status" else 2), ran.stderr
    assert proxy.log.count() == 0
