"""Jobs on threads of this process: everything once, streaming, the first error and the deadline end it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pytest
from msgspec import Struct

from bayou.core.deadline import Deadline
from bayou.core.errors import Cancelled, DeadlinePassed, StoreError
from bayou.core.progress import Stage
from bayou.engine.job import Needs
from bayou.engine.local import LocalExecutor


class Number(NamedTuple):
    part: int
    value: int


class Count(Struct, frozen=True):
    """Yields so many numbers for each part."""

    parts_: int
    rows: int = 10
    fails: int = -1
    waits: float = 0.0
    stage = Stage("counting", 100)
    needs = Needs()
    row = Number

    def parts(self, wanted: int) -> Sequence[int]:
        return range(self.parts_)

    def run(self, part: int) -> Iterator[Number]:
        for value in range(self.rows):
            if self.waits:
                time.sleep(self.waits)
            yield Number(part, value)
        if part == self.fails:
            raise StoreError("gone")

    def fold(self, rows: Iterable[Number]) -> list[Number]:
        return list(rows)


class Shown:
    def __init__(self) -> None:
        self.told: list[object] = []

    def begin(self, what, files, bytes) -> None:  # noqa: A002
        self.told.append((what, files, bytes))

    def advance(self, files=0, bytes=0) -> None:  # noqa: A002
        self.told.append(files)

    def skip(self, bytes) -> None:  # noqa: A002
        raise AssertionError("a job skips no bytes")

    def share(self, done) -> None:
        self.told.append(done)

    def end(self) -> None:
        self.told.append("end")


def threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith("bayou-job")]


@pytest.mark.parametrize("at_once", [1, 4])
@pytest.mark.parametrize("parts", [0, 1, 3, 40])
def test_every_row_of_every_part_comes_once_and_in_its_order(parts, at_once):
    found = LocalExecutor(threads=at_once).run(Count(parts, rows=1201))

    assert sorted(found) == [Number(part, value) for part in range(parts) for value in range(1201)]
    for part in range(parts):
        assert [row.value for row in found if row.part == part] == list(range(1201))
    assert threads() == []


def test_the_first_error_is_raised_and_stops_the_others():
    begun: list[int] = []

    class Watched(Count, frozen=True):
        def run(self, part):
            begun.append(part)
            yield from super().run(part)

    with pytest.raises(StoreError, match="gone"):
        LocalExecutor(threads=2).run(Watched(1000, rows=5, fails=1, waits=0.01))

    assert len(begun) < 100
    assert threads() == []


def test_an_error_stops_the_others_after_their_current_row():
    class Uneven(Count, frozen=True):
        def run(self, part: int) -> Iterator[Number]:
            if part == self.fails:
                raise StoreError("gone")
            yield from super().run(part)

    begin = time.monotonic()
    with pytest.raises(StoreError):
        LocalExecutor(threads=2).run(Uneven(2, rows=400, fails=1, waits=0.02))

    assert time.monotonic() - begin < 4  # all rows of a part, which come in one batch, take 8 s


def test_an_error_of_the_fold_stops_the_parts():
    class Fails(Count, frozen=True):
        def fold(self, rows):
            next(iter(rows))
            raise ValueError("full")

    with pytest.raises(ValueError, match="full"):
        LocalExecutor(threads=2).run(Fails(1000, rows=5, waits=0.01))
    assert threads() == []


def test_v12_a_deadline_ends_a_job():
    with pytest.raises(DeadlinePassed):
        LocalExecutor(deadline=Deadline.after(0.2)).run(Count(8, rows=1000, waits=0.05))
    assert threads() == []


def test_v12_a_job_can_be_cancelled():
    deadline = Deadline.after(60)
    threading.Timer(0.2, deadline.cancel).start()

    with pytest.raises(Cancelled):
        LocalExecutor(deadline=deadline).run(Count(8, rows=1000, waits=0.05))


def test_a_slow_fold_holds_the_parts_back():
    made: list[int] = []

    class Slow(Count, frozen=True):
        def run(self, part):
            for row in super().run(part):
                made.append(row.value)
                yield row

        def fold(self, rows):
            next(iter(rows))
            time.sleep(0.5)
            return len(made)

    assert LocalExecutor(threads=1).run(Slow(1, rows=100_000)) < 20_000


def test_progress_is_the_share_of_parts_that_are_done():
    shown = Shown()

    LocalExecutor(progress=shown, threads=1).run(Count(4))

    assert shown.told == [("counting", 100, None), 25, 25, 25, 25, "end"]


class Here(Count, frozen=True):
    """Tells which thread runs its parts."""

    def run(self, part: int) -> Iterator[Number]:
        yield Number(part, threading.get_ident())


def test_one_thread_is_the_callers_and_heeds_the_deadline_too():
    assert {row.value for row in LocalExecutor(threads=1).run(Here(3))} == {threading.get_ident()}
    with pytest.raises(DeadlinePassed):
        LocalExecutor(deadline=Deadline.after(0.05), threads=1).run(Count(100, rows=10, waits=0.01))
