"""Records that cannot be read are named, and hide nothing else (F121)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bayou.repo import Repo
from bayou.sync.service import Datastore
from tests.data.catalog.scene import VPC, brief, catalog_of, listed, metadata, output_file, run_file, write

BAD = {
    "no YAML": b"{",
    "no text": b"\xff\xfe",
    "empty": b"",
    "a list": b"- 1\n",
    "no size": metadata(VPC, "bad", 1).to_bytes().replace(b"\nsize: 2", b""),
    "version is a text": metadata(VPC, "bad", 1).to_bytes().replace(b"version: 1", b'version: "1"'),
    "no time": metadata(VPC, "bad", 1, created_at="yesterday").to_bytes(),
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD.keys())
def test_f121_metadata_that_does_not_parse_is_named_and_the_rest_is_listed(repo: Repo, content: bytes) -> None:
    good, bad = metadata(VPC, "good", 1), metadata(VPC, "bad", 1)
    write(repo, good, bad)
    assert listed(repo) == ["main-vpc/bad/1", "main-vpc/good/1"]
    with Datastore(repo) as datastore:
        datastore.tree.write(bad.location.metadata, content)
    for _ in range(2):
        with catalog_of(repo) as catalog:
            catalog.refresh()
            assert brief(catalog.find()) == ["main-vpc/good/1"]
            (one,) = catalog.bad()
            assert one.path == bad.location.metadata
            assert one.path in one.why
            assert "\n" not in one.why
        (repo.root / ".bayou" / "catalog.db").unlink()
    with Datastore(repo) as datastore:
        datastore.tree.write(bad.location.metadata, bad.to_bytes())
    with catalog_of(repo) as catalog:
        catalog.refresh()
        assert brief(catalog.find()) == ["main-vpc/bad/1", "main-vpc/good/1"]
        assert catalog.bad() == []


def test_a_bad_record_that_is_deleted_is_bad_no_more(repo: Repo) -> None:
    path = metadata(VPC, "bad", 1).location.metadata
    with Datastore(repo) as datastore:
        datastore.tree.write(path, b"{")
    with catalog_of(repo) as catalog:
        catalog.refresh()
        assert [one.path for one in catalog.bad()] == [path]
    with Datastore(repo) as datastore:
        datastore.tree.delete(path)
    with catalog_of(repo) as catalog:
        catalog.refresh()
        assert catalog.bad() == []


def test_outputs_and_runs_that_say_too_little_are_named(repo: Repo) -> None:
    files = [
        output_file(VPC, "good"),
        output_file(VPC, "no-status", status=None),
        output_file(VPC, "no-data", data=[{"name": "x"}]),
        run_file("deploy", "01JGOOD", "succeeded"),
        run_file("deploy", "01JNUMBER", "failed", failed_step=3),
        run_file("deploy", "01JTAGS", "failed", tags={"a": 1}),
        run_file("deploy", "01JJOBS", "failed", jobs=["build"]),
    ]
    with Datastore(repo) as datastore:
        datastore.tree.write_many(files)
    with catalog_of(repo) as catalog:
        catalog.refresh()
        assert [one.id for one in catalog.outputs(VPC.id)] == ["good"]
        assert [one.run_id for one in catalog.runs()[0]] == ["01JGOOD"]
        assert {one.path for one in catalog.bad()} == {path for path, _ in files if "good" not in path.lower()}


def test_a_directory_that_may_not_be_looked_into_keeps_its_rows_and_is_named(
    directory_repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(directory_repo, metadata(VPC, "state", 1))
    assert listed(directory_repo) == ["main-vpc/state/1"]
    closed, look = f"data/{VPC.type}/{VPC.id}", os.lstat

    def lstat(path: str) -> os.stat_result:
        if str(path).endswith(closed):
            raise PermissionError(13, "Permission denied")
        return look(path)

    with monkeypatch.context() as patch, catalog_of(directory_repo) as catalog:
        patch.setattr(os, "lstat", lstat)
        catalog.refresh()
        assert brief(catalog.find()) == ["main-vpc/state/1"]
        assert [one.path for one in catalog.bad()] == [closed]
    with catalog_of(directory_repo) as catalog:
        catalog.refresh()
        assert catalog.bad() == []


def test_a_link_in_the_tree_leads_nowhere(repo: Repo, tmp_path: Path) -> None:
    """V21: metadata that lies outside the tree is not this datastore's."""
    outside = tmp_path / "outside"
    outside.mkdir()
    made = metadata(VPC, "state", 1)
    (outside / "metadata.yaml").write_bytes(made.to_bytes())
    write(repo, metadata(VPC, "state", 2))
    (repo.tree_root / made.location.metadata).parent.symlink_to(outside)
    assert listed(repo, all_versions=True) == ["main-vpc/state/2"]
    (repo.root / ".bayou" / "catalog.db").unlink()
    assert listed(repo, all_versions=True) == ["main-vpc/state/2"]
