"""Version directories are units: they move, conflict and are deleted whole.

`data/<type…>/<model>/<name>/<n>/<file…>`: what lies below one `<n>` belongs together. Where any path of a unit is in
conflict the whole unit is, so that a version is never torn between two writers.
"""

from __future__ import annotations

from collections.abc import Iterator

_SHORTEST = 5
"""`data`, a type, a model, a name, a number, and then at least a file."""


def unit_of(path: str) -> str | None:
    """Return the version directory that a path lies in, or None."""
    return next(units_around(path), None)


def units_around(path: str) -> Iterator[str]:
    """Yield the directories around a path that can be versions, the innermost first: it is in that one's unit."""
    if not path.startswith("data/"):
        return
    segments = path.split("/")
    for at in range(len(segments) - 2, _SHORTEST - 2, -1):
        if segments[at].isascii() and segments[at].isdigit() and not segments[at].startswith("0"):
            yield "/".join(segments[: at + 1])
