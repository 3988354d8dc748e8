"""One store client for each process of Spark, however many of its tasks come by (`engine.handle`)."""

from __future__ import annotations

from bayou.engine.handle import store_of

__all__ = ["store_of"]
