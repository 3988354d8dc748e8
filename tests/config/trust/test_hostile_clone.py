"""`git clone` of a hostile repo, and every command run in it: nothing leaves, nothing runs, nothing outside changes."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from bayou.cli import app
from bayou.state.database import Database
from tests.cli.conftest import Ran
from tests.trusting import trust

Command = Callable[..., Ran]

RUNS_CODE = {"model run", "workflow run NAME", "workflow resume"}
"""Who types these allows what the definition runs, as with `make`: they are tried on their own below."""

ARGUMENTS: dict[str, tuple[str, ...]] = {
    "init": (".",),
    "completion": ("bash",),
    "datastore setup": ("file:///nonexistent/of/the/user",),
    "datastore status": (),
    "datastore sync": ("--adopt",),
    "datastore verify": ("--repair", "--forget", "files/x"),
    "datastore log": (),
    "datastore gc": (),
    "datastore compact": (),
    "datastore hydrate": (),
    "datastore replicate": ("memory://replica",),
    "datastore cat": ("files/x",),
    "datastore export": ("exported",),
    "datastore conflicts": (),
    "datastore conflicts show": ("files/x",),
    "datastore conflicts take": ("files/x",),
    "datastore conflicts drop": ("files/x",),
    "datastore lock status": (),
    "datastore lock release": ("commit", "--nonce", "x"),
    "model create": ("evil/type", "new"),
    "model list": (),
    "model get": ("evil",),
    "model delete": ("evil", "-y"),
    "model types": (),
    "model describe": ("evil/type",),
    "model outputs": ("evil",),
    "model logs": ("evil",),
    "data put": ("evil", "x", "bayou.toml"),
    "data append": ("evil", "x", "bayou.toml"),
    "data get": ("evil", "x"),
    "data list": (),
    "data versions": ("evil", "x"),
    "data query": ("true",),
    "data rename": ("evil", "x", "y"),
    "data delete": ("evil", "x", "-y"),
    "data gc": ("-y",),
    "data undelete": ("evil", "x"),
    "data prune": ("-y",),
    "data sql": ("SELECT * FROM data",),
    "workflow create": ("new",),
    "workflow list": (),
    "workflow get": ("flow",),
    "workflow validate": (),
    "workflow evaluate": ("flow",),
    "workflow delete": ("flow", "-y"),
    "workflow run search": (),
    "workflow run get": ("latest",),
    "workflow run logs": ("latest",),
    "workflow graph": ("flow",),
    "help": ("data",),
    "spark status": (),
    "spark warm": (),
    "spark stop": (),
    "trust show": (),
    "trust revoke": (),
}


def leaves(group: click.Group, name: str = "") -> Iterator[str]:
    context = click.Context(group)
    for one in group.list_commands(context):
        command = group.get_command(context, one)
        assert command is not None
        if isinstance(command, click.Group):
            yield from leaves(command, f"{name}{one} ")
        else:
            yield f"{name}{one}"


def test_every_command_is_tried() -> None:
    """A new command gets its place in the table above; a group that does something alone has one too."""
    assert set(leaves(app)) == (set(ARGUMENTS) | RUNS_CODE | {"trust allow"}) - {"datastore conflicts"}


EVIL = """\
import pathlib, sys
pathlib.Path({canary!r}).touch()
class Evil:
    type = "evil/type"
    def go(self): ...
"""


class Scene:
    """A victim with a home, credentials and a team's store; an attacker with a server and a repo."""

    def __init__(self, tmp_path: Path, home: Path) -> None:
        self.root = tmp_path
        self.home = home
        self.canary = tmp_path / "code-has-run"
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        self.upstream = tmp_path / "upstream"
        self.clone = tmp_path / "clone"
        (home / ".ssh").mkdir()
        (home / ".ssh" / "id").write_text("private")
        (home / "data").mkdir()
        (home / "data" / "thesis").write_text("years of work")
        (home / "files").mkdir()
        (home / "files" / "x").write_text("mine")

    @property
    def port(self) -> int:
        port: int = self.listener.getsockname()[1]
        return port

    def heard(self) -> bool:
        try:
            self.listener.accept()[0].close()
        except BlockingIOError:
            return False
        return True

    def outside(self) -> dict[str, str]:
        """Whatever the victim has, but for what Bayou notes for itself in the user's own folder."""
        return {
            str(path.relative_to(self.home)): path.read_text() if path.is_file() else "directory"
            for path in sorted(self.home.rglob("*"))
            if path.relative_to(self.home).parts[0] not in (".config", ".cache")
        }

    def make(self, config: str) -> None:
        """Write the hostile repo, commit it, `.bayou/` and all, and clone it."""
        up = self.upstream
        for folder in (
            "models/evil/type",
            "workflows",
            "extensions/models",
            ".bayou/state/changes",
            ".bayou/tree/files",
        ):
            (up / folder).mkdir(parents=True, exist_ok=True)
        (up / "bayou.toml").write_text(f'repo_id = "5a0a3c0e-3b3f-4d52-9a51-6a6e6f9a1f11"\n{config}')
        code = EVIL.format(canary=str(self.canary))
        (up / "extensions" / "models" / "evil.py").write_text(code)
        for name in ("json.py", "yaml.py", "pyspark.py", "sitecustomize.py", "conftest.py", "click.py"):
            (up / name).write_text(code)
        (up / "models" / "evil" / "type" / "evil.yaml").write_text(
            "id: 7c1f0d3e-6a7b-4f0e-9d53-0c4a1f5f0a11\nname: evil\ntype: evil/type\n"
        )
        (up / "models" / "evil" / "out.yaml").symlink_to(self.home / ".ssh" / "id")
        (up / "models" / "new").symlink_to(self.home)
        (up / "workflows" / "flow.yaml").write_text(
            "id: 7c1f0d3e-6a7b-4f0e-9d53-0c4a1f5f0a12\nname: flow\n"
            "jobs:\n  - name: one\n    steps:\n      - name: s\n        model: evil\n        method: go\n"
        )
        (up / "workflows" / "bomb.yaml").write_text("[" * 100_000)
        (up / ".bayou" / "tree" / "files" / "planted").write_text("planted")
        with Database(up / ".bayou" / "state" / "sync.db") as database, database.transaction() as db:
            db.execute("INSERT INTO place (id, url, namespace) VALUES (1, 'memory://team', '')")
            db.execute(
                "INSERT INTO journal (place, kind, path, state, owner, closed)"
                " VALUES (1, 'delete', 'files/x', 'done', 'x', 1), (1, 'write', 'files/planted', 'done', 'x', 2)"
            )
        (up / ".bayou" / "state" / "changes" / "1.json").write_text(
            '{"owner": [], "place": [null, "~", null], "placements": [],'
            ' "writes": [["files/written", "x"]], "deletes": ["files/x", "data/thesis"]}'
        )
        git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main", "-C", str(up)]
        for args in (["init", "-q"], ["add", "-f", "."], ["commit", "-qm", "x"]):
            subprocess.run([*git, *args], check=True)
        subprocess.run(["git", "clone", "-q", str(up), str(self.clone)], check=True)


