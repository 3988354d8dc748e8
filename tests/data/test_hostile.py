"""17.6: a hostile record is one bad row with its path, and never ends a command (V25)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bayou.core import limits
from bayou.core.errors import RecordDamaged, RecordError
from bayou.data import document
from bayou.data.catalog.derive import derive
from bayou.data.records import Records
from bayou.data.sync_hooks import renumber
from bayou.repo import Repo
from bayou.sync.service import Datastore
from tests.data.catalog.scene import VPC, brief, catalog_of, listed, metadata, output_file, run_file, write
from tests.data.hostile import NUMBERS, UNPARSABLE
from tests.sync.conftest import Clone, Team

GOOD = metadata(VPC, "good", 1)


def with_number(field: str, text: str) -> bytes:
    """Metadata that is well but for one number."""
    said = {"size": b"size: 2\n", "version": b"version: 1\n"}[field]
    found = metadata(VPC, "bad", 1).to_bytes()
    assert said in found
    return found.replace(said, f"{field}: {text}\n".encode())


HOSTILE: Mapping[str, bytes] = {
    **UNPARSABLE,
    **{f"size: {kind}": with_number("size", text) for kind, text in NUMBERS.items()},
    **{f"version: {kind}": with_number("version", text) for kind, text in NUMBERS.items()},
    "size beyond any store": with_number("size", str(limits.SIZE_MAX + 1)),
    "version beyond the highest": with_number("version", str(limits.VERSION_MAX + 1)),
    "a lone surrogate": metadata(VPC, "bad", 1).to_bytes().replace(b"application/json", b"\\ud800"),
    "a lone surrogate in a tag": metadata(VPC, "bad", 1, tags={"a": "b"}).to_bytes().replace(b'"b"', b'"\\udfff"'),
    "a time that is none": metadata(VPC, "bad", 1, created_at="2026-99-99T99:99:99.999Z").to_bytes(),
    "a time before all times": metadata(VPC, "bad", 1, created_at="0001-01-01T00:00:00+23:00").to_bytes(),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_17_6_hostile_metadata_is_refused_with_its_path(content: bytes) -> None:
    path = metadata(VPC, "bad", 1).location.metadata
    with pytest.raises(RecordDamaged) as caught:
        derive(path, content)
    assert path in caught.value.message
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 500


OUTPUTS: dict[str, dict[str, Any]] = {
    "endless": {"duration_s": 10**400},
    "many-versions": {"data": [{"name": "x", "version": 2**63, "size": 1, "sha256": None}]},
    "much-data": {"data": [{"name": "x", "version": 1, "size": 2**70, "sha256": None}]},
    "truths": {"data": [{"name": "x", "version": True, "size": True, "sha256": None}]},
    "no-time": {"started_at": "0000-00-00T00:00:00.000Z"},
}


@pytest.mark.parametrize("fields", OUTPUTS.values(), ids=OUTPUTS.keys())
def test_17_6_a_hostile_output_is_refused(fields: dict[str, Any]) -> None:
    path, content = output_file(VPC, "bad", **fields)
    with pytest.raises(RecordDamaged):
        derive(path, content)


@pytest.mark.parametrize(
    "jobs",
    [
        [{"name": 1, "status": "succeeded"}],
        [{"name": "a"}],
        [{"name": "a", "status": "succeeded", "steps": [{"name": "s", "status": "ok", "duration_s": "long"}]}],
        [{"name": "a", "status": "succeeded", "steps": [{"name": "s", "status": "ok", "duration_s": 10**400}]}],
        [{"name": "a", "status": "succeeded", "steps": [{"name": "s", "status": "ok", "data": [[]]}]}],
    ],
)
def test_17_6_a_run_is_read_with_the_types_that_its_readers_expect(jobs: Any) -> None:
    from bayou.data.runs import Run

    path, content = run_file("deploy", "01J", "failed", jobs=jobs)
    with pytest.raises(RecordDamaged):
        Run.from_document(document.load(content, path), path)


NUMBERED = ["1000000001", str(2**63 - 1), str(2**63), str(10**30), "9" * 250]


def test_17_6_hostile_records_hide_no_others_and_leave_when_they_are_deleted(repo: Repo) -> None:
    """In the cache of a store and in a directory datastore; by following, and by a rebuild."""
    write(repo, GOOD)
    bad = {metadata(VPC, f"bad {at}", 1).location.metadata: content for at, content in enumerate(HOSTILE.values())}
    item = metadata(VPC, "numbered", 1).location.item
    bad |= {f"{item}/{number}/metadata.yaml": GOOD.to_bytes() for number in NUMBERED}
    bad |= dict(output_file(VPC, name, **fields) for name, fields in OUTPUTS.items())
    bad |= {f"outputs/{VPC.type}/{VPC.id}/{at}.yaml": content for at, content in enumerate(UNPARSABLE.values())}
    bad |= {f"workflow-runs/deploy-id/{at}.yaml": content for at, content in enumerate(UNPARSABLE.values())}
    assert listed(repo) == ["main-vpc/good/1"]
    with Datastore(repo) as datastore:
        datastore.tree.write_many(list(bad.items()))
    for _ in range(2):
        with catalog_of(repo) as catalog:
            catalog.refresh()
            assert brief(catalog.find(all_versions=True)) == ["main-vpc/good/1"]
            assert {one.path for one in catalog.bad()} == bad.keys()
        (repo.root / ".bayou" / "catalog.db").unlink()
    with Datastore(repo) as datastore:
        datastore.tree.delete_many(list(bad))
    with catalog_of(repo) as catalog:
        catalog.refresh()
        assert catalog.bad() == []
        assert brief(catalog.find()) == ["main-vpc/good/1"]


def test_17_6_a_hostile_version_is_deleted_as_any_other(repo: Repo) -> None:
    write(repo, GOOD)
    path = metadata(VPC, "good", 2).location.metadata
    for content in (UNPARSABLE["flow lists"], UNPARSABLE["alias bomb"], with_number("size", str(2**70))):
        with Datastore(repo) as datastore:
            datastore.tree.write(path, content)
        with Records(repo) as records:
            assert records.data.delete(VPC, "good", 2) == 1
            records.catalog.refresh()
            assert records.catalog.bad() == []
            assert records.data.get(VPC, "good").metadata.version == 1
        with Datastore(repo) as datastore:
            datastore.tree.delete(path)


def test_17_6_a_number_beyond_the_highest_takes_none_from_its_item(repo: Repo) -> None:
    write(repo, GOOD)
    with Datastore(repo) as datastore:
        for number in NUMBERED:
            datastore.tree.write(f"{GOOD.location.item}/{number}/metadata.yaml", GOOD.to_bytes())
            datastore.tree.write(f"{GOOD.location.item}/{number}/raw", b"{}")
    with Records(repo) as records:
        assert records.data.save(VPC, "good", b"two").version == 2
        assert [row.version for row in records.data.versions(VPC, "good")] == [1, 2]


def test_17_6_at_the_highest_number_a_save_says_so(repo: Repo) -> None:
    write(repo, metadata(VPC, "good", limits.VERSION_MAX - 1))
    with Records(repo) as records:
        assert records.data.save(VPC, "good", b"the last").version == limits.VERSION_MAX
        with pytest.raises(RecordError, match="no number is higher"):
            records.data.save(VPC, "good", b"one more")
        assert records.data.save(VPC, "other", b"one").version == 1
    assert renumber(GOOD.to_bytes(), limits.VERSION_MAX + 1) is None


def test_17_6_metadata_of_300_megabytes_is_not_read(directory_repo: Repo) -> None:
    write(directory_repo, GOOD)
    bad = directory_repo.tree_root / metadata(VPC, "bad", 1).location.metadata
    bad.parent.mkdir(parents=True)
    with bad.open("wb") as file:
        file.truncate(300 << 20)
    with catalog_of(directory_repo) as catalog:
        catalog.refresh()
        assert brief(catalog.find()) == ["main-vpc/good/1"]
        (one,) = catalog.bad()
        assert "more than" in one.why
    with Records(directory_repo) as records, pytest.raises(RecordDamaged, match="more than"):
        records.data.get(VPC, "bad")


MODEL = "main-vpc"


class Peer:
    """Somebody who types commands in one clone; each is a process of its own, so that a crash is seen."""

    def __init__(self, clone: Clone) -> None:
        self.root = clone.repo.root

    def run(self, *args: str, typed: str = "") -> subprocess.CompletedProcess[str]:
        environ = os.environ | {"BAYOU_NO_SPARK": "1"}
        command = [sys.executable, "-m", "bayou", *args, "--json"]
        return subprocess.run(
            command, cwd=self.root, input=typed, env=environ, capture_output=True, text=True, timeout=120, check=False
        )

    def does(self, *args: str, typed: str = "") -> dict[str, Any]:
        ran = self.run(*args, typed=typed)
        assert ran.returncode == 0, (args, ran.returncode, ran.stdout[-500:], ran.stderr[-500:])
        found: dict[str, Any] = json.loads(ran.stdout)
        return found


@pytest.fixture
def peers(team: Team, tmp_path: Path) -> tuple[Clone, Peer]:
    """A clone that writes what it likes, and one that types commands."""
    mallory, bob = team.clone("mallory"), team.clone("bob")
    peer = Peer(bob)
    peer.does("model", "create", "command/shell", MODEL, "--arg", "run=true")
    return mallory, peer


def test_17_6_after_a_pull_of_hostile_records_every_command_works(peers: tuple[Clone, Peer]) -> None:
    mallory, bob = peers
    model = bob.does("model", "get", MODEL)
    model_id, kind = model["id"], model["type"]
    bob.does("data", "put", MODEL, "mine", typed="one")
    item = f"data/{kind}/{model_id}/mine"
    odd = list(HOSTILE.values())
    bad = {f"data/{kind}/{model_id}/bad {at}/1/metadata.yaml": content for at, content in enumerate(odd)}
    bad |= {f"{item}/{number}/metadata.yaml": GOOD.to_bytes() for number in NUMBERED}
    bad |= {f"outputs/{kind}/{model_id}/{at}.yaml": content for at, content in enumerate(UNPARSABLE.values())}
    bad |= {f"workflow-runs/deploy/{at}.yaml": content for at, content in enumerate(UNPARSABLE.values())}
    mallory.write_all(bad)
    mallory.push()

    bob.does("datastore", "sync", "--pull")
    listing = bob.does("data", "list")
    assert [one["name"] for one in listing["items"]] == ["mine"]
    warned = "\n".join(listing["warnings"])
    assert all(path in warned for path in bad)
    bob.does("data", "get", MODEL, "mine", "-o", "out")
    bob.does("data", "versions", MODEL, "mine")
    bob.does("data", "query", "size > 1")
    assert bob.does("data", "put", MODEL, "mine", typed="two")["version"] == 2
    bob.does("data", "rename", MODEL, "mine", "yours")
    bob.does("data", "gc", "--yes")
    bob.does("data", "prune", "--yes")
    bob.does("model", "list")
    bob.does("model", "outputs", MODEL)
    bob.does("model", "run", MODEL, "execute")
    bob.does("workflow", "run", "search")
    bob.does("data", "delete", MODEL, "bad 0", "--yes")
    bob.does("datastore", "status")

    # What is no version, and outputs and runs, go by their paths.
    rest = [path for path in bad if "bad 0/" not in path]
    forgotten = [word for path in rest for word in ("--forget", path)]
    bob.does("datastore", "verify", *forgotten)
    assert bob.does("data", "list").get("warnings", []) == []
    mallory.pull()
    assert not [path for path in rest if path in mallory.files]
