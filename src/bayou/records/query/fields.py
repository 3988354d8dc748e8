"""What an expression can ask of a version, and how the catalog's columns tell it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from bayou.records.catalog.rows import VersionRow

Kind = Literal["text", "number", "truth", "time", "other"]


class Field(Struct, frozen=True):
    """One field. `nullable`: it may be null, which CEL neither orders nor calls functions on."""

    kind: Kind
    value: Callable[[VersionRow], Any]
    nullable: bool = False


def time_of(row: VersionRow) -> datetime:
    """Return when a version was made, as CEL compares it."""
    return datetime.fromisoformat(row.created_at)


def _owner(row: VersionRow) -> Mapping[str, str | None]:
    names = ("model", "model_id", "type", "repo", "output", "run", "workflow", "job", "step")
    return {name: getattr(row, name) for name in names}


FIELDS: Mapping[str, Field] = {
    "model": Field("text", lambda row: row.model),
    "model_id": Field("text", lambda row: row.model_id),
    "type": Field("text", lambda row: row.type),
    "name": Field("text", lambda row: row.name),
    "version": Field("number", lambda row: row.version),
    "latest": Field("truth", lambda row: row.latest),
    "size": Field("number", lambda row: row.size),
    "content_type": Field("text", lambda row: row.content_type),
    "tags": Field("other", lambda row: dict(row.tags)),
    "created_at": Field("time", time_of),
    "lifetime": Field("text", lambda row: row.lifetime, nullable=True),
    "owner": Field("other", _owner),
    "run": Field("text", lambda row: row.run, nullable=True),
    "workflow": Field("text", lambda row: row.workflow, nullable=True),
    "job": Field("text", lambda row: row.job, nullable=True),
    "step": Field("text", lambda row: row.step, nullable=True),
}
"""What the catalog alone can tell."""

CONTENT = ("content", "attributes")
"""What has to be read: the content as text (or bytes), and the JSON object that it is (else an empty one)."""

KNOWN = (*FIELDS, *CONTENT)
