"""Judging more versions than one process should look at, on Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

from bayou.core.deadline import Deadline
from bayou.records.retention.court import Court, Ruling, ruling_of

if TYPE_CHECKING:
    from bayou.pipeline.session import Session
    from bayou.records.records import Records

_ATTEMPTS = 3
T = TypeVar("T")


def judge_on_spark(
    records: Records, court: Court, take: Callable[[Iterator[Ruling]], T], warn: Callable[[str], None]
) -> T | None:
    """Return what `take` makes of the rulings on every item, which come in order; None if that has to be done here.

    Workers read the catalog one after the other, and an item's rows may be in several of their parts. So what was
    judged counts only if nobody has written to the catalog meanwhile: of half its rows, an item is judged wrongly (V5).
    """
    catalog = records.catalog

    def job(spark: Session, deadline: Deadline) -> T | None:
        from bayou.pipeline.retention import retention  # noqa: PLC0415

        for _ in range(_ATTEMPTS):
            before = catalog.mark()
            if before is None:
                return None
            found = retention(spark, catalog.path, court, progress=records.engine.progress, deadline=deadline)
            with closing(found):
                taken = take(map(ruling_of, found))
            if catalog.mark() == before:
                return taken
        return None

    return records.engine.run(records.repo, "what may go was found", job, warn)
