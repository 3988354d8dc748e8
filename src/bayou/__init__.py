"""Versioned, catalogued, shared data for automation.

`bayou.open(path)` gives a `Repo`. Importing this package loads nothing else: that waits until a name is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bayou.repo import Repo
    from bayou.repo import open_repo as open  # noqa: A004

__all__ = ["Repo", "open"]


def __getattr__(name: str) -> object:
    if name in __all__:
        from bayou import repo  # noqa: PLC0415

        return repo.Repo if name == "Repo" else repo.open_repo
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
