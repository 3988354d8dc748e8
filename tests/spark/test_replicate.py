"""Replication on Spark: the same replica as the point way makes, also when tasks fail and run again."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pytest
from pyspark import TaskContext, cloudpickle

from bayou.engine.select import Request
from bayou.index.build import build
from bayou.index.entry import Entry
from bayou.index.head import read_head
from bayou.index.node_store import LocalNodes, StoreNodes
from bayou.index.tree import IndexTree, scan
from bayou.objectstore import keys, open_store
from bayou.spark.executor import JobKernel
from tests import api
from tests.index.memory import MemoryFiles
from tests.maintenance.replicas import damage
from tests.sync.conftest import Clone, Team

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


class FailsAtFirst(JobKernel):
    """The kernel of a job, but half of the tasks fail once, after they have done their work."""

    def __call__(self, part: object) -> Iterator[pyarrow.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        yield from JobKernel.__call__(self, part)
        if context.attemptNumber() == 0 and context.partitionId() % 2 == 0:
            raise RuntimeError("this task fails at first")


def entries_of(url: str) -> list[Entry]:
    store = open_store(url)
    seen = read_head(store)
    assert seen is not None
    assert seen.head.root is not None
    found = list(scan(IndexTree(StoreNodes(store), seen.head.root)))
    # One set of entries has one tree, whoever built it.
    rebuilt = build(found, LocalNodes(MemoryFiles(), "c"))
    assert rebuilt is not None
    assert rebuilt.digest == seen.head.root.digest
    return found


def told(url: str) -> list[tuple[object, ...]]:
    return [(entry.path, entry.size, entry.sha256, entry.modified) for entry in entries_of(url)]


def test_both_engines_make_the_same_replica(warm, team: Team, tmp_path: Path, monkeypatch):
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    monkeypatch.setattr("bayou.spark.executor.JobKernel", FailsAtFirst)
    monkeypatch.setattr("bayou.maintenance.replica.transfer.LEAST_COST", 1 << 20)
    for name in ("point", "spark"):
        (tmp_path / name).mkdir()
    engines: tuple[Request, ...] = ("point", "spark")
    urls = {name: (tmp_path / name).as_uri() for name in engines}
    for number in range(40):  # discovered: nobody knows their hashes
        team.store().put(keys.payload(f"files/old/{number}", None), b"old %d" % number)
    monkeypatch.setenv("BAYOU_PACK_BELOW", "20000")
    monkeypatch.setenv("BAYOU_PACK_SIZE", "65536")  # several parts, and several packs
    alice: Clone = team.clone("alice")
    version = {"data/t/m/n/1/raw": b"raw", "data/t/m/n/1/metadata.yaml": b"metadata"}
    alice.write_all({f"files/{number}": os.urandom(800) + b"%d" % number for number in range(300)} | version)
    alice.write_all({f"files/large/{number}": os.urandom(30_000) for number in range(8)})
    alice.push(engine="point")

    def both() -> tuple[int, int, int, int, int]:
        found = []
        for name, url in urls.items():
            done = api.replicate(alice.repo, url, engine=name, timeout=500)
            assert done.warnings == []
            found.append((done.copied, done.skipped, done.bytes, done.deleted, done.failures))
        assert found[0] == found[1]
        assert told(urls["point"]) == told(urls["spark"])
        return found[0]

    assert both()[:2] == (350, 0)
    for url in urls.values():
        entries = {entry.path: entry for entry in entries_of(url)}
        named = {entry.pack for entry in entries.values() if entry.pack is not None}
        assert len(named) > 3
        assert all((entry.pack is None) == path.startswith("files/large/") for path, entry in entries.items())
        written = {keys.parse_pack(meta.key) for page in open_store(url).list(keys.PACKS) for meta in page}
        # P1: a task that ran twice has written two packs; one of them is committed, the other is a leftover.
        assert named < written if url == urls["spark"] else named == written

    renewed = {path: b"new " + data for path, data in version.items()}
    alice.write_all({"files/1": b"changed", "files/new": b"new", **renewed})
    alice.delete(*(f"files/{number}" for number in range(100, 290)))
    alice.push(engine="point")
    lost = {entry.path: entry for entry in entries_of(team.url)}
    for path in ("files/new", "data/t/m/n/1/raw"):
        damage(team, lost[path])
    dry = api.replicate(alice.repo, urls["spark"], engine="spark", dry_run=True, timeout=500)

    assert (dry.copied, dry.skipped, dry.deleted) == (4, 157, 190)
    assert both() == (2, 157, len(b"changednew metadata"), 190, 2)
    # Of a version that could not be copied whole the replica keeps what it has.
    kept = {entry.path: entry for entry in entries_of(urls["spark"])}
    assert {kept[path].size for path in version} == {len(data) for data in version.values()}
    assert "files/new" not in kept
