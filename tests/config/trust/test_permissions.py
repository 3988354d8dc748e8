"""What a clone asks for, what a user allows, and where that is kept (17.1, 17.4, 17.13; V23)."""

from __future__ import annotations

import json
import os
import socket
import stat
from pathlib import Path

import pytest

import bayou
from bayou.config import trust as permissions
from bayou.config.trust import user_folder
from bayou.core.errors import ConfigInvalid, TrustNeeded
from bayou.maintenance.setup import setup
from bayou.repo import Repo, init_repo, open_repo
from tests.cli.terminal import at_terminal
from tests.trusting import trust


def configured(root: Path, datastore: str = "", rest: str = "") -> Repo:
    made = init_repo(root)
    made.file.write_text(f"{made.file.read_text()}{datastore}\n{rest}\n")
    return open_repo(root)


SPARK = '[spark]\nremote = "sc://127.0.0.1:9"'
ENDPOINT = 'url = "s3://bucket/x"\n[datastore.options]\nendpoint = "http://127.0.0.1:9"'


@pytest.mark.parametrize(
    ("datastore", "rest", "what", "value"),
    [
        ("", SPARK, "spark", "sc://127.0.0.1:9"),
        ("", '[spark]\nremote = "sc://elsewhere:15002/;use_ssl=true"', "spark", "sc://elsewhere:15002/;use_ssl=true"),
        ("", '[spark]\nmaster = "spark://elsewhere:7077"', "spark", "spark://elsewhere:7077"),
        ("", '[spark]\nmaster = "yarn"', "spark", "yarn"),
        ("", '[spark]\nmaster = "local-cluster[2,1,1024]"', "spark", "local-cluster[2,1,1024]"),
        (ENDPOINT, "", "endpoint", "http://127.0.0.1:9"),
        (
            'url = "az://c/x"\n[datastore.options]\nuse_emulator = true',
            "",
            "endpoint",
            "http://127.0.0.1:10000",
        ),
        ('url = "plugged://b/x"\n[datastore.options]\nserver = "elsewhere"', "", "endpoint", "server=elsewhere"),
        ('path = "~"', "", "directory", "~"),
        ('path = "../beside"', "", "directory", "../beside"),
        ('path = "/"', "", "directory", "/"),
    ],
)
def test_what_leads_elsewhere_needs_permission(tmp_path, command, datastore, rest, what, value):
    root = configured(tmp_path / "repo", datastore, rest).root

    shown = command("trust", "show", "--repo", str(root), "--json").document

    assert (shown["repo"], shown["allowed"]) == (str(root), False)
    assert [(need["what"], need["value"], need["allowed"]) for need in shown["needs"]] == [(what, value, False)]
    assert shown["needs"][0]["why"].startswith("its bayou.toml ")
    assert shown["needs"][0]["where"].startswith("bayou.toml: ")


@pytest.mark.parametrize(
    ("datastore", "rest"),
    [
        ("", ""),
        ("", '[spark]\nmaster = "local[4]"'),
        ("", '[spark]\nmaster = "local"'),
        ('url = "s3://bucket/x"', ""),
        ('url = "gs://bucket/x"', ""),
        ('path = "inside"', ""),
        ('path = ".bayou/tree"', ""),
    ],
)
def test_what_stays_in_the_repo_or_goes_to_the_provider_needs_none(tmp_path, command, datastore, rest):
    root = configured(tmp_path / "repo", datastore, rest).root

    assert command("trust", "show", "--repo", str(root), "--json").document == {
        "repo": str(root),
        "allowed": True,
        "needs": [],
    }


def test_a_link_inside_the_repo_that_leads_out_of_it_counts_as_outside(tmp_path):
    (tmp_path / "outside").mkdir()
    root = configured(tmp_path / "repo", 'path = "inside"').root
    (root / "inside").symlink_to(tmp_path / "outside")

    with pytest.raises(TrustNeeded, match="outside the repo"):
        _ = open_repo(root).tree_root


@pytest.mark.parametrize("name", [".bayou", ".bayou/tree", ".bayou/state", ".bayou/conflicts"])
def test_a_part_of_the_local_directory_that_is_a_link_out_of_the_repo_is_not_used(tmp_path, command, name):
    """Git keeps links, so a clone can have them."""
    victim = tmp_path / "victim"
    (victim / "data").mkdir(parents=True)
    (victim / "data" / "file").write_text("mine")
    root = configured(tmp_path / "repo").root
    if name == ".bayou":
        (root / ".bayou" / ".gitignore").unlink()
        (root / ".bayou").rmdir()
    (root / name).symlink_to(victim)

    ran = command("data", "list", "--repo", str(root), "--json")

    assert (ran.code, ran.error["code"]) == (1, "trust_needed")
    assert sorted(os.listdir(victim)) == ["data"]


