"""Names in messages: the nearest to a wrong one, and the first few of many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like a wrong one, or None if none is like it."""
    import difflib  # noqa: PLC0415  (only where a name is wrong)

    return next(iter(difflib.get_close_matches(name, list(known), 1)), None)


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return a hint that asks for the nearest known name; `otherwise` is the hint where none is near."""
    near = nearest(name, known)
    return otherwise if near is None else f"did you mean {near}?"


def first_names(names: Sequence[str], most: int) -> str:
    """Return the first names as a list, and how many more there are: `a, b and 3 more`."""
    listed = ", ".join(names[:most])
    return listed if len(names) <= most else f"{listed} and {len(names) - most} more"
