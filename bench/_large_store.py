"""Large stores in a directory: made by several processes, built in another order, removed."""

from __future__ import annotations

import multiprocessing
import os
import random
import subprocess
from contextlib import closing
from functools import partial
from pathlib import Path

from bayou.core.ids import ulid
from bayou.data import document
from bayou.data.layout import Owner
from bayou.data.metadata import Metadata
from bayou.engine.handle import StoreHandle
from bayou.engine.local import LocalExecutor
from bayou.index.merge import merge
from bayou.index.node_store import LocalNodes, NodeFiles
from bayou.index.tree import IndexTree
from bayou.objectstore.spec import StoreSpec
from bayou.sync.plan.discovery_job import DiscoveryJob

_SPAWN = multiprocessing.get_context("spawn")
_BLOCK = 1000
"""Objects of one model: half of them versions of ten items, half of them outputs."""

_VERSIONS, _ITEMS = 50, 10
_BATCHES = 3


def make(root: Path, count: int) -> None:
    """Make so many records, small files all of them: the metadata of versions, and outputs."""
    blocks = [(at, min(_BLOCK, count - at * _BLOCK)) for at in range(-(-count // _BLOCK))]
    with _SPAWN.Pool(max(2, os.cpu_count() or 1)) as pool:
        pool.starmap(partial(_make_block, str(root)), blocks, chunksize=8)


def remove(root: Path) -> None:
    subprocess.run(["rm", "-rf", "--", str(root)], check=True)


def digest_in_another_order(spec: StoreSpec, folder: Path) -> bytes | None:
    """Return the digest of a store's tree, built by adding its entries in no order, some at a time.

    By a process of its own, which holds all entries.
    """
    with _SPAWN.Pool(1) as pool:
        return pool.apply(_digest, (spec, folder))


def _make_block(root: str, block: int, count: int) -> None:
    model = f"{block:08x}-0000-4000-8000-000000000000"
    owner = Owner(f"model-{block}", model, "acme/pipeline", "bench")
    outputs = f"{root}/outputs/acme/pipeline/{model}"
    os.makedirs(outputs, exist_ok=True)
    for number in range(count):
        if number % 2:
            _write(f"{outputs}/{block:08x}{number:04x}.yaml", _output(owner.model, number))
            continue
        item, version = divmod(number // 2, _VERSIONS)
        directory = f"{root}/data/acme/pipeline/{model}/result-{item % _ITEMS}/{version + 1}"
        os.makedirs(directory, exist_ok=True)
        _write(f"{directory}/metadata.yaml", _metadata(owner, item, version + 1).to_bytes())


def _metadata(owner: Owner, item: int, version: int) -> Metadata:
    return Metadata(
        id=f"{item:08x}-0000-4000-9000-000000000000",
        name=f"result-{item}",
        version=version,
        content_type="application/json",
        size=version,
        sha256="0" * 64,
        owner=owner,
        created_at=f"2026-01-{version % 28 + 1:02d}T00:00:00.000Z",
        tags={"env": "prod"},
    )


def _output(model: str, number: int) -> bytes:
    started = f"2026-02-{number % 28 + 1:02d}T10:00:00.000Z"
    return document.dump({"model": model, "method": "sync", "status": "succeeded", "started_at": started})


def _write(path: str, content: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(file, content)
    os.close(file)


def _digest(spec: StoreSpec, folder: Path) -> bytes | None:
    job = DiscoveryJob(StoreHandle(spec.open(), lambda: spec), divided=False)
    with closing(LocalExecutor(threads=1).run(job)) as found:
        entries = list(found.entries())
    random.Random(1).shuffle(entries)
    nodes = LocalNodes(NodeFiles(folder), ulid())
    root = None
    for at in range(_BATCHES):
        root = merge(IndexTree(nodes, root), {entry.path: entry for entry in entries[at::_BATCHES]}, nodes)
    return root.digest if root else None