def test_a_store_is_made_among_files_outside_the_repo_only_with_permission(tmp_path, command):
    """A `file://` store in somebody's home is no better than `datastore.path` there."""
    (tmp_path / "home" / "notes").write_text("mine")
    root = configured(tmp_path / "repo", f'url = "{(tmp_path / "home").as_uri()}"').root

    ran = command("datastore", "sync", "--repo", str(root), "--json")

    assert (ran.code, ran.error["code"]) == (1, "trust_needed")
    assert set(os.listdir(tmp_path / "home")) <= {"notes", ".config"}


def test_a_store_that_is_one_already_is_shared_without_a_question(tmp_path, command):
    store = tmp_path / "store"
    store.mkdir()
    first = init_repo(tmp_path / "first")
    assert command("datastore", "setup", store.as_uri(), "--repo", str(first.root)).code == 0
    (store / "data").mkdir()
    permissions.revoke(first.root)

    assert command("datastore", "sync", "--repo", str(first.root), "--json").code == 0


# ---- nothing is sent without permission ----


@pytest.fixture
def listener():
    """A server that should hear nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def heard(server: socket.socket) -> bool:
    try:
        server.accept()[0].close()
    except BlockingIOError:
        return False
    return True


@pytest.mark.parametrize(
    "args",
    [
        ("datastore", "sync"),
        ("datastore", "sync", "--engine", "spark"),
        ("datastore", "verify"),
        ("datastore", "gc", "--dry-run"),
        ("data", "sql", "SELECT 1"),
        ("spark", "status"),
        ("spark", "warm"),
    ],
)
def test_17_1_a_cloned_spark_server_gets_nothing(tmp_path, command, monkeypatch, listener, args):
    """With a store in a directory, three files and a limit of one, everything would go to Spark."""
    for name in ("AWS_SECRET_ACCESS_KEY", "AZURE_STORAGE_ACCOUNT_KEY", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.setenv(name, "dummy")
    (tmp_path / "store").mkdir()
    made = init_repo(tmp_path / "repo")
    assert command("datastore", "setup", (tmp_path / "store").as_uri(), "--repo", str(made.root)).code == 0
    with bayou.open(made.root) as opened:
        for number in range(3):
            opened.tree.write(f"files/{number}", b"x")
        assert command("datastore", "sync", "--repo", str(made.root)).code == 0
        for number in range(3, 6):
            opened.tree.write(f"files/{number}", b"x")
    address = f"sc://127.0.0.1:{listener.getsockname()[1]}"
    made.file.write_text(f'{made.file.read_text()}\n[sync]\npoint_limit = 1\n[spark]\nremote = "{address}"\n')

    ran = command(*args, "--repo", str(made.root), "--json")

    assert not heard(listener)
    assert (ran.code, ran.error["code"]) == (1, "trust_needed")
    assert address in ran.error["message"]
    assert "bayou trust allow" in ran.error["hint"]


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
@pytest.mark.parametrize("args", [("datastore", "sync"), ("datastore", "status"), ("datastore", "lock", "status")])
def test_17_4_a_cloned_endpoint_gets_nothing(tmp_path, command, monkeypatch, listener, scheme, args):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "dummy")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "dummy")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "dummy")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "dummy")
    monkeypatch.setenv("AZURE_STORAGE_TOKEN", "dummy")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none"))
    endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
    lines = f'url = "{scheme}://bucket/x"\n[datastore.options]\nendpoint = "{endpoint}"'
    root = configured(tmp_path / "repo", lines).root

    ran = command(*args, "--repo", str(root), "--json")

    assert not heard(listener)
    assert (ran.code, ran.error["code"]) == (1, "trust_needed")
    assert endpoint in ran.error["message"]
    assert "unencrypted" in ran.error["message"]


def test_what_was_typed_needs_no_permission(tmp_path, command, monkeypatch):
    """A flag of setup, or a variable, is this user's own word; setup allows what it writes."""
    (tmp_path / "home" / "notes").write_text("mine")
    made = init_repo(tmp_path / "repo")
    setup(
        made,
        (tmp_path / "home").as_uri(),
        namespace=None,
        options={},
        lazy=False,
        skip_migration=True,
        timeout=None,
    )
    assert command("trust", "show", "--repo", str(made.root), "--json").document["allowed"]
    assert command("datastore", "sync", "--repo", str(made.root)).code == 0

    monkeypatch.setenv("BAYOU_SPARK_MASTER", "spark://typed:7077")
    monkeypatch.setenv("BAYOU_DATASTORE", str(tmp_path / "typed"))
    clone = configured(tmp_path / "clone", 'path = "~"', SPARK)
    clone.config.spark.require_trust()
    assert clone.tree_root == tmp_path / "typed"


