"""The commands of docs/stores.md that read a pack without Bayou, run as they are written there, on real S3.

`aws` is a small program on boto3 here, with the one call that the page uses.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tests.cli.conftest import SOURCE
from tests.sync.conftest import Team
from tests.sync.indexes import entries_of

from bayou_testing.s3 import S3Endpoint

PAGE = (SOURCE.parent / "docs" / "stores.md").read_text()
REPORT = json.dumps({"disks": [{"name": f"sd{letter}", "used": 51} for letter in "abcdefghijkl"]}, indent=1).encode()

AWS = """\
import argparse, os, boto3
parser = argparse.ArgumentParser()
parser.add_argument("service", choices=["s3api"])
parser.add_argument("call", choices=["get-object"])
parser.add_argument("--bucket", required=True)
parser.add_argument("--key", required=True)
parser.add_argument("--range")
parser.add_argument("outfile")
asked = parser.parse_args()
client = boto3.client("s3", endpoint_url=os.environ["ENDPOINT"], region_name="us-east-1")
more = {"Range": asked.range} if asked.range else {}
answer = client.get_object(Bucket=asked.bucket, Key=asked.key, **more)
open(asked.outfile, "wb").write(answer["Body"].read())
"""

UNZIP = """\
import sys, zipfile
action, archive, *names = sys.argv[1:]
with zipfile.ZipFile(archive) as opened:
    if action == "-l":
        print("\\n".join(opened.namelist()))
    for name in names:
        sys.stdout.buffer.write(opened.read(name))
"""


def commands() -> list[str]:
    """Return the commands of the page's one block that fetches a pack."""
    (block,) = [block for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL) if "aws s3api" in block]
    return [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A directory with the programs that the page uses; the system's own `unzip`, where there is one."""
    folder = tmp_path / "bin"
    folder.mkdir()
    scripts = {"aws": AWS, "bayou": "from bayou.cli import main\nmain()\n"}
    if shutil.which("unzip") is None:
        scripts["unzip"] = UNZIP
    for name, text in scripts.items():
        (folder / f"run_{name}.py").write_text(text)
        (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" "{folder}/run_{name}.py" "$@"\n')
        (folder / name).chmod(0o755)
    return folder


def test_the_commands_of_the_page_get_the_file(s3_team: Team, seaweed: S3Endpoint, programs: Path, tmp_path: Path):
    ann = s3_team.clone("ann")
    ann.write_all({"files/report.json": REPORT, "files/other": os.urandom(5000)})
    ann.push()
    ben = s3_team.clone("ben")  # its tree is empty: everything comes from the store
    environ = os.environ | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(SOURCE),
        "BAYOU_REPO": str(ben.repo.root),
        "ENDPOINT": s3_team.options["endpoint"],
    }

    def run(command: str) -> bytes:
        return subprocess.run(command, shell=True, cwd=tmp_path, env=environ, check=True, stdout=subprocess.PIPE).stdout

    place = json.loads(run("bayou datastore cat --locate --json files/report.json"))
    assert place["method"] == 8
    replaced = {
        "--bucket team": f"--bucket {place['bucket']}",
        "bytes=46-211": place["range"],
        "project/.bayou/packs/01M7PBQWY36614BTWJWDK4WF97-8390112.zip": place["key"],
    }
    printed: dict[str, bytes] = {}
    setting = ""
    for command in commands():
        text = command
        for old, new in replaced.items():
            text = text.replace(old, new)
        if re.fullmatch(r"[A-Z]+=\S+", text):
            setting = f"{text}; "
        else:
            printed[command] = run(setting + text)

    assert len(printed) == 7
    whole = [
        output
        for command, output in printed.items()
        if re.match(r"bayou datastore cat files|unzip -p|python3", command)
    ]
    assert whole == [REPORT] * 3
    (located,) = [output for command, output in printed.items() if "--locate" in command]
    assert f"range   {place['range']}\n" in located.decode()
    (listed,) = [output for command, output in printed.items() if command.startswith("unzip -l")]
    assert all(name in listed.decode() for name in ("files/report.json", "files/other", ".bayou-pack.json"))
    assert ben.files == {}


def test_a_pack_is_a_zip_file_that_python_finds_nothing_wrong_with(s3_team: Team, seaweed: S3Endpoint, tmp_path: Path):
    ann = s3_team.clone("ann")
    files = {"files/report.json": REPORT, "files/größe": b"", "files/random": os.urandom(5000)}
    ann.write_all(files)
    ann.push()
    (pack,) = {entry.key for entry in entries_of(s3_team.store()).values()}
    fetched = s3_team.store().get(pack)
    assert fetched is not None
    (tmp_path / "pack.zip").write_bytes(bytes(fetched.data))

    with zipfile.ZipFile(tmp_path / "pack.zip") as opened:
        assert opened.testzip() is None
        *names, last = opened.namelist()
        assert {name: opened.read(name) for name in names} == files
        assert last == ".bayou-pack.json"
        listed = json.loads(opened.read(last))
        assert [row[0] for row in listed["members"]] == names
        for info, row in zip(opened.infolist(), listed["members"], strict=False):
            offset = listed["fields"].index("offset")
            assert row[offset] == info.header_offset + 30 + len(info.filename.encode())