@pytest.fixture
def scene(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "dummy")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "dummy")
    monkeypatch.setenv("AZURE_STORAGE_TOKEN", "dummy")
    made = Scene(tmp_path, home)
    yield made
    made.listener.close()


SPARK = '[sync]\npoint_limit = 1\n[spark]\nremote = "sc://127.0.0.1:{port}"\n'
ENDPOINT = '[datastore.options]\nendpoint = "http://127.0.0.1:{port}"\n'
CONFIGS = {
    "elsewhere": '[datastore]\nurl = "s3://team/x"\n[datastore.options]\nendpoint = "http://127.0.0.1:{port}"\n'
    + SPARK,
    "azure": '[datastore]\nurl = "az://team/x"\n[datastore.options]\nendpoint = "http://127.0.0.1:{port}"\n' + SPARK,
    "home": '[datastore]\npath = "~"\n' + SPARK,
    "home as a store": '[datastore]\nurl = "{home}"\n' + SPARK,
    "itself": SPARK,
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_nothing_leaves_nothing_runs_and_nothing_outside_changes(scene: Scene, command: Command, monkeypatch, kind):
    scene.make(CONFIGS[kind].replace("{port}", str(scene.port)).replace("{home}", scene.home.as_uri()))
    monkeypatch.chdir(scene.clone)
    before = scene.outside()

    for name, args in ARGUMENTS.items():
        ran = command(*name.split(), *args, "--json")
        assert "this is a bug" not in ran.err, (name, ran.err)
        assert ran.code in (0, 1, 2, 3, 4), (name, ran)
        assert not scene.heard(), f"{name} connected to the attacker"
        assert not scene.canary.exists(), f"{name} ran code of the clone"
        assert scene.outside() == before, f"{name} changed something outside"


def test_the_same_in_processes_that_stand_in_the_clone(scene: Scene, processes, monkeypatch):
    """Modules that lie in the directory where a command runs are not imported in place of the real ones."""
    scene.make(CONFIGS["itself"].replace("{port}", str(scene.port)))
    processes.cwd = scene.clone
    before = scene.outside()
    script = "import sys; sys.path[:] = [one for one in sys.path if one]; from bayou.cli import main; main()"

    for name in ("data list", "model types", "workflow validate", "datastore status", "spark status", "trust show"):
        ran = processes.finish(processes.start(["-P", "-c", script, *name.split()], HOME=str(scene.home)))
        assert "Traceback" not in ran.err, ran.err
        assert not scene.canary.exists(), f"{name} ran code of the clone"

    assert scene.outside() == before
    assert not scene.heard()


def test_definitions_that_are_links_out_of_the_clone_are_not_read_or_written(
    scene: Scene, command: Command, monkeypatch
):
    scene.make("")
    monkeypatch.chdir(scene.clone)
    before = scene.outside()

    listed = command("model", "list", "--json")
    trust(scene.clone)
    made = command("model", "create", "new", "thing")

    assert "private" not in listed.out + listed.err
    assert made.code != 0
    assert "out of the repo" in made.err
    assert scene.outside() == before


def test_what_is_legitimate_works_once_it_is_allowed(scene: Scene, command: Command, monkeypatch):
    """The same repo, and a user who looked at it: its directory, its code and its models are used."""
    scene.make('[datastore]\npath = "../team"\n')
    (scene.root / "team").mkdir()
    (scene.clone / "workflows" / "bomb.yaml").unlink()
    monkeypatch.chdir(scene.clone)
    assert command("data", "list", "--json").error["code"] == "trust_needed"

    assert command("trust", "allow", "--yes").code == 0

    assert command("data", "put", "evil", "x", "bayou.toml").code == 0
    assert command("model", "describe", "evil/type").code == 0
    assert command("workflow", "validate").code == 0
    assert os.listdir(scene.root / "team" / "data") == ["evil"]
