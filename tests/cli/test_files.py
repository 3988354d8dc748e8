"""`bayou datastore cat` and `export`: what they print, what they write, and how they end."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import SOURCE
from tests.sync.conftest import Clone, Team

from bayou.sync.report import ExportReport, Failure

BINARY = bytes(range(256)) + b"\r\n\0\n"
TEXT = "größe: 3\n".encode() * 30


@pytest.fixture
def ann(team: Team, monkeypatch: pytest.MonkeyPatch) -> Clone:
    clone = team.clone("ann")
    clone.write_all({"files/binary": BINARY, "files/text": TEXT})
    clone.push()
    monkeypatch.chdir(clone.repo.root)
    return clone


@pytest.mark.parametrize("here", [True, False])
def test_cat_prints_the_bytes_and_nothing_else(ann: Clone, here: bool):
    if not here:
        (ann.repo.tree_root / "files" / "binary").unlink()

    ran = subprocess.run(
        [sys.executable, "-m", "bayou", "datastore", "cat", "files/binary"],
        capture_output=True,
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        check=True,
    )

    assert (ran.stdout, ran.stderr) == (BINARY, b"")
    assert (ann.repo.tree_root / "files" / "binary").exists() == here


def test_cat_as_json(ann: Clone, command):
    ran = command("datastore", "cat", "files/text", "--json")
    assert ran.document == {
        "path": "files/text",
        "size": len(TEXT),
        "sha256": hashlib.sha256(TEXT).hexdigest(),
        "source": "tree",
        "content": TEXT.decode(),
    }
    assert command("datastore", "cat", "files/binary", "--json").document["content"] is None


def test_cat_of_an_unknown_path(ann: Clone, command):
    ran = command("datastore", "cat", "files/test", "--json")
    assert ran.code == 1
    assert ran.error == {
        "code": "not_found",
        "message": "there is nothing at files/test",
        "hint": "the nearest name is files/text",
    }
    assert command("datastore", "cat").code == 2


def test_cat_offline(ann: Clone, command, monkeypatch):
    monkeypatch.setenv("BAYOU_OFFLINE", "1")
    assert command("datastore", "cat", "files/text").out == TEXT.decode()
    (ann.repo.tree_root / "files" / "text").unlink()
    assert command("datastore", "cat", "files/text", "--json").error["code"] == "offline"


def test_locate(ann: Clone, command, team: Team):
    document = command("datastore", "cat", "--locate", "files/text", "--json").document

    assert set(document) == {"path", "bucket", "key", "offset", "stored", "method", "range", "size", "sha256"}
    assert document["method"] == 8
    assert document["range"] == f"bytes={document['offset']}-{document['offset'] + document['stored'] - 1}"
    assert (Path(document["bucket"]) / document["key"]).stat().st_size > document["stored"]
    assert command("datastore", "cat", "--locate", "files/text").out.splitlines() == [
        f"bucket  {document['bucket']}",
        f"key     {document['key']}",
        f"range   {document['range']}",
        "method  8 (deflated)",
        f"size    {len(TEXT)}",
        f"sha256  {hashlib.sha256(TEXT).hexdigest()}",
    ]


def test_export_prints_what_it_wrote(ann: Clone, command, tmp_path: Path):
    ran = command("datastore", "export", str(tmp_path / "out"))

    assert (ran.code, ran.err) == (0, "")
    assert ran.out == f"exported 2 files ({len(BINARY) + len(TEXT)} B) to {tmp_path / 'out'}\n"
    assert (tmp_path / "out" / "files" / "binary").read_bytes() == BINARY
    told = command("datastore", "export", str(tmp_path / "text"), "--prefix", "files/text", "--json")
    assert told.document == {"files": 1, "bytes": len(TEXT), "directory": str(tmp_path / "text")}


def test_export_into_a_directory_with_files_is_refused(ann: Clone, command):
    ran = command("datastore", "export", ".", "--json")
    assert (ran.code, ran.error["code"]) == (2, "usage")
    assert "not empty" in ran.error["message"]


def test_files_that_could_not_be_exported_are_named(api, repo, command):
    failed = [Failure("files/a", "missing", "the store does not have the object of files/a")]
    api.answer("export", ExportReport("/out", 3, 30, failed, 1))

    ran = command("datastore", "export", "/out", "--json")
    assert ran.code == 1
    assert ran.document == {
        "files": 3,
        "bytes": 30,
        "directory": "/out",
        "failed": [{"path": "files/a", "code": "missing", "message": failed[0].message}],
        "failures": 1,
    }
    spoken = command("datastore", "export", "/out")
    assert (spoken.code, spoken.out) == (1, "exported 3 files (30 B) to /out\n")
    assert "files/a: the store does not have the object of files/a" in spoken.err


STOPPED = """
import signal, sys, time
import bayou.maintenance.export as module
from bayou.cli import main

signal.signal(signal.SIGINT, signal.default_int_handler)  # the process that started the tests may ignore it
real = module._Export._install

def slow(self, entry, staged):
    real(self, entry, staged)
    print("ready", flush=True)
    time.sleep(60)

module._Export._install = slow
main()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_export_that_a_signal_stops_says_what_it_wrote(ann: Clone, processes, tmp_path: Path, number, code):
    processes.cwd = ann.repo.root
    process = processes.script(STOPPED, "datastore", "export", str(tmp_path / "out"), "--json")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)

    ran = processes.finish(process)

    assert ran.code == code
    error = json.loads(ran.err)["error"]
    assert error["code"] == "cancelled"
    assert error["message"] == f"the export was stopped; 1 file of {len(BINARY)} bytes written to {tmp_path / 'out'}"
    assert error["hint"] == "delete the directory, or export to another one"
    assert os.listdir(tmp_path / "out") == ["files"]
