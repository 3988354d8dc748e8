"""The tables of the catalog, as workers read them, and the views that queries see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

Kind = Literal["string", "bigint", "double"]
"""What a column of SQLite holds, in Spark's words."""

_LATEST = """NOT deleted AND NOT EXISTS (
    SELECT 1 FROM version AS later
    WHERE later.type = version.type AND later.model_id = version.model_id AND later.name = version.name
    AND later.version > version.version AND NOT later.deleted
)"""

_MADE = "array<struct<name: string, version: bigint, size: bigint, sha256: string>>"


class CatalogTable(Struct, frozen=True):
    """One table of the catalog: its columns, and what is derived from them where they are read."""

    name: str
    columns: Mapping[str, Kind]
    derived: Mapping[str, str]

    @property
    def schema(self) -> str:
        """The columns as Spark declares them; what is derived is a truth value."""
        told = [*self.columns.items(), *((name, "boolean") for name in self.derived)]
        return ", ".join(f"`{name}` {kind}" for name, kind in told)

    @property
    def select(self) -> str:
        """The columns as SQLite is asked for them."""
        derived = (f'{sql} AS "{name}"' for name, sql in self.derived.items())
        return ", ".join([*(f'"{name}"' for name in self.columns), *derived])


def _strings(*names: str) -> dict[str, Kind]:
    return dict.fromkeys(names, "string")


VERSION = CatalogTable(
    "version",
    {
        **_strings("type", "model_id", "name"),
        "version": "bigint",
        **_strings("model", "id"),
        "size": "bigint",
        **_strings("sha256", "content_type", "created_at", "tags", "lifetime", "keep"),
        "streaming": "bigint",
        "deleted": "bigint",
        **_strings("renamed_to", "run", "workflow", "job", "step", "output", "repo"),
    },
    {"latest": _LATEST},
)
OUTPUT = CatalogTable(
    "output",
    {
        **_strings("type", "model_id", "id", "model", "method", "status", "started_at", "finished_at"),
        "duration_s": "double",
        **_strings("data", "error", "run", "workflow", "job", "step", "tags"),
    },
    {},
)
RUN = CatalogTable(
    "run",
    _strings("workflow_id", "run_id", "workflow", "status", "started_at", "finished_at", "failed_step", "by", "tags"),
    {},
)

_TAGS = "from_json(tags, 'map<string, string>') AS tags"


def _moment(name: str) -> str:
    """A time, as the records have it, for Spark; one that is none is null, as it is for nobody's sake an error."""
    return f"try_cast({name} AS TIMESTAMP) AS {name}"


_ITEM = (
    *("model", "type", "model_id", "name", "version", "id", "size", "sha256", "content_type"),
    *(_moment("created_at"), _TAGS, "lifetime", "keep", "CAST(streaming AS BOOLEAN) AS streaming"),
)
_MADE_BY = (
    *("renamed_to", "run", "workflow", "job", "step", "output", "repo"),
    "concat_ws('/', 'data', type, model_id, name, version, 'raw') AS path",
)

VIEWS: Mapping[str, tuple[str, ...]] = {
    "data": (*_ITEM, *_MADE_BY),
    "versions": (*_ITEM, "latest", "CAST(deleted AS BOOLEAN) AS deleted", *_MADE_BY),
    "outputs": (
        *("id", "model", "type", "model_id", "method", "status", _moment("started_at"), _moment("finished_at")),
        *("duration_s", f"from_json(data, '{_MADE}') AS data", "error", "run", "workflow", "job", "step", _TAGS),
    ),
    "runs": (
        *("run_id", "workflow", "workflow_id", "status", _moment("started_at"), _moment("finished_at")),
        *("failed_step", "`by`", _TAGS),
    ),
    "entries": ("path", "push", "size", "lower(hex(sha256)) AS sha256", "etag", "version", "modified"),
}
"""What each view shows of its source, in Spark's SQL; `data` and `versions` have `content` besides."""
