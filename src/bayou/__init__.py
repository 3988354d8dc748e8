"""Versioned, catalogued, shared data for automation.

`bayou.open(path)` gives an `OpenRepo`. Importing this package loads nothing else: that waits until a name is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bayou.repo import Repo
    from bayou.session.open import OpenRepo, open  # noqa: A004

__all__ = ["OpenRepo", "Repo", "open"]


def __getattr__(name: str) -> object:
    if name == "Repo":
        from bayou.repo import Repo  # noqa: PLC0415

        return Repo
    if name in __all__:
        from bayou.session import open as opened  # noqa: PLC0415

        return getattr(opened, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
