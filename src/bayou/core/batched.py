"""`itertools.batched` of Python 3.12, for 3.11; with lists, since callers slice and join the batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of `size`, the last one shorter. Only the current batch has been read from `items`."""
    source = iter(items)
    while batch := list(islice(source, size)):
        yield batch
