"""The records of `data` and `model` commands as JSON has them; like `documents`, a contract for scripts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from bayou.cli.documents import Document

if TYPE_CHECKING:
    from bayou.data.catalog import VersionRow
    from bayou.data.items import Item
    from bayou.data.metadata import Metadata
    from bayou.data.query import QueryResult
    from bayou.data.retention import GcPlan
    from bayou.models import Definition, DeletedModel, ModelListing
    from bayou.models.prune import PrunePlan


def put(model: str, saved: Metadata) -> Document:
    return {
        "model": model,
        "name": saved.name,
        "version": saved.version,
        "size": saved.size,
        "sha256": saved.sha256,
    }


def append(model: str, saved: Metadata) -> Document:
    return {"model": model, "name": saved.name, "version": saved.version, "size": saved.size}


def get(item: Item, path: str, content: object) -> Document:
    found = item.metadata
    owner = {key: value for key, value in asdict(found.owner).items() if value is not None}
    document: dict[str, object] = {
        "id": found.id,
        "name": found.name,
        "version": found.version,
        "content_type": found.content_type,
        "size": found.size,
        "sha256": found.sha256,
        "tags": dict(found.tags),
        "owner": owner,
        "created_at": found.created_at,
        "lifetime": found.lifetime,
        "keep": found.keep,
        "streaming": found.streaming,
        "deleted": found.deleted,
        "renamed_to": found.renamed_to,
        "path": path,
        "content": content,
    }
    if item.forwarded:
        document["forwarded"] = list(item.forwarded)
    return document


def items(rows: Iterable[VersionRow]) -> Document:
    found = [
        {
            "model": row.model,
            "model_id": row.model_id,
            "type": row.type,
            "name": row.name,
            "version": row.version,
            "size": row.size,
            "content_type": row.content_type,
            "tags": dict(row.tags),
            "created_at": row.created_at,
            "lifetime": row.lifetime,
        }
        for row in rows
    ]
    return {"items": found, "total": len(found)}


def versions(rows: Iterable[VersionRow]) -> Document:
    return {
        "versions": [
            {
                "version": row.version,
                "size": row.size,
                "sha256": row.sha256,
                "created_at": row.created_at,
                "latest": row.latest,
                "deleted": row.deleted,
            }
            for row in rows
        ]
    }


def query(found: QueryResult) -> Document:
    document: dict[str, object] = {"results": list(found.results), "total": found.total}
    if found.failed:
        document["failed"] = len(found.failed)
    return document


def rename(old: str, renamed: Metadata) -> Document:
    return {"old": old, "new": renamed.name, "version": renamed.version}


def delete(versions_deleted: int) -> Document:
    return {"versions_deleted": versions_deleted}


def gc(plan: GcPlan) -> Document:
    return {"expired": plan.expired, "versions_deleted": len(plan.doomed), "bytes": plan.bytes}


def prune(plan: PrunePlan) -> Document:
    return {"models": len(plan.models), "versions_deleted": len(plan.doomed), "bytes": plan.bytes}


def model(definition: Definition) -> Document:
    return {
        "id": definition.id,
        "type": definition.type,
        "name": definition.name,
        "path": definition.path,
        "arguments": dict(definition.arguments),
        "methods": dict(definition.methods),
        "tags": dict(definition.tags),
    }


def made_model(definition: Definition) -> Document:
    return {"id": definition.id, "type": definition.type, "name": definition.name, "path": definition.path}


def models(found: ModelListing) -> Document:
    document: dict[str, object] = {
        "models": [{"id": one.id, "type": one.type, "name": one.name} for one in found.models]
    }
    if found.bad:
        document["problems"] = [error.message for error in found.bad]
    return document


def deleted_model(deleted: DeletedModel) -> Document:
    return {"id": deleted.id, "data_deleted": deleted.data_deleted}
