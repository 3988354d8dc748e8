"""The protocol of a job over a whole store, and of what runs one.

A job is a class whose fields pickle: plain values, records, and stores as `StoreHandle`s. The *driver* is the process
that the user started; a *worker* is a thread of it, or a Python process of Spark, maybe on another machine:

    driver   job.stage, job.needs           what to show, and what the workers must be able to reach
    driver   job.parts(wanted)              once, before anything runs
    worker   job.run(part)                  for each part; maybe twice, maybe at the same time
    driver   job.fold(rows)                 once; takes rows while the workers still make others

Rows cross as Arrow batches with a column for each field of `job.row`. Joins of many tables, windows and SQL belong into
DataFrames instead: Spark's planner exists for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from msgspec import Struct, field

from bayou.core.progress import Stage

if TYPE_CHECKING:
    from bayou.engine.handle import StoreHandle

Part = TypeVar("Part")
Row = TypeVar("Row", bound="tuple[Any, ...]")
Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


class Needs(Struct, frozen=True):
    """Stores and directories that a job's workers must reach; an executor checks that before the first part runs."""

    stores: Sequence[StoreHandle] = ()
    directories: Sequence[tuple[Path, str]] = field(default_factory=tuple)
    """Directories that every worker must see under the same path, each with what it is, as `the tree`."""
    written: Sequence[StoreHandle] = ()
    """Those of the stores that workers write to; a directory that is one must be writable for them."""


class Job(Protocol[Part, Row, Result_co]):
    """One pass over a whole store, in parts that do not depend on each other."""

    @property
    def stage(self) -> Stage:
        """Return what a progress bar shows while the job runs. Driver."""

    @property
    def needs(self) -> Needs:
        """Return what the workers must be able to reach. Driver, before `parts`."""

    @property
    def row(self) -> type[Row]:
        """Return the NamedTuple class of rows. Driver and worker.

        Its fields are annotated `str`, `int`, `float`, `bool` or `bytes`, each with or without `| None`; an `int` must
        fit in 64 bits. A `str` may hold bytes that are no UTF-8, as surrogates: keys of stores do.
        """

    def parts(self, wanted: int) -> Sequence[Part]:
        """Divide the work into about `wanted` parts, or as many as there are. Driver, once.

        Together the parts are the whole work, and no two overlap. Balance them: the largest part decides how long the
        job takes. A part must pickle.
        """

    def run(self, part: Part) -> Iterator[Row]:
        """Do one part and yield its rows. Worker.

        Keep no state between parts, and read none of this machine but what `needs` names. Spark repeats a task that was
        lost and may run one beside a copy of itself: a second run must do no harm, and only one run's rows are folded.
        Memory must not grow with the part: stream. An error ends the whole job.
        """

    def fold(self, rows: Iterable[Row]) -> Result_co:
        """Make the result of all rows. Driver, once, while parts still run.

        Rows of one part come in the order in which `run` yielded them; those of different parts in any order, mixed.
        Consume every row: a part whose rows are not consumed waits. Memory must not grow with the number of rows:
        count, keep the first of each kind, spool the rest to a file.
        """


class Executor(Protocol):
    """Runs jobs, one at a time."""

    @property
    def engine(self) -> str:
        """`local` or `spark`: for reports."""

    @property
    def slots(self) -> int:
        """How many parts run at the same time."""

    def run(self, job: Job[Part, Row, Result]) -> Result:
        """Run a job to its end and return what `fold` made of it.

        The first error of a part or of `fold` stops the other parts and is raised, as is a deadline that passed or was
        cancelled (V12). When this returns or raises, no part runs any more, except a task on a server that was lost.
        """
