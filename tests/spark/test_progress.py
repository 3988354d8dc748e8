"""How far a job is, told in files and bytes: finished tasks, scaled by what was planned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.connect.session import SparkSession

from bayou.core.progress import NoProgress
from bayou.spark.progress import watching


@dataclass
class Stage:
    """What Spark tells of a stage."""

    stage_id: int
    num_completed_tasks: int
    num_tasks: int


@dataclass
class Session:
    """As much of a session as somebody who watches needs."""

    handlers: list[Callable[..., None]] = field(default_factory=list)

    def registerProgressHandler(self, handler: Callable[..., None]) -> None:  # noqa: N802
        self.handlers.append(handler)

    def removeProgressHandler(self, handler: Callable[..., None]) -> None:  # noqa: N802
        self.handlers.remove(handler)

    def tell(self, *stages: Stage) -> None:
        for handler in self.handlers:
            handler(stages=stages, inflight_tasks=1, operation_id="x", done=False)


class Recorded:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def begin(self, what: str, files: int | None, bytes: int | None) -> None:  # noqa: A002
        self.told.append(("begin", what, files, bytes))

    def advance(self, files: int = 0, bytes: int = 0) -> None:  # noqa: A002
        self.told.append(("advance", files, bytes))

    def skip(self, bytes: int) -> None:  # noqa: A002
        self.told.append(("skip", bytes))

    def share(self, done: float) -> None:
        self.told.append(("share", done))

    def end(self) -> None:
        self.told.append(("end",))

    @property
    def sums(self) -> tuple[int, int]:
        steps = [one for one in self.told if one[0] == "advance"]
        return sum(one[1] for one in steps), sum(one[2] for one in steps)


def test_finished_tasks_are_shares_of_what_was_planned():
    session, progress = Session(), Recorded()

    with watching(cast(SparkSession, session), progress, "verifying", files=100, bytes=1000):
        session.tell(Stage(1, 0, 4))
        session.tell(Stage(1, 1, 4))
        session.tell(Stage(1, 3, 4))

    assert progress.told == [
        ("begin", "verifying", 100, 1000),
        ("advance", 25, 250),
        ("advance", 50, 500),
        ("advance", 25, 250),
        ("end",),
    ]
    assert session.handlers == []


def test_where_nothing_was_planned_only_the_share_is_told():
    session, progress = Session(), Recorded()

    with watching(cast(SparkSession, session), progress, "listing"):
        session.tell(Stage(1, 1, 4))

    assert progress.told == [("begin", "listing", None, None), ("share", 0.25), ("share", 1.0), ("end",)]


def test_it_never_goes_back_when_spark_learns_of_more_tasks():
    session, progress = Session(), Recorded()

    with watching(cast(SparkSession, session), progress, "pushing", files=100):
        session.tell(Stage(1, 4, 4))
        session.tell(Stage(1, 4, 4), Stage(2, 0, 96))
        session.tell(Stage(2, 90, 96))

    assert all(one[1] >= 0 for one in progress.told if one[0] == "advance")
    assert progress.sums == (100, 0)


def test_a_job_that_fails_is_not_told_to_be_done():
    session, progress = Session(), Recorded()

    def fail() -> None:
        with watching(cast(SparkSession, session), progress, "pushing", files=10):
            session.tell(Stage(1, 1, 2))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()

    assert progress.sums == (5, 0)
    assert (progress.told[-1], session.handlers) == (("end",), [])


@pytest.mark.parametrize("progress", [None, NoProgress()])
def test_where_nobody_watches_spark_is_asked_for_nothing(progress):
    session = Session()

    with watching(cast(SparkSession, session), progress, "pushing", files=10):
        assert session.handlers == []


STAGES = st.lists(st.builds(Stage, st.integers(0, 3), st.integers(0, 9), st.integers(0, 9)), max_size=3)


@given(st.lists(STAGES, max_size=10), st.none() | st.integers(0, 10**6), st.integers(0, 10**12))
def test_whatever_spark_says_the_sum_is_what_was_planned(told, files, size):
    session, progress = Session(), Recorded()

    with watching(cast(SparkSession, session), progress, "pushing", files=files, bytes=size):
        for stages in told:
            session.tell(*stages)

    assert progress.sums == (files or 0, size)


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_spark_tells_of_its_tasks(spark, monkeypatch, capfd):
    monkeypatch.setenv("SPARK_CONNECT_PROGRESS_BAR_ENABLED", "0")
    progress = Recorded()

    def slowly(batches):
        import time

        time.sleep(1)
        yield from batches

    with watching(spark, progress, "hashing", files=8):
        assert len(spark.range(0, 8, 1, 8).mapInArrow(slowly, "id long").collect()) == 8

    assert progress.sums == (8, 0)
    assert len(progress.told) > 3  # some of it before the end
    assert capfd.readouterr().out == ""
