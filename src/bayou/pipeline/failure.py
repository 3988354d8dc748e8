"""What goes wrong with Spark, said in our words: one line, and where its log is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bayou.core import errors
from bayou.core.errors import (
    BayouError,
    DeadlinePassed,
    DeleteFailed,
    IndexDamaged,
    SparkError,
    SparkFailed,
    SparkLost,
    StoreError,
)

_LONGEST = 300
_GONE = ("UNAVAILABLE", "UNAUTHENTICATED")
"""What a client is told when its server has ended, or another listens in its place."""

_ENDED = re.compile(
    r'<_\w+ of RPC that terminated with:\s+status = StatusCode\.(\w+)\s+details = "(.*?)"$', re.M | re.S
)
"""What gRPC says of a call that Spark itself has not answered."""

_MET = re.compile(r"^bayou\.errors\.(\w+): (.+)$", re.MULTILINE)
"""The last line of what a worker's Python says of an error of ours."""


@contextmanager
def spark_errors(log: Path | None) -> Iterator[None]:
    """Turn errors of Spark and of the way to it into `SparkError`s that name the log; let all others through.

    What a task met in the store is raised as such: it is no failure of Spark.
    """
    import grpc  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        yield
    except (grpc.RpcError, PySparkException) as error:
        if _status(error) in _GONE:
            raise lost(log) from error
        raise met(error, log) or SparkFailed(f"the job failed on Spark: {_one_line(error)}", hint=_see(log)) from error


def lost(log: Path | None) -> SparkError:
    hint = "the same command again starts another"
    return SparkLost("the Spark server went away", hint=hint if log is None else f"{hint}; its log: {log}")


def met(error: BaseException, log: Path | None) -> BayouError | None:
    """Return what a task met in the store, which this process would have met as well; None if it failed otherwise."""
    trace = getattr(error, "getStackTrace", None)
    said = _MET.findall(f"{error}\n{trace() if trace is not None else ''}")
    if not said:
        return None
    name, message = said[-1]  # causes come before what they led to
    kind = getattr(errors, name, None)
    if not isinstance(kind, type) or not issubclass(kind, StoreError | IndexDamaged | DeadlinePassed):
        return None
    if kind is DeleteFailed:
        return _not_deleted(message, log)
    return kind(message, hint=_see(log))


def _not_deleted(message: str, log: Path | None) -> DeleteFailed:
    """Return the error of a task that told how many objects it could not delete, and only one of them."""
    key, _, cause = message.removeprefix("could not delete ").partition(": ")
    return DeleteFailed({key: StoreError(cause, hint=_see(log))})


def _status(error: BaseException | None) -> str | None:
    """Return the name of the status with which the server, or the way to it, ended a call.

    Spark's errors know it. Their context may tell another story: that of what the caller was handling.
    """
    import grpc  # noqa: PLC0415
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException  # noqa: PLC0415

    while error is not None:
        if isinstance(error, grpc.RpcError):
            return str(error.code().name)
        if isinstance(error, SparkConnectGrpcException):
            return str(error.getGrpcStatusCode().name)
        error = error.__cause__ or error.__context__
    return None


def _see(log: Path | None) -> str:
    return "the log of the Spark server says more" if log is None else f"its log says more: {log}"


def _one_line(error: BaseException) -> str:
    text = str(error)
    if ended := _ENDED.match(text):
        text = ": ".join(ended.groups())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:_LONGEST]
