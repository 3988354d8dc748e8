"""Write sessions (lease, pull, block, one push, release), and `Repo`, an open repo for programs.

This package and `cli` are the composition roots of the program: they install Spark for the layers below, which never
import it themselves.
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
