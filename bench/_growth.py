"""Times at several sizes, as a table, as a plot in the terminal, and as a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import _svg
from _svg import Line

Times = Mapping[str, Mapping[int, float]]
"""Seconds of each job at each size."""

_BAR = 50


def growth(times: Mapping[int, float]) -> dict[int, float]:
    """Return how the time per object changes from each size to the next: 1.0 is linear."""
    sizes = sorted(times)
    return {large: (times[large] / large) / (times[small] / small) for small, large in pairwise(sizes)}


def table(times: Times) -> list[str]:
    sizes = sorted({size for one in times.values() for size in one})
    lines = [f"{'objects':<10}" + "".join(f"{size:>12,}{'growth':>8}" for size in sizes)]
    for name, found in times.items():
        grown = growth(found)
        cells = (
            f"{found[size]:>10.2f} s{grown[size]:>8.2f}" if size in grown else f"{found[size]:>10.2f} s{'':>8}"
            for size in sizes
        )
        lines.append(f"{name:<10}" + "".join(cells))
    return lines


def bars(times: Times) -> list[str]:
    """Draw each time as a bar, ten times as much a fixed length further: bars that grow evenly are linear."""
    every = [seconds for found in times.values() for seconds in found.values()]
    low, high = math.log10(min(every)) - 0.3, math.log10(max(every))
    lines = []
    for name, found in times.items():
        for size, seconds in sorted(found.items()):
            bar = "#" * round((math.log10(seconds) - low) / (high - low) * _BAR)
            lines.append(f"{name:<10}{size:>10,} |{bar} {seconds:.2f} s")
    return lines


def picture(title: str, times: Times) -> str:
    """Draw the times as an SVG, both axes logarithmic, with a dotted line of slope one for each job."""
    return _svg.lines(title, "objects", "seconds (dotted: linear)", [Line(*one, linear=True) for one in times.items()])


def worst(times: Times, names: Sequence[str]) -> float:
    """Return the largest growth of these jobs."""
    return max((one for name in names for one in growth(times[name]).values()), default=1.0)
