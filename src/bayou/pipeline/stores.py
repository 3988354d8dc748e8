"""One store client for each process of Spark, however many of its tasks come by."""

from __future__ import annotations

import pickle
from functools import lru_cache

from bayou.store.recipe import Recipe
from bayou.store.store import Store


def store_of(recipe: Recipe) -> Store:
    """Return this process's client of a store."""
    return _opened(pickle.dumps(recipe))


@lru_cache(maxsize=8)
def _opened(recipe: bytes) -> Store:
    found: Recipe = pickle.loads(recipe)
    return found.open()
