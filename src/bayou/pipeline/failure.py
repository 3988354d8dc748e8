"""What goes wrong with Spark, said in our words: one line, and where its log is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bayou.errors import SparkError, SparkFailed, SparkLost

_LONGEST = 300
_GONE = ("UNAVAILABLE", "UNAUTHENTICATED")
"""What a client is told when its server has ended, or another listens in its place."""


@contextmanager
def spark_errors(log: Path | None) -> Iterator[None]:
    """Turn errors of Spark and of the way to it into `SparkError`s that name the log; let all others through."""
    import grpc  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        yield
    except (grpc.RpcError, PySparkException) as error:
        if _status(error) in _GONE:
            raise lost(log) from error
        raise SparkFailed(f"the job failed on Spark: {_one_line(error)}", hint=_see(log)) from error


def lost(log: Path | None) -> SparkError:
    hint = "the same command again starts another"
    return SparkLost("the Spark server went away", hint=hint if log is None else f"{hint}; its log: {log}")


def _status(error: BaseException | None) -> str | None:
    """Return the name of the status with which the server, or the way to it, ended a call."""
    import grpc  # noqa: PLC0415

    while error is not None:
        if isinstance(error, grpc.RpcError):
            return str(error.code().name)
        error = error.__cause__ or error.__context__
    return None


def _see(log: Path | None) -> str:
    return "the log of the Spark server says more" if log is None else f"its log says more: {log}"


def _one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:_LONGEST]
