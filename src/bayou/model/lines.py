"""Where in a YAML file something stands, and whether it is something that records can keep."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from yaml.nodes import Node

Place = tuple[str | int, ...]
"""The keys and positions that lead to a value."""

Lines = Mapping[Place, int]

_DEEPEST = 50


class Unusable(Exception):
    """Something in a file that cannot be used, and its line."""

    def __init__(self, line: int, problem: str, hint: str) -> None:
        super().__init__(problem)
        self.line = line
        self.problem = problem
        self.hint = hint


def lines_of(node: Node) -> dict[Place, int]:
    """Return the line of a node and of every one in it: of a key where there is one.

    `Unusable` for a key that stands twice, of which YAML would take the last without a word, and for a node without an
    end.
    """
    lines: dict[Place, int] = {}
    _walk(node, (), lines)
    return lines


def nearest(lines: Lines, place: Place) -> int | None:
    """Return the line of a place, or of the nearest thing around it that has one."""
    while place and place not in lines:
        place = place[:-1]
    return lines.get(place)


def check_plain(value: object, lines: Lines, place: Place = ()) -> None:
    """Raise `Unusable` for what is no JSON value: dates, NaN, names that are not texts."""
    match value:
        case dict():
            for key, one in value.items():
                if not isinstance(key, str):
                    line = nearest(lines, (*place, str(key))) or 1
                    raise Unusable(line, f"the name {key} is not a text", f'put it in quotes, as "{key}"')
                check_plain(one, lines, (*place, key))
        case list():
            for at, one in enumerate(value):
                check_plain(one, lines, (*place, at))
        case float() if not math.isfinite(value):
            raise Unusable(nearest(lines, place) or 1, f"{value} is no number that can be kept", "put it in quotes")
        case None | bool() | int() | float() | str():
            return
        case _:
            kind = type(value).__name__
            raise Unusable(nearest(lines, place) or 1, f"{value} is taken for a {kind}", "put it in quotes")


def _walk(node: Node, place: Place, lines: dict[Place, int]) -> None:
    import yaml  # noqa: PLC0415  (whoever has a node has loaded it)

    line = lines.setdefault(place, node.start_mark.line + 1)
    if len(place) > _DEEPEST:  # an alias to what it stands in, or as good as that
        raise Unusable(line, "values are nested too deeply", "take some of them apart")
    if isinstance(node, yaml.MappingNode):
        for key_node, value_node in node.value:
            key = str(key_node.value)
            inner = (*place, key)
            if inner in lines:
                raise Unusable(key_node.start_mark.line + 1, f"{key} stands there twice", "keep one of them")
            lines[inner] = key_node.start_mark.line + 1
            _walk(value_node, inner, lines)
    elif isinstance(node, yaml.SequenceNode):
        for at, one in enumerate(node.value):
            _walk(one, (*place, at), lines)