def test_a_typed_url_does_not_bring_the_file_s_endpoint_past_the_question(tmp_path, monkeypatch):
    monkeypatch.setenv("BAYOU_DATASTORE", "s3://bucket/x")
    clone = configured(tmp_path / "clone", ENDPOINT)
    assert clone.config.datastore.options["endpoint"] == "http://127.0.0.1:9"

    with pytest.raises(TrustNeeded):
        clone.store()


# ---- allowing ----


def test_what_is_allowed_stays_allowed_and_another_value_is_asked_about_anew(tmp_path, command):
    root = configured(tmp_path / "repo", ENDPOINT, SPARK).root
    assert command("trust", "allow", "--repo", str(root), "--json").error["code"] == "not_confirmed"

    done = command("trust", "allow", "--yes", "--repo", str(root), "--json").document
    assert done["allowed"]
    assert all(need["allowed"] for need in done["needs"])
    open_repo(root).config.spark.require_trust()
    open_repo(root).store()

    file = root / "bayou.toml"
    file.write_text(file.read_text().replace("sc://127.0.0.1:9", "sc://127.0.0.1:10"))
    with pytest.raises(TrustNeeded, match=r"127\.0\.0\.1:10"):
        open_repo(root).config.spark.require_trust()
    open_repo(root).store()  # that has not changed

    command("trust", "revoke", "--repo", str(root))
    with pytest.raises(TrustNeeded):
        open_repo(root).store()


def test_permission_belongs_to_one_repo(tmp_path):
    for name in ("one", "two"):
        configured(tmp_path / name, ENDPOINT)
    trust(tmp_path / "one")

    open_repo(tmp_path / "one").store()
    with pytest.raises(TrustNeeded):
        open_repo(tmp_path / "two").store()


def test_permissions_are_kept_in_the_user_s_own_folder_for_this_user_only(tmp_path, home, monkeypatch):
    root = configured(tmp_path / "repo", ENDPOINT).root
    trust(root)

    (file,) = (home / ".config" / "bayou" / "trust").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert json.loads(file.read_text())["repo"] == str(root)

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "other"))
    assert user_folder() == tmp_path / "other" / "bayou"
    with pytest.raises(TrustNeeded):
        open_repo(root).store()


def test_a_permission_that_the_clone_brought_along_counts_for_nothing(tmp_path, monkeypatch):
    """Where HOME is the clone, as in some containers."""
    root = configured(tmp_path / "repo", ENDPOINT).root
    trust(root)
    (known,) = (user_folder() / "trust").iterdir()
    monkeypatch.setenv("HOME", str(root))
    (user_folder() / "trust").mkdir(parents=True)
    (user_folder() / "trust" / known.name).write_text(known.read_text())

    with pytest.raises(TrustNeeded):
        open_repo(root).store()
    with pytest.raises(TrustNeeded, match="lies in the repo itself"):
        trust(root)


@pytest.mark.parametrize("text", ["", "[]", '{"allowed": 3}', "[" * 100_000, "\x00\xff"])
def test_a_damaged_permission_file_allows_nothing(tmp_path, text):
    root = configured(tmp_path / "repo", ENDPOINT).root
    trust(root)
    (file,) = (user_folder() / "trust").iterdir()
    file.write_text(text)

    with pytest.raises(TrustNeeded):
        open_repo(root).store()


def test_ci_allows_everything_with_a_variable(tmp_path, monkeypatch):
    root = configured(tmp_path / "repo", ENDPOINT, SPARK).root
    monkeypatch.setenv("BAYOU_TRUST", "1")
    open_repo(root).store()
    open_repo(root).config.spark.require_trust()

    monkeypatch.setenv("BAYOU_TRUST", "0")
    with pytest.raises(TrustNeeded):
        open_repo(root).store()
    monkeypatch.setenv("BAYOU_TRUST", "perhaps")
    with pytest.raises(ConfigInvalid, match="BAYOU_TRUST"):
        open_repo(root).store()


