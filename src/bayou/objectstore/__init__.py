"""An object store that is scoped to one prefix and one namespace.

`open_store(url)` returns a `Store`; the other modules implement it. The package imports a name when a caller first
uses it, so code that only parses a URL or builds a key does not pay for importing a client.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bayou.objectstore.open import open_store
    from bayou.objectstore.store import Store
    from bayou.objectstore.transport import Condition, Create, GetResult, Match, ObjectMeta, PutResult

__all__ = ["Condition", "Create", "GetResult", "Match", "ObjectMeta", "PutResult", "Store", "open_store"]

_MODULES = {"open_store": "open", "Store": "store"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"bayou.objectstore.{_MODULES.get(name, 'transport')}"), name)
