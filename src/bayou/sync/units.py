"""Version directories are units: they move, conflict and are deleted whole.

`data/<type…>/<model>/<name>/<n>/<file…>`: what lies below one `<n>` belongs together. Where any path of a unit is in
conflict the whole unit is, so that a version is never torn between two writers.
"""

from __future__ import annotations

from collections.abc import Iterator

_SHORTEST = 5
"""`data`, a type, a model, a name, a number, and then at least a file."""


def unit_of(path: str) -> str | None:
    """Return the version directory that a path lies in, or None. Hot: asked several times of every path that moves."""
    if not path.startswith("data/"):
        return None
    directory = path.rpartition("/")[0]
    if _is_number(directory.rpartition("/")[2]) and directory.count("/") >= _SHORTEST - 1:
        return directory
    return next(units_around(path), None)


def units_around(path: str) -> Iterator[str]:
    """Yield the directories around a path that can be versions, the innermost first: it is in that one's unit."""
    if not path.startswith("data/"):
        return
    segments = path.split("/")
    for at in range(len(segments) - 2, _SHORTEST - 2, -1):
        if _is_number(segments[at]):
            yield "/".join(segments[: at + 1])


def _is_number(segment: str) -> bool:
    return segment.isdigit() and segment.isascii() and not segment.startswith("0")
