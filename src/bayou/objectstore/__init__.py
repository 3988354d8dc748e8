"""One object store, scoped to a prefix and a namespace.

`open_store(url)` gives a `Store`; everything else here is how it does its work. A name is loaded when it is first asked
for: who only checks a URL, or names a key, needs no client.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bayou.objectstore.open import open_store
    from bayou.objectstore.store import Store
    from bayou.objectstore.transport import Condition, Create, Fetched, Match, ObjectMeta, Stored

__all__ = ["Condition", "Create", "Fetched", "Match", "ObjectMeta", "Store", "Stored", "open_store"]

_HOMES = {"open_store": "open", "Store": "store"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"bayou.objectstore.{_HOMES.get(name, 'transport')}"), name)
