"""`query`: evaluate a CEL predicate, and a CEL selection, over the versions in the catalog."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from bayou.core import limits
from bayou.core.documents import read_at_most
from bayou.core.errors import QueryInvalid, RecordError
from bayou.data.catalog.rows import VersionRow
from bayou.data.query.evaluator import FAILURES, TooCostly
from bayou.data.query.expression import Expression, as_json, check_size, content_of
from bayou.data.query.pushdown import push_down

if TYPE_CHECKING:
    from bayou.data.records import Records

Load = Callable[[VersionRow], bytes]
_MAX_COSTLY = 5
"""After so many versions for which an expression takes too long, the query fails: each costs seconds."""

_LISTED = ("model", "model_id", "type", "name", "version", "size", "content_type", "tags", "created_at", "lifetime")


class QueryResult(Struct, frozen=True):
    """The first results, how many versions match in all, and a sentence for each evaluation that failed."""

    results: list[Any]
    total: int
    failed: list[str]


def query(records: Records, predicate: str, select: str | None = None, limit: int | None = None) -> QueryResult:
    """Return the versions for which `predicate` is true, or the value of `select` for each; at most `limit` of them.

    Content is read, and fetched if it is not on this machine, only if an expression uses it. `QueryInvalid` is raised
    before any row is read. The caller has refreshed the catalog.
    """
    from bayou.data.items import Item, metadata_of  # noqa: PLC0415  (only for content)

    def load(row: VersionRow) -> bytes:
        check_size(row.size)
        with records.data.open(Item(metadata_of(row))) as file:
            return read_at_most(file, limits.CONTENT_BYTES)

    wanted = Expression(predicate, "the predicate")
    shown = Expression(select, "the selection") if select is not None else None
    return judge(records.catalog.select(push_down(wanted)), wanted, shown, limit, load)


def judge(
    rows: Iterable[VersionRow], wanted: Expression, shown: Expression | None, limit: int | None, load: Load
) -> QueryResult:
    """Evaluate the predicate for each row, and the selection for the rows within the limit."""
    results: list[Any] = []
    failed: list[str] = []
    total = costly = 0
    for row in rows:
        content: Mapping[str, Any] = {}
        try:
            if wanted.content:
                content = content_of(load(row))
            if not _truth(wanted.evaluate(row, content)):
                continue
            total += 1
            if limit is not None and len(results) >= limit:
                continue
            if shown is not None and shown.content and not content:
                content = content_of(load(row))
            results.append(_listed(row) if shown is None else as_json(shown.evaluate(row, content), shown.order))
        except (*FAILURES, RecordError) as error:
            failed.append(f"{row.name} of {row.model}, version {row.version}: {_reason(error)}")
            costly += isinstance(error, TooCostly)
            if costly >= _MAX_COSTLY:
                raise QueryInvalid(
                    f"the expression is too costly for {costly} versions, the last of them {failed[-1]}",
                    hint="ask first for what is cheap to tell, as name == ... && ...",
                ) from None
    return QueryResult(results, total, failed)


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"the predicate comes to {json.dumps(as_json(value))}, which is neither true nor false")
    return value


def _listed(row: VersionRow) -> dict[str, Any]:
    """Return a version as a list shows it."""
    return {name: dict(row.tags) if name == "tags" else getattr(row, name) for name in _LISTED}


def _reason(error: Exception) -> str:
    """Return the reason of a failed evaluation in one line."""
    if isinstance(error, KeyError):
        return f"there is no {error.args[0]}"
    return " ".join(str(error).partition(". ")[0].split())
