"""Jobs end by a deadline (V12): Spark knows none."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from bayou.core.deadline import Deadline
from bayou.core.errors import Cancelled, DeadlinePassed, SparkError
from bayou.pipeline.failure import spark_errors

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

_LOOK_S = 0.2


@contextmanager
def ended_by(spark: SparkSession, deadline: Deadline | None) -> Iterator[None]:
    """Interrupt what runs in a session once a deadline passes or is cancelled, and raise that in place of its error."""
    if deadline is None:
        yield
        return
    done = threading.Event()
    watch = threading.Thread(target=_interrupt, args=(spark, deadline, done), name="bayou-spark-deadline", daemon=True)
    watch.start()
    try:
        yield
    except Exception:
        deadline.remaining()
        raise
    finally:
        done.set()


@contextmanager
def cancelled_with(spark: SparkSession) -> Iterator[None]:
    """Cancel what runs in a session when whoever waits for it gives up: by Ctrl-C, or for whatever reason."""
    try:
        yield
    except BaseException:
        interrupt_all(spark)
        raise


def interrupt_all(spark: SparkSession) -> None:
    """Interrupt what runs in a session."""
    with suppress(SparkError), spark_errors(None):  # a server that is gone runs nothing either
        spark.interruptAll()


def seconds_left(deadline: Deadline | None) -> float | None:
    """Return how long a call of a task may take: as long as one of this process."""
    return None if deadline is None else deadline.remaining()


def _interrupt(spark: SparkSession, deadline: Deadline, done: threading.Event) -> None:
    """Interrupt again and again: one job may end between two looks, and the next begin."""
    while not done.wait(_LOOK_S):
        try:
            deadline.remaining()
        except (DeadlinePassed, Cancelled):
            interrupt_all(spark)
