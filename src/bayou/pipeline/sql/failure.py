"""What goes wrong with a query, said in one line: what SQL says of it, or what a worker ran into."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bayou.core.errors import QueryInvalid, SparkFailed
from bayou.pipeline.sql.tables import VIEWS

if TYPE_CHECKING:
    from pyspark.errors import PySparkException

_CLASS = re.compile(r"^\[[A-Z0-9_.]+\]\s*")
_STATE = re.compile(r"\s*SQLSTATE: \w{5}\s*$")
_OURS = re.compile(r"^bayou\.errors\.\w+: (.+)$", re.MULTILINE)
_LONGEST = 400

_THERE_ARE = f"there are the views {', '.join(VIEWS)}"

ColumnsOf = Callable[[], Mapping[str, Sequence[str]]]
"""Says which columns the views have, if somebody asks."""


@contextmanager
def query_errors(columns_of: ColumnsOf, log: Path | None) -> Iterator[None]:
    """Turn what Spark says of a query, or what a worker of ours raised, into one line; let all else through."""
    from pyspark.errors import AnalysisException, PySparkException  # noqa: PLC0415  (also what cannot be parsed)

    try:
        yield
    except AnalysisException as error:
        raise _invalid(error, columns_of) from error
    except PySparkException as error:
        said = _OURS.search(str(error)) or _OURS.search(_traces(error))
        if said is not None:
            raise SparkFailed(said[1][:_LONGEST], hint=_hint(said[1], log)) from error
        if _is_of_the_query(error.getCondition() or ""):
            raise SparkFailed(f"the query failed: {sentence(str(error))}", hint=_see(log)) from error
        raise


def sentence(text: str) -> str:
    """Return the first sentence of a message, without its class, its state, the query itself and a stack of Java."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "the query cannot be run")
    line = _STATE.sub("", _CLASS.sub("", line)).partition(". ")[0].rstrip(".")
    return (line[:1].lower() + line[1:])[:_LONGEST]


def _is_of_the_query(condition: str) -> bool:
    """Whether an error of a running job is about what was asked (a division by zero), and not about the engine."""
    return bool(condition) and not condition.startswith(("INTERNAL_ERROR", "UDF", "PYTHON", "FAILED_EXECUTE"))


def _invalid(error: PySparkException, columns_of: ColumnsOf) -> QueryInvalid:
    condition, told = error.getCondition() or "", error.getMessageParameters() or {}
    if condition.startswith("TABLE_OR_VIEW_NOT_FOUND"):
        return QueryInvalid(f"there is no view {told.get('relationName', '')}".rstrip(), hint=_THERE_ARE)
    if condition.startswith("UNRESOLVED_COLUMN"):
        columns = "; ".join(f"{view}: {', '.join(names)}" for view, names in columns_of().items())
        return QueryInvalid(f"there is no column {told.get('objectName', '')}".rstrip(), hint=columns or _THERE_ARE)
    return QueryInvalid(sentence(str(error)))


def silence() -> None:
    """Keep what Spark's client logs of every failed query off the terminal: it is said in one line."""
    from pyspark.logger import PySparkLogger  # noqa: PLC0415

    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True


def _traces(error: Exception) -> str:
    """Return what the server knows besides the message: a worker's own words stand at the end of it."""
    trace = getattr(error, "getStackTrace", None)
    return str(trace() or "") if trace is not None else ""


def _hint(said: str, log: Path | None) -> str:
    if "is missing" in said or "is not what was saved" in said or "bytes that were pushed" in said:
        return "bayou datastore verify shows what is damaged"
    return _see(log)


def _see(log: Path | None) -> str:
    return "the log of the Spark server says more" if log is None else f"its log says more: {log}"