def test_a_person_at_a_terminal_is_asked_once(tmp_path):
    root = configured(tmp_path / "repo", 'path = "../beside"').root
    (tmp_path / "beside").mkdir()

    no, asked = at_terminal("n\n", "data", "list", "--repo", str(root))
    yes, _ = at_terminal("y\n", "data", "list", "--repo", str(root))
    later, unasked = at_terminal("", "data", "list", "--repo", str(root))

    assert (no, yes, later) == (1, 0, 0)
    assert f"it reads, writes and deletes in {tmp_path / 'beside'}" in asked
    assert "allow this on this machine? [y/N]" in asked
    assert "allow this" not in unasked


# ---- code ----


@pytest.fixture
def extended(tmp_path) -> Path:
    """A repo whose extensions leave a file behind when they are loaded."""
    root = configured(tmp_path / "repo").root
    folder = root / "extensions" / "models"
    folder.mkdir(parents=True)
    (folder / "x.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'a').close()\nclass X:\n  type = 'a/b'\n  def f(self): ...\n"
    )
    return root


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("model", "types"), 1),
        (("model", "create", "a/b", "new"), 1),
        (("model", "describe", "a/b"), 1),
        (("model", "list"), 0),
        (("workflow", "validate"), 1),
        (("workflow", "evaluate", "flow"), 2),
        (("workflow", "list"), 0),
        (("data", "list"), 0),
    ],
)
def test_17_13_code_of_a_clone_runs_only_where_somebody_asked_for_it(tmp_path, extended, command, args, code):
    (extended / "models" / "a" / "b").mkdir(parents=True)
    (extended / "models" / "a" / "b" / "m.yaml").write_text(
        "id: 7c1f0d3e-6a7b-4f0e-9d53-0c4a1f5f0a11\nname: m\ntype: a/b\n"
    )
    (extended / "workflows" / "flow.yaml").write_text(
        "id: 7c1f0d3e-6a7b-4f0e-9d53-0c4a1f5f0a12\nname: flow\n"
        "jobs:\n  - name: one\n    steps:\n      - name: s\n        model: m\n        method: f\n"
    )

    ran = command(*args, "--repo", str(extended), "--json")

    assert not (tmp_path / "ran").exists()
    assert ran.code == code, ran.err
    if code:
        assert "bayou trust" in ran.err + ran.out or "permission" in ran.out

    trust(extended)
    command(*args, "--repo", str(extended), "--json")
    assert (tmp_path / "ran").exists() == bool(code)


def test_whoever_runs_a_model_allows_its_code(tmp_path, extended, command):
    trust(extended)
    assert command("model", "create", "a/b", "m", "--repo", str(extended)).code == 0
    permissions.revoke(extended)
    (tmp_path / "ran").unlink()

    assert command("model", "run", "m", "f", "--repo", str(extended)).code == 0
    assert (tmp_path / "ran").exists()


def test_changed_code_is_asked_about_anew(extended):
    trust(extended)
    open_repo(extended).require_extensions()
    (extended / "extensions" / "helper.py").write_text("x = 1\n")

    with pytest.raises(TrustNeeded, match=r"extensions/helper\.py"):
        open_repo(extended).require_extensions()


def test_a_compiled_file_is_never_run_in_place_of_the_source_that_was_allowed(tmp_path, extended, command):
    """Python runs an "unchecked" compiled file whatever its source says; a clone can bring one along."""
    import importlib.util
    import py_compile

    source = tmp_path / "evil.py"
    source.write_text(f"open({str(tmp_path / 'evil-ran')!r}, 'a').close()\nclass X:\n  type = 'a/b'\n")
    target = importlib.util.cache_from_source(str(extended / "extensions" / "models" / "x.py"))
    py_compile.compile(
        str(source), cfile=target, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH, doraise=True
    )
    trust(extended)

    assert command("model", "types", "--repo", str(extended)).code == 0
    assert (tmp_path / "ran").exists()
    assert not (tmp_path / "evil-ran").exists()


def test_what_is_allowed_still_works_afterwards(tmp_path, command):
    """17: what is legitimate works after `bayou trust allow`."""
    root = configured(tmp_path / "repo", 'path = "../beside"').root
    (tmp_path / "beside").mkdir()
    assert command("trust", "allow", "-y", "--repo", str(root)).code == 0

    assert command("model", "create", "net", "m", "--repo", str(root)).code == 0
    (tmp_path / "in").write_text("x")
    assert command("data", "put", "m", "x", str(tmp_path / "in"), "--repo", str(root)).code == 0
    assert (tmp_path / "beside" / "data").is_dir()
