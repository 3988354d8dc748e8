"""One write session: lease, pull, body, exactly one push, release; and a repo that is open for programs.

Programs enter here, as users do by `cli`; so both make Spark known to what is below them, which never imports it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bayou.engine import select
from bayou.session.open import Models, Repo
from bayou.session.write_session import Session, write_session

if TYPE_CHECKING:
    from bayou.spark.executor import SparkEngines

__all__ = ["Models", "Repo", "Session", "write_session"]


def _spark() -> SparkEngines:
    from bayou.spark.executor import SparkEngines  # noqa: PLC0415

    return SparkEngines()


select.install(_spark)
