"""How a listing is divided (`engine.parts`)."""

from __future__ import annotations

from bayou.engine.parts import MOST_LEVELS, Part, divide, groups, objects

__all__ = ["MOST_LEVELS", "Part", "divide", "groups", "objects"]
