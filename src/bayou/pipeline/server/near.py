"""Whether Spark can be had at once."""

from __future__ import annotations

from bayou.config import SparkConfig
from bayou.core.file_lock import is_locked
from bayou.pipeline.server.place import Place, cache


def is_near(config: SparkConfig) -> bool:
    """Say whether some server runs already, here or elsewhere; a guess that takes no time, and starts nothing."""
    if config.remote is not None or config.master is not None:
        return True
    return any(is_locked(Place(lock.parent).alive) for lock in cache().glob("*/server.lock"))
