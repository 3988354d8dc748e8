"""The result of a query as one file of Parquet, for whoever keeps it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from bayou.core.deadline import Deadline
from bayou.pipeline.sql.query import Column, open_query
from bayou.repo import Repo


class Saved(Struct, frozen=True):
    """What was written: its columns, and how much of it there is."""

    columns: Sequence[Column]
    rows: int
    size: int


def save_result(repo: Repo, text: str, parameters: Mapping[str, Any], target: Path, deadline: Deadline) -> Saved:
    """Ask a question of what a repo's catalog knows, and let tasks write the answer to `target`.

    Raises what `open_query` does; once the deadline passes, or is cancelled, also that, and nothing goes on on Spark.
    """
    with open_query(repo, text, parameters, deadline=deadline) as query:
        rows = query.write_parquet(target, directory=False)
        deadline.remaining()  # the parts are joined here, where nothing watches the time
    return Saved(query.columns, rows, target.stat().st_size)
