"""Clones with models and data, for the tests of retention."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from bayou.data.layout import ModelRef, Owner
from bayou.data.records import Records
from bayou.data.retention import GcPlan, plan_gc, run_gc
from bayou.repo import Repo
from tests.sync.conftest import Clone, Team, proxy, s3_env, s3_team, team  # noqa: F401

WEB = ModelRef("net", "0f0e0d0c-0b0a-4908-8706-050403020100", "web")
LATER = datetime.now(UTC) + timedelta(days=365)


def put(repo: Repo, name: str, *contents: bytes, model: ModelRef = WEB, run: str | None = None, **options: Any) -> None:
    """Save versions of an item."""
    owner = Owner.of(model, repo.config.repo_id, run=run) if run else None
    with Records(repo) as records:
        for content in contents:
            records.data.save(model, name, content, owner=owner, **options)


def versions(repo: Repo, name: str, model: ModelRef = WEB) -> list[int]:
    """The numbers of an item that are not deleted, as the catalog tells them."""
    with Records(repo) as records:
        return [row.version for row in records.data.find(model=model, name=name, all_versions=True)]


def planned(repo: Repo, now: datetime | None = None) -> GcPlan:
    with Records(repo) as records:
        return plan_gc(records, now or datetime.now(UTC))


def collected(repo: Repo, now: datetime | None = None) -> GcPlan:
    """Plan and run a collection."""
    with Records(repo) as records:
        records.catalog.refresh()
        return run_gc(records, plan_gc(records, now or datetime.now(UTC)))


def size(repo: Repo) -> int:
    """The bytes of all files in the tree."""
    return sum(file.stat().st_size for file in repo.tree_root.rglob("*") if file.is_file())
