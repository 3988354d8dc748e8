"""One store client for each process of Spark, however many of its tasks come by."""

from __future__ import annotations

import pickle
from functools import lru_cache

from bayou.store.recipe import Recipe
from bayou.store.store import Store


def store_of(recipe: Recipe, seconds: float | None = None) -> Store:
    """Return this process's client of a store; with `seconds`, each call may take that long, and not its usual time."""
    store = _opened(pickle.dumps(recipe))
    return store if seconds is None else store.within_seconds(seconds)


@lru_cache(maxsize=8)
def _opened(recipe: bytes) -> Store:
    found: Recipe = pickle.loads(recipe)
    return found.open()
