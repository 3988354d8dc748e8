"""Versioned, catalogued data for automation, shared by a team through a bucket.

    import bayou

    repo = bayou.open("laptop")                    # bayou.init(path) creates a repo
    item = repo.data.get("web1", "usage")          # the latest version, with its content
    with repo.session("web1") as session:          # lease, pull, your block, one push
        session.data.save("usage", {"disk": 51}, tags={"env": "prod"})
    repo.close()                                   # or: with bayou.open("laptop") as repo

`open` and `init` return a `Repo`; `help(bayou.Repo)` lists what it has, and `docs/api.md` shows it all. Every error is
a `bayou.errors.BayouError` with a stable `code` and, where a person can act, a `hint`.

Importing this package loads nothing else; each name loads its module when a program first uses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bayou import errors
    from bayou.session.open import Repo, init, open  # noqa: A004

    __version__: str

__all__ = ["Repo", "__version__", "errors", "init", "open"]


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415  (20 ms)

        try:
            return version("bayou")
        except PackageNotFoundError:
            return "0+source"  # run from a source tree that is not installed
    if name == "errors":
        from importlib import import_module  # noqa: PLC0415

        return import_module("bayou.errors")
    if name in __all__:
        from bayou.session import open as opened  # noqa: PLC0415

        return getattr(opened, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
