"""Spark, as `engine.select` is given it by the program's entry points. Nothing of Spark is loaded before it is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayou.config import SparkConfig
from bayou.deadline import Deadline
from bayou.engine.job import Needs
from bayou.engine.progress import Progress
from bayou.repo import Repo

if TYPE_CHECKING:
    from bayou.pipeline.executor import SparkExecutor
    from bayou.pipeline.sql.result import Saved


class SparkEngines:
    """Opens executors of Spark, and runs queries. An `engine.select.SparkEngine`, and a `model.types.sql.SqlEngine`."""

    def is_near(self, config: SparkConfig) -> bool:
        """Say whether some server runs already, here or elsewhere; a guess that takes no time, and starts nothing."""
        from bayou.pipeline.server.near import is_near  # noqa: PLC0415

        return is_near(config)

    def save_result(
        self, repo: Repo, text: str, parameters: Mapping[str, Any], target: Path, deadline: Deadline
    ) -> Saved:
        """Ask a question of what a repo's catalog knows, and let tasks write the answer to `target`."""
        from bayou.pipeline.sql.result import save_result  # noqa: PLC0415  (pyarrow, grpc, pyspark: two seconds)

        return save_result(repo, text, parameters, target, deadline)

    @contextmanager
    def open(
        self, config: SparkConfig, needs: Needs, *, deadline: Deadline, progress: Progress | None
    ) -> Iterator[SparkExecutor]:
        """Open a session, prove that its workers reach what a job needs, and close it at the end.

        Credentials never travel to another machine in clear text (V26): that is checked before anything is opened.
        """
        from bayou.pipeline.executor import SparkExecutor  # noqa: PLC0415
        from bayou.pipeline.session import require_private_channel, spark_session  # noqa: PLC0415
        from bayou.pipeline.shared import require_shared, require_store  # noqa: PLC0415

        for store in needs.stores:
            require_private_channel(config, store.recipe())
        with spark_session(config, deadline=deadline) as spark:
            for store in needs.stores:
                require_store(spark, store.url, writes=store in needs.written)
            for path, what in needs.directories:
                require_shared(spark, path, what)
            yield SparkExecutor(spark, deadline=deadline, progress=progress)
