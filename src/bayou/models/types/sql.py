"""`spark/sql`: the model type whose method runs a query in Spark SQL, and saves its rows as Parquet.

This module imports nothing of Spark. It defines `SqlRunner`, the function that runs a query; `bayou.spark.sql.query`
has the implementation, and the write session provides it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from bayou.core.deadline import Deadline
from bayou.core.errors import BayouError, DeadlinePassed, JavaMissing, JavaTooOld, MethodFailed, QueryInvalid
from bayou.data.logs import LOG
from bayou.models.method_context import MethodContext
from bayou.models.types.schema import Method, OutputSpec

if TYPE_CHECKING:
    from bayou.repo import Repo

_VALUE = ["string", "number", "boolean", "null"]
_ARGUMENTS = {
    "type": "object",
    "properties": {
        "sql": {
            "type": "string",
            "minLength": 1,
            "description": "What to ask of the views data, versions, outputs, runs and entries",
        },
        "parameters": {
            "type": "object",
            "additionalProperties": {"type": [*_VALUE, "array"], "items": {"type": _VALUE}},
            "propertyNames": {"pattern": "^[A-Za-z_][A-Za-z0-9_]*$"},
            "description": "Values for :name in it; a list is an array",
        },
        "timeout": {"type": "number", "exclusiveMinimum": 0, "description": "Seconds after which it is stopped"},
    },
    "required": ["sql"],
    "additionalProperties": False,
}
RESULT, SUMMARY = "result", "summary"
PARQUET = "application/vnd.apache.parquet"


class Column(Protocol):
    """A column of a result; its type is called as Spark calls it."""

    @property
    def name(self) -> str: ...

    @property
    def type(self) -> str: ...


class SqlResult(Protocol):
    """The Parquet file that a query wrote: its columns, how many rows it has, and its size in bytes."""

    @property
    def columns(self) -> Sequence[Column]: ...

    @property
    def rows(self) -> int: ...

    @property
    def size(self) -> int: ...


class SqlRunner(Protocol):
    """Runs queries for `SparkSql`."""

    def __call__(
        self, repo: Repo, text: str, parameters: Mapping[str, Any], target: Path, deadline: Deadline
    ) -> SqlResult:
        """Run a query over a repo's catalog, and write its rows to `target` as Parquet.

        Raise `QueryInvalid`, `JavaMissing` or `JavaTooOld` where the user can act, `DeadlinePassed` or `Cancelled` once
        the deadline says so; in both cases nothing keeps running on Spark.
        """


class SparkSql:
    """Runs a query over all records, and saves two items: `result`, its rows, and `summary`, what they are.

    If the query fails, only `log` stays: the query, and why it failed.
    """

    name = "spark/sql"
    description = "Ask all that is recorded, in Spark SQL"
    methods: Mapping[str, Method] = {
        "query": Method(
            "query",
            "Run a query on Spark, and keep its rows as Parquet",
            _ARGUMENTS,
            (
                OutputSpec(RESULT, PARQUET),
                OutputSpec(SUMMARY, "application/json"),
                OutputSpec(LOG, "text/plain", streaming=True),
            ),
        )
    }

    def run(self, method: str, arguments: Mapping[str, Any], work: MethodContext) -> None:
        begun = time.monotonic()
        sql: str = arguments["sql"]
        with work.log() as log:
            log.write(f"{sql.strip()}\n".encode(errors="backslashreplace"))
            try:
                saved = _save(sql, arguments.get("parameters", {}), arguments.get("timeout"), work)
            except BayouError as error:
                log.write(f"failed after {time.monotonic() - begun:.1f} s: {error.message}\n".encode())
                raise
            log.write(f"{saved.rows:,} rows, {saved.size:,} bytes, {time.monotonic() - begun:.1f} s\n".encode())
        summary = {
            "rows": saved.rows,
            "columns": [{"name": column.name, "type": column.type} for column in saved.columns],
            "bytes": saved.size,
            "sql": work.redact(sql),
            "duration_s": round(time.monotonic() - begun, 3),
        }
        work.save(SUMMARY, json.dumps(summary, ensure_ascii=False).encode(errors="backslashreplace"))


def _save(sql: str, parameters: Mapping[str, Any], timeout: float | None, work: MethodContext) -> SqlResult:
    """Save the rows of a query; an error that the user can act on becomes a `MethodFailed` with its hint."""
    deadline = Deadline.after(float("inf") if timeout is None else timeout, work.cancelled)
    try:
        return work.save_query(RESULT, sql, parameters, deadline)
    except (JavaMissing, JavaTooOld, QueryInvalid) as error:
        raise MethodFailed(f"{error.message}; {error.hint}" if error.hint else error.message) from error
    except DeadlinePassed as error:
        if timeout is None or time.monotonic() < deadline.at:
            raise  # Spark did not start in time
        raise MethodFailed(f"the query took longer than {timeout:g} s, and was stopped") from error
