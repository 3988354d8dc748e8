"""`spark/sql`: a question in Spark SQL."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from bayou.core.deadline import Deadline
from bayou.core.errors import DeadlinePassed, JavaMissing, JavaTooOld, MethodFailed, QueryInvalid
from bayou.engine import select
from bayou.models.method_context import MethodContext
from bayou.models.types.schema import Method, OutputSpec
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
    """A column of a result."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...


class Saved(Protocol):
    """What a query has written: its columns, its rows, and its size in bytes."""

    @property
    def columns(self) -> Sequence[Column]: ...
    @property
    def rows(self) -> int: ...
    @property
    def size(self) -> int: ...


@runtime_checkable
class SqlEngine(Protocol):
    """What `engine.select` has been given, as this type needs it: an engine that answers queries."""

    def save_result(
        self, repo: Repo, text: str, parameters: Mapping[str, Any], target: Path, deadline: Deadline
    ) -> Saved:
        """Ask a question of what a repo's catalog knows, and write the answer to `target` as Parquet."""


class SparkSql:
    """Asks a question of all that is recorded by now, and keeps the answer: its rows, and what there is to say of them.

    Nothing of it stays if the query fails.
    """

    name = "spark/sql"
    description = "Ask all that is recorded, in Spark SQL"
    methods: Mapping[str, Method] = {
        "query": Method(
            "query",
            "Run a query on Spark, and keep its rows as Parquet",
            _ARGUMENTS,
            (OutputSpec(RESULT, PARQUET), OutputSpec(SUMMARY, "application/json")),
        )
    }

    def run(self, method: str, arguments: Mapping[str, Any], work: MethodContext) -> None:
        begun = time.monotonic()
        sql: str = arguments["sql"]
        saved = _save(sql, arguments.get("parameters", {}), arguments.get("timeout"), work)
        summary = {
            "rows": saved.rows,
            "columns": [{"name": column.name, "type": column.type} for column in saved.columns],
            "bytes": saved.size,
            "sql": work.redact(sql),
            "duration_s": round(time.monotonic() - begun, 3),
        }
        work.save(SUMMARY, json.dumps(summary, ensure_ascii=False).encode(errors="backslashreplace"))


def _save(sql: str, parameters: Mapping[str, Any], timeout: float | None, work: MethodContext) -> Saved:
    """Let Spark write the rows of a query; say what is wrong with it together with what to do about that."""
    engine = select.spark_engine()
    assert isinstance(engine, SqlEngine)
    deadline = Deadline.after(float("inf") if timeout is None else timeout, work.cancelled)
    try:
        with work.room(RESULT) as file:
            return engine.save_result(work.current(), sql, parameters, file, deadline)
    except (JavaMissing, JavaTooOld, QueryInvalid) as error:
        raise MethodFailed(f"{error.message}; {error.hint}" if error.hint else error.message) from error
    except DeadlinePassed as error:
        if timeout is None or time.monotonic() < deadline.at:
            raise  # Spark did not start in time
        raise MethodFailed(f"the query took longer than {timeout:g} s, and was stopped") from error
