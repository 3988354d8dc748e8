"""`query`: evaluate a CEL predicate, and a CEL selection, over the versions in the catalog."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from bayou.core import limits
from bayou.core.documents import read_at_most
from bayou.core.errors import QueryInvalid, RecordError
from bayou.core.iterators import batched
from bayou.data.catalog.rows import VersionRow
from bayou.data.query.evaluator import FAILURES, TooCostly
from bayou.data.query.expression import Expression, as_json, check_size, content_of, is_readable
from bayou.data.query.pushdown import push_down

if TYPE_CHECKING:
    from bayou.data.records import Records

Load = Callable[[VersionRow], bytes]
Fetch = Callable[[Sequence[VersionRow]], None]
"""Fetches the content of many versions at once, before `Load` is called for each of them."""

FETCH_BATCH = 1000
"""Versions whose content is fetched at once: enough for requests that read many files, and few if the user stops."""

_MAX_COSTLY = 5
"""After so many versions for which an expression takes too long, the query fails: each costs seconds."""

_UNFIT = re.compile(r"Undefined variable or function: '(\w+)'")
"""What the evaluator says of a function that a value's type does not have."""

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

    unfetched: dict[str, str] = {}

    def fetch(rows: Sequence[VersionRow]) -> None:
        unfetched.clear()
        unfetched.update(records.data.fetch([row.raw_path for row in rows if is_readable(row)]))

    def load(row: VersionRow) -> bytes:
        check_size(row)
        if row.raw_path in unfetched:
            raise RecordError(unfetched[row.raw_path])
        with records.data.open(Item(metadata_of(row))) as file:
            return read_at_most(file, limits.CONTENT_BYTES)

    wanted = Expression(predicate, "the predicate")
    shown = Expression(select, "the selection") if select is not None else None
    return evaluate_rows(records.catalog.select(push_down(wanted)), wanted, shown, limit, load, fetch)


def evaluate_rows(
    rows: Iterable[VersionRow],
    wanted: Expression,
    shown: Expression | None,
    limit: int | None,
    load: Load,
    fetch: Fetch,
) -> QueryResult:
    """Evaluate the predicate for each row, and the selection for the rows within the limit."""
    failures = _Failures()
    results: list[Any] = []
    total = 0
    shows_content = shown is not None and bool(shown.content)
    matches = _matches(rows, wanted, load, fetch, failures)
    if shows_content and not wanted.content:
        matches = _fetched(matches, limit, fetch)
    for row, content in matches:
        total += 1
        if limit is not None and len(results) >= limit:
            continue
        with failures.of(row):
            if shown is None:
                results.append(_listed(row))
                continue
            values = content_of(load(row)) if shows_content and not content else content
            results.append(as_json(shown.evaluate(row, values), shown.order))
    return QueryResult(results, total, failures.sentences)


_Match = tuple[VersionRow, Mapping[str, Any]]
"""A version for which the predicate is true, and its content, if the predicate uses it."""


def _matches(
    rows: Iterable[VersionRow], wanted: Expression, load: Load, fetch: Fetch, failures: _Failures
) -> Iterator[_Match]:
    for some in batched(rows, FETCH_BATCH):
        if wanted.content:
            fetch(some)
        for row in some:
            found = False
            content: Mapping[str, Any] = {}
            with failures.of(row):
                content = content_of(load(row)) if wanted.content else {}
                found = _truth(wanted.evaluate(row, content))
            if found:
                yield row, content


def _fetched(matches: Iterable[_Match], limit: int | None, fetch: Fetch) -> Iterator[_Match]:
    """Fetch the content of matches whose content a selection is going to read, many at once."""
    left = limit
    for some in batched(matches, FETCH_BATCH):
        fetch([row for row, _ in (some if left is None else some[: max(left, 0)])])
        left = None if left is None else left - len(some)
        yield from some


class _Failures:
    """The evaluations that failed, each as a sentence; too many costly ones end the query."""

    def __init__(self) -> None:
        self.sentences: list[str] = []
        self._costly = 0

    @contextmanager
    def of(self, row: VersionRow) -> Iterator[None]:
        """Note what fails inside, and go on after it."""
        try:
            yield
        except (*FAILURES, RecordError) as error:
            self.sentences.append(f"{row.name} of {row.model}, version {row.version}: {_reason(error)}")
            self._costly += isinstance(error, TooCostly)
            if self._costly >= _MAX_COSTLY:
                raise QueryInvalid(
                    f"the expression is too costly for {self._costly} versions, the last of them {self.sentences[-1]}",
                    hint="ask first for what is cheap to tell, as name == ... && ...",
                ) from None


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"the predicate evaluates to {json.dumps(as_json(value))}, which is neither true nor false")
    return value


def _listed(row: VersionRow) -> dict[str, Any]:
    """Return a version as a list shows it."""
    return {name: dict(row.tags) if name == "tags" else getattr(row, name) for name in _LISTED}


def _reason(error: Exception) -> str:
    """Return the reason of a failed evaluation in one line."""
    if isinstance(error, KeyError):
        return f"there is no {error.args[0]}"
    unfit = _UNFIT.match(str(error))
    if unfit is not None:  # functions that there are not were refused when the expression was compiled
        return f"{unfit[1]} is not for such a value: null, content that is no text, or one of another type"
    return " ".join(str(error).partition(". ")[0].split())
