"""What requests cost on S3's price list: computed, not measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

PUT = 0.005 / 1000
GET = 0.0004 / 1000
"""Dollars for a request to S3 Standard in us-east-1: PUT, COPY, POST and LIST; GET and the rest. DELETE is free."""

PACK_BYTES = 8 << 20
LEAF = 512 * (1 - (1 - 1 / 512) ** 2048)
BRANCH = 1024 * (1 - (1 - 1 / 1024) ** 4096)
"""Rows that a node of the index has on average: it ends after a row with a chance of 1 in 512 (1,024), or when full."""


class Month(Struct, frozen=True):
    """A store that is pushed once in a month, and pulled whole by fresh clones."""

    files: int
    size: int
    pulls: int


def nodes(files: int) -> int:
    """Return how many nodes the index of so many files has, about."""
    total = level = math.ceil(files / LEAF)
    while level > 1:
        level = math.ceil(level / BRANCH)
        total += level
    return total


def objects(month: Month, *, packed: bool) -> int:
    """Return how many objects hold the content. Packs are full, and nothing in them is compressed."""
    return math.ceil(month.files * month.size / PACK_BYTES) if packed else month.files


def dollars(month: Month, *, packed: bool) -> float:
    """Return what the requests of a month cost.

    A push writes the content, the nodes of the index and the head, and reads the head once; a pull reads all of them
    once, each object whole.
    """
    moved = objects(month, packed=packed) + nodes(month.files) + 1
    return moved * PUT + GET + month.pulls * moved * GET


def table(files: int, size: int, pulls: Sequence[int]) -> list[str]:
    """Return the table of a month's cost, as Markdown."""
    lines = ["| pulls a month | one object for each file | packs | times |", "|---:|---:|---:|---:|"]
    for number in pulls:
        each, packed = (dollars(Month(files, size, number), packed=kind) for kind in (False, True))
        lines.append(f"| {number:,} | ${each:,.2f} | ${packed:,.2f} | {each / packed:,.0f} |")
    return lines
