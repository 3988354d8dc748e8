"""Plots as SVG, by hand: lines over logarithmic axes, and bars in groups.

Colours are of middle brightness and there is no background, so that a plot can be read on light and dark pages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from xml.sax.saxutils import escape, quoteattr

from msgspec import Struct

WIDTH, HEIGHT = 720, 396
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 130, 40, 72
_GREY = "#7a7a7a"
_FAINT = "#7a7a7a44"
_COLOURS = ("#3b8bd6", "#d9772b", "#3aa17e", "#9b72c7", "#b8860b")

Points = Mapping[int, float]


class Line(Struct, frozen=True):
    """A line through points of x and y, all above 0. With `linear`, a dotted line of slope one starts where it does."""

    name: str
    points: Points
    dashed: bool = False
    linear: bool = False
    colour: int | None = None


class Bars(Struct, frozen=True):
    """The bars at one label, one for each series; None where there is no value. A limit is drawn across its bar."""

    label: str
    values: Sequence[float | None]
    limits: Sequence[float | None] = ()


def lines(title: str, x_label: str, y_label: str, drawn: Sequence[Line]) -> str:
    """Draw lines, both axes logarithmic."""
    sizes = sorted({x for line in drawn for x in line.points})
    every = [y for line in drawn for y in line.points.values()]
    bottom, top = _decades(every)
    left, right = math.log10(sizes[0]), math.log10(sizes[-1])
    if right - left < 0.5:  # one size, or several close together: in the middle
        left, right = left - 0.5, right + 0.5
    width, height = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM

    def x_at(x: float) -> float:
        return _LEFT + (math.log10(x) - left) / (right - left) * width

    def y_at(y: float) -> float:
        return _TOP + height - (math.log10(y) - bottom) / (top - bottom) * height

    parts = _frame(title, x_label, y_label)
    parts += [_tick(y_at(10.0**power), _number(10.0**power)) for power in range(bottom, top + 1)]
    shown: list[int] = []
    for size in sizes:
        if not shown or x_at(size) - x_at(shown[-1]) > 60:
            shown.append(size)
            parts.append(_text(x_at(size), HEIGHT - _BOTTOM + 18, _number(size), anchor="middle"))
    ends: list[tuple[float, float, str, str]] = []
    for number, line in enumerate(drawn):
        colour = _colour(number if line.colour is None else line.colour)
        known = sorted(line.points)
        if line.linear:
            slope = " ".join(
                f"{x_at(x):.1f},{y_at(min(10.0**top, line.points[known[0]] * x / known[0])):.1f}" for x in known
            )
            parts.append(f'<polyline points="{slope}" fill="none" stroke="{colour}" stroke-dasharray="1 4"/>')
        at = " ".join(f"{x_at(x):.1f},{y_at(line.points[x]):.1f}" for x in known)
        dash = ' stroke-dasharray="6 4"' if line.dashed else ""
        parts.append(f'<polyline points="{at}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        parts += [f'<circle cx="{x_at(x):.1f}" cy="{y_at(line.points[x]):.1f}" r="3" fill="{colour}"/>' for x in known]
        ends.append((y_at(line.points[known[-1]]), x_at(known[-1]), line.name, colour))
    lowest = -math.inf
    for y, x, name, colour in sorted(ends):  # from the top down, each label clear of the one above it
        lowest = max(y, lowest + 14)
        parts.append(_text(x + 9, lowest + 4, name, colour=colour))
    return _document(title, parts)


def bars(
    title: str,
    y_label: str,
    series: Sequence[str],
    groups: Sequence[Bars],
    *,
    logarithmic: bool = False,
    told: Callable[[float], str] | None = None,
) -> str:
    """Draw groups of bars with the value above each; `told` writes a value."""
    every = [value for group in groups for value in (*group.values, *group.limits) if value is not None]
    write = told or _number
    width, height = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
    if logarithmic:
        bottom, top = _decades([*every, min(every) * 0.7])  # the smallest bar has a height, too
        ticks = [10.0**power for power in range(bottom, top + 1)]

        def y_at(y: float) -> float:
            return _TOP + height - (math.log10(y) - bottom) / (top - bottom) * height

    else:
        step = _step(max(every))
        ticks = [step * number for number in range(math.ceil(max(every) / step) + 1)]

        def y_at(y: float) -> float:
            return _TOP + height - y / ticks[-1] * height

    parts = _frame(title, "", y_label)
    parts += [_tick(y_at(tick), _number(tick)) for tick in ticks]
    room = width / len(groups)
    bar = min(48.0, room * 0.8 / len(series))
    for number, group in enumerate(groups):
        first = _LEFT + room * (number + 0.5) - bar * len(series) / 2
        for place, value in enumerate(group.values):
            x = first + place * bar
            if value is None:
                parts.append(_text(x + bar / 2, HEIGHT - _BOTTOM - 4, "–", anchor="middle"))
                continue
            y = y_at(value)
            parts.append(
                f'<rect x="{x + 1:.1f}" y="{y:.1f}" width="{bar - 2:.1f}" '
                f'height="{max(0.5, HEIGHT - _BOTTOM - y):.1f}" fill="{_colour(place)}"/>'
            )
            parts.append(_text(x + bar / 2, y - 4, write(value), anchor="middle", size=11))
        for place, limit in enumerate(group.limits):
            if limit is not None:
                y, x = y_at(limit), first + place * bar
                parts.append(
                    f'<line x1="{x - 2:.1f}" y1="{y:.1f}" x2="{x + bar + 2:.1f}" y2="{y:.1f}" '
                    f'stroke="{_GREY}" stroke-width="2" stroke-dasharray="4 3"/>'
                )
        for row, words in enumerate(group.label.split("\n")):
            y = HEIGHT - _BOTTOM + 18 + 14 * row
            parts.append(_text(_LEFT + room * (number + 0.5), y, words, anchor="middle"))
    names = [*((name, _colour(place)) for place, name in enumerate(series))]
    if any(limit is not None for group in groups for limit in group.limits):
        names.append(("dashed: limit", _GREY))
    for row, (name, colour) in enumerate(names):
        parts.append(_text(WIDTH - _RIGHT + 10, _TOP + 12 + 18 * row, name, colour=colour))
    return _document(title, parts)


def _document(title: str, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" font-family="sans-serif" font-size="12">'
    )
    return "\n".join([head, f"<title>{escape(title)}</title>", *parts, "</svg>"]) + "\n"


def _frame(title: str, x_label: str, y_label: str) -> list[str]:
    middle = _TOP + (HEIGHT - _TOP - _BOTTOM) / 2
    floor = HEIGHT - _BOTTOM
    return [
        _text(_LEFT, 20, title, size=14, weight="bold"),
        f'<path d="M{_LEFT} {_TOP} V{floor} H{WIDTH - _RIGHT}" fill="none" stroke="{_GREY}"/>',
        *([_text((_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 10, x_label, anchor="middle")] if x_label else []),
        f'<g transform="rotate(-90 16 {middle:.1f})">{_text(16, middle, y_label, anchor="middle")}</g>',
    ]


def _tick(y: float, said: str) -> str:
    line = f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{WIDTH - _RIGHT}" y2="{y:.1f}" stroke="{_FAINT}"/>'
    return line + _text(_LEFT - 8, y + 4, said, anchor="end")


def _text(
    x: float, y: float, said: str, *, anchor: str = "start", colour: str = _GREY, size: int = 12, weight: str = ""
) -> str:
    more = f' font-weight="{weight}"' if weight else ""
    more += f' font-size="{size}"' if size != 12 else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor={quoteattr(anchor)} fill="{colour}"{more}>{escape(said)}</text>'


def _decades(values: Sequence[float]) -> tuple[int, int]:
    bottom, top = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return bottom, max(top, bottom + 1)


def _step(largest: float) -> float:
    """Return a round step that divides an axis into four to eight parts."""
    power = 10.0 ** math.floor(math.log10(largest / 4))
    return next(power * factor for factor in (1, 2, 5, 10) if largest / (power * factor) <= 8)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]
