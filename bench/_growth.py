"""Times at several sizes, as a table, as a plot in the terminal, and as a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

Times = Mapping[str, Mapping[int, float]]
"""Seconds of each job at each size."""

_COLORS = ("#0072b2", "#d55e00", "#009e73", "#888888")
_WIDTH, _HEIGHT, _LEFT, _BELOW = 640, 400, 60, 40
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


def picture(times: Times, target: Path) -> None:
    """Draw the times as an SVG, both axes logarithmic, with a dotted line of slope one for each job."""
    sizes = sorted({size for found in times.values() for size in found})
    every = [seconds for found in times.values() for seconds in found.values()]
    bottom, top = math.floor(math.log10(min(every))), math.ceil(math.log10(max(every)))
    left, right = math.log10(sizes[0]), max(math.log10(sizes[-1]), math.log10(sizes[0]) + 1)

    def at(size: float, seconds: float) -> str:
        x = _LEFT + (math.log10(size) - left) / (right - left) * (_WIDTH - _LEFT - 120)
        y = (_HEIGHT - _BELOW) - (math.log10(seconds) - bottom) / max(1, top - bottom) * (_HEIGHT - _BELOW - 20)
        return f"{x:.1f},{y:.1f}"

    def text(place: str, said: str, more: str = "") -> str:
        x, y = place.split(",")
        return f'<text x="{x}" y="{y}" font-family="sans-serif" font-size="12" {more}>{said}</text>'

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}">']
    parts.append('<rect width="100%" height="100%" fill="white"/>')
    parts += [
        text(f"8,{at(sizes[0], 10.0**power).split(',')[1]}", f"{10.0**power:g} s") for power in range(bottom, top + 1)
    ]
    parts += [
        text(f"{at(size, 1.0).split(',')[0]},{_HEIGHT - 12}", f"{size:,}", 'text-anchor="middle"') for size in sizes
    ]
    for (name, found), color in zip(times.items(), _COLORS, strict=False):
        known = sorted(found)
        line = " ".join(at(size, found[size]) for size in known)
        linear = " ".join(at(size, found[known[0]] * size / known[0]) for size in known)
        parts.append(f'<polyline points="{linear}" fill="none" stroke="{color}" stroke-dasharray="2 4"/>')
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>')
        x, y = at(known[-1], found[known[-1]]).split(",")
        parts.append(text(f"{float(x) + 6:.1f},{y}", name, f'fill="{color}"'))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join([*parts, "</svg>"]) + "\n")


def worst(times: Times, names: Sequence[str]) -> float:
    """Return the largest growth of these jobs."""
    return max((one for name in names for one in growth(times[name]).values()), default=1.0)
