"""A version of many files: `data put DIR` and `data get -o DIR`."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

from bayou.core import limits

FILES = {"a.csv": b"a,b\n1,2\n", "deep/er/b.bin": os.urandom(300_000), "deep/empty": b"", "zähler 1.txt": b"x"}


@pytest.fixture
def web(repo, command):
    assert command("model", "create", "host", "web").code == 0
    return repo


@pytest.fixture
def source(tmp_path) -> Path:
    made = tmp_path / "source"
    for name, content in FILES.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_bytes(content)
    return made


def files_in(directory: Path) -> dict[str, bytes]:
    return {str(file.relative_to(directory)): file.read_bytes() for file in directory.rglob("*") if file.is_file()}


def version_directory(repo, number: int = 1) -> Path:
    return next(place for place in (repo.tree_root / "data/host").glob(f"*/orders/{number}"))


def test_a_directory_becomes_one_version_and_comes_back_as_it_was(web, command, source, tmp_path):
    put = command("data", "put", "web", "orders", str(source), "--tag", "env=prod", "--json")

    total = sum(map(len, FILES.values()))
    assert put.code == 0, put.err
    assert {key: put.document[key] for key in ("version", "size", "files")} == {"version": 1, "size": total, "files": 4}
    stored = version_directory(web)
    assert sorted(os.listdir(stored)) == ["manifest.json", "metadata.yaml", *(f"part-0000{n}" for n in range(4))]
    manifest = json.loads((stored / "manifest.json").read_bytes())["files"]
    assert [file["name"] for file in manifest] == sorted(FILES)
    assert all(set(file) == {"name", "part", "size", "sha256", "rows"} for file in manifest)
    assert put.document["sha256"] == hashlib.sha256((stored / "manifest.json").read_bytes()).hexdigest()

    got = command("data", "get", "web", "orders", "-o", str(tmp_path / "back"))
    assert (got.code, got.err) == (0, "")
    assert files_in(tmp_path / "back") == FILES
    listed = command("data", "list", "--json").document["items"][0]
    assert (listed["size"], listed["files"], listed["content_type"]) == (total, 4, "inode/directory")
    assert "300 KB in 4 files" in command("data", "versions", "web", "orders").out
    shown = command("data", "get", "web", "orders")
    assert "deep/er/b.bin" in shown.out
    assert "-o DIR" in shown.err
    known = command("data", "get", "web", "orders", "--json").document
    assert (known["content"], [file["name"] for file in known["files"]]) == (None, sorted(FILES))


def test_another_clone_gets_it_lazily_and_fetches_the_parts_when_it_reads(web, command, source, tmp_path):
    store = f"file://{tmp_path}/store"
    assert command("datastore", "setup", store).code == 0
    assert command("data", "put", "web", "orders", str(source)).code == 0
    shutil.copytree(web.root, tmp_path / "clone", ignore=shutil.ignore_patterns(".bayou"))
    clone = ["--repo", str(tmp_path / "clone")]
    assert command(*clone, "datastore", "setup", store, "--lazy").code == 0
    here = next((tmp_path / "clone/.bayou/tree/data/host").glob("*/orders/1"))
    assert sorted(os.listdir(here)) == ["manifest.json", "metadata.yaml"]

    assert command(*clone, "data", "get", "web", "orders").code == 0
    assert sorted(os.listdir(here)) == ["manifest.json", "metadata.yaml"]  # a list needs no part
    assert command(*clone, "data", "get", "web", "orders", "-o", str(tmp_path / "back")).code == 0

    assert files_in(tmp_path / "back") == FILES


def test_it_is_renamed_deleted_and_undeleted_whole_in_a_lazy_clone_too(web, command, source, tmp_path):
    store = f"file://{tmp_path}/store"
    assert command("datastore", "setup", store, "--lazy").code == 0
    assert command("data", "put", "web", "orders", str(source)).code == 0
    assert command("data", "rename", "web", "orders", "sales").code == 0
    shutil.copytree(web.root, tmp_path / "clone", ignore=shutil.ignore_patterns(".bayou"))
    clone = ["--repo", str(tmp_path / "clone")]
    assert command(*clone, "datastore", "setup", store, "--lazy").code == 0

    assert command(*clone, "data", "delete", "web", "sales", "-y").code == 0
    verified = command("datastore", "verify", "--json").document
    assert (verified["ok"], verified["checked"]) == (True, 2)  # the two tombstones: no part is left behind

    assert command("data", "undelete", "web", "sales", "--json").document["version"] == 2
    assert command("data", "get", "web", "sales", "-o", str(tmp_path / "back")).code == 0
    assert files_in(tmp_path / "back") == FILES


@pytest.mark.parametrize("trap", ["link", "fifo", "backslash", "control", "case", "nothing", "streaming"])
def test_what_cannot_be_saved_is_refused_by_name_and_nothing_stays(web, command, source, trap):
    more: list[str] = []
    match trap:
        case "link":
            (source / "deep" / "link").symlink_to("/etc/hostname")
        case "fifo":
            os.mkfifo(source / "fifo")
        case "backslash":
            (source / "a\\b").write_bytes(b"")
        case "control":
            (source / "a\x1bb").write_bytes(b"")
        case "case":
            (source / "A.CSV").write_bytes(b"")
        case "nothing":
            shutil.rmtree(source)
            (source / "only/empty").mkdir(parents=True)
        case "streaming":
            more = ["--streaming"]

    ran = command("data", "put", "web", "orders", str(source), *more, "--json")

    assert ran.code == 2
    assert "\x1b" not in ran.error["message"]
    assert command("data", "list", "--json").document["total"] == 0
    assert not (web.tree_root / "data").exists() or not list((web.tree_root / "data").rglob("part-*"))


def test_empty_directories_are_mentioned(web, command, source):
    (source / "hollow").mkdir()

    assert "1 empty directory" in command("data", "put", "web", "orders", str(source)).err


def test_too_many_files_are_refused_before_one_is_copied(web, command, source, monkeypatch):
    monkeypatch.setattr(limits, "FILES_MAX", 3)

    assert "more than 3 files" in command("data", "put", "web", "orders", str(source), "--json").error["message"]


def test_a_directory_that_has_files_is_not_touched(web, command, source, tmp_path):
    command("data", "put", "web", "orders", str(source))
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine").write_text("mine")

    ran = command("data", "get", "web", "orders", "-o", str(tmp_path / "there"), "--json")

    assert ran.code == 2
    assert files_in(tmp_path / "there") == {"mine": b"mine"}


def hostile(manifest: dict, trap: str) -> dict:
    first = manifest["files"][0]
    changed = {
        "outside": {"name": "../../outside"},
        "absolute": {"name": "/tmp/outside"},
        "part": {"part": "../../other/1/raw"},
        "twice": {"name": manifest["files"][1]["name"]},
        "size": {"size": first["size"] + 1},
    }
    return {**manifest, "files": [{**first, **changed[trap]}, *manifest["files"][1:]]}


@pytest.mark.parametrize("trap", ["outside", "absolute", "part", "twice", "size"])
def test_a_hostile_manifest_writes_nothing_anywhere(web, command, source, tmp_path, trap):
    command("data", "put", "web", "orders", str(source))
    stored = version_directory(web)
    before = (stored / "manifest.json").read_bytes()
    after = json.dumps(hostile(json.loads(before), trap)).encode()
    (stored / "manifest.json").write_bytes(after)
    metadata = (stored / "metadata.yaml").read_text()
    digests = [hashlib.sha256(data).hexdigest() for data in (before, after)]
    (stored / "metadata.yaml").write_text(metadata.replace(digests[0], digests[1]))

    ran = command("data", "get", "web", "orders", "-o", str(tmp_path / "out"), "--json")

    assert (ran.code, ran.error["code"]) == (1, "record_damaged")
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".bayou-*"))


def test_a_damaged_part_leaves_no_half_directory(web, command, source, tmp_path):
    command("data", "put", "web", "orders", str(source))
    part = version_directory(web) / "part-00003"
    part.write_bytes(b"y")

    ran = command("data", "get", "web", "orders", "-o", str(tmp_path / "out"), "--json")

    assert ran.error["code"] == "content_damaged"
    assert not (tmp_path / "out").exists()
