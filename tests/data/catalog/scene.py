"""Files of records, made without the repositories: as another machine, or a process that died, would leave them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bayou.data import document
from bayou.data.catalog import Catalog, VersionRow
from bayou.data.layout import Owner
from bayou.data.metadata import Metadata
from bayou.repo import Repo
from bayou.sync.plan.policy import ModelRef
from bayou.sync.service import Datastore

VPC = ModelRef("aws/ec2/vpc", "3f0e7bd2-62cf-4c59-9d0f-36d0a2f3e0b1", "main-vpc")
_LONG_AGO_NS = 10**18
"""Some thirty years."""

REPORT = ModelRef("report", "b1f9d0b4-0d7a-4e0c-8a53-1a2f5b7c9d10", "weekly")


def metadata(model: ModelRef, name: str, version: int, **more: Any) -> Metadata:
    owner = Owner(model.name, model.id, model.type, "7d3b6f9e-18c2-4f7e-9f5a-2c1d0e9b8a77")
    fields: dict[str, Any] = {
        "id": f"00000000-0000-4000-8000-{abs(hash(name)) % 10**12:012d}",
        "name": name,
        "version": version,
        "content_type": "application/json",
        "size": 2,
        "sha256": "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
        "owner": owner,
        "created_at": f"2026-01-{version % 28 + 1:02d}T00:00:00.000Z",
    }
    return Metadata(**{**fields, **more})


def files(made: Metadata, content: bytes = b"{}") -> list[tuple[str, bytes]]:
    return [(made.location.raw, content), (made.location.metadata, made.to_bytes())]


def write(repo: Repo, *made: Metadata) -> None:
    """Write versions through the tree, and tell no catalog."""
    with Datastore(repo) as datastore:
        datastore.tree.write_many([file for one in made for file in files(one)])


def delete(repo: Repo, *made: Metadata) -> None:
    """Delete versions through the tree, and tell no catalog."""
    with Datastore(repo) as datastore:
        datastore.tree.delete_many([path for one in made for path, _ in files(one)])


def run_file(workflow: str, run_id: str, status: str, **more: Any) -> tuple[str, bytes]:
    fields = {
        "run_id": run_id,
        "workflow_id": f"{workflow}-id",
        "workflow": workflow,
        "status": status,
        "started_at": "2026-02-01T10:00:00.000Z",
        **more,
    }
    return f"workflow-runs/{workflow}-id/{run_id}.yaml", document.dump(fields)


def output_file(model: ModelRef, output_id: str, **more: Any) -> tuple[str, bytes]:
    fields = {
        "id": output_id,
        "model": model.name,
        "method": "sync",
        "status": "succeeded",
        "started_at": "2026-02-01T10:00:00.000Z",
        "data": [{"name": "state", "version": 1, "size": 2, "sha256": None}],
        **more,
    }
    return f"outputs/{model.type}/{model.id}/{output_id}.yaml", document.dump(fields)


@contextmanager
def catalog_of(repo: Repo) -> Iterator[Catalog]:
    with Datastore(repo) as datastore, Catalog(datastore.connection, datastore.tree) as catalog:
        yield catalog


def listed(repo: Repo, **filters: Any) -> list[str]:
    """Refresh the catalog, and list it: `model/name/version`."""
    with catalog_of(repo) as catalog:
        catalog.refresh()
        return brief(catalog.find(**filters))


def brief(rows: list[VersionRow]) -> list[str]:
    return [f"{row.model}/{row.name}/{row.version}" for row in rows]


def age(repo: Repo) -> None:
    """Make everything in the tree old: what changed a moment ago is looked at again, since it may still change."""
    for directory, _, names in os.walk(repo.tree_root):
        for path in (directory, *(os.path.join(directory, name) for name in names)):
            moment = os.stat(path).st_mtime_ns
            if moment > _LONG_AGO_NS:
                os.utime(path, ns=(moment - _LONG_AGO_NS, moment - _LONG_AGO_NS))
