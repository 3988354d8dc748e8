"""One object store, scoped to a prefix and a namespace.

`open_store(url)` gives a `Store`; everything else here is how it does its work.
"""

from bayou.store.open import open_store
from bayou.store.store import Store
from bayou.store.transport import Condition, Create, Fetched, Match, ObjectMeta, Stored

__all__ = ["Condition", "Create", "Fetched", "Match", "ObjectMeta", "Store", "Stored", "open_store"]
