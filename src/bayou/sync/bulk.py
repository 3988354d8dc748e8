"""Where a sync hands over to Spark what is too much for one process. Nothing of Spark is loaded before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bayou.config import DatastoreConfig, SparkConfig
from bayou.deadline import Deadline
from bayou.errors import SparkError
from bayou.index.discovery import Discovered
from bayou.index.staging import Staging
from bayou.store.recipe import Recipe
from bayou.store.store import Store


@dataclass(frozen=True, slots=True)
class Bulk:
    """How one sync uses Spark: for more than `limit` objects. What it could not do there is told to `warn`."""

    datastore: DatastoreConfig
    spark: SparkConfig
    limit: int
    concurrency: int
    deadline: Deadline
    warn: Callable[[str], None]

    def discover(self, store: Store, sink: Staging, *, carry: bool) -> Discovered | None:
        """Discover a store on Spark, as `pipeline.discover` does; None if that cannot be: then do it here."""
        place = self.datastore
        if place.url is None or place.url.startswith("memory:"):
            return None
        from bayou.pipeline.discover import discover  # noqa: PLC0415
        from bayou.pipeline.session import spark_session  # noqa: PLC0415

        recipe = Recipe.of(place.url, place.namespace, place.options, self.concurrency)
        try:
            with spark_session(self.spark, deadline=self.deadline) as spark:
                found = discover(spark, store, recipe, sink, carry=carry, deadline=self.deadline)
        except SparkError as error:
            self.warn(f"the store was listed by this process alone, since Spark could not: {error.message}")
            return None
        if found.refusals > len(found.refused):
            self.warn(f"{found.refusals} keys were refused; the first {len(found.refused)} are named")
        return found
