"""Batches of an iterable."""

from __future__ import annotations

import pytest

from bayou.core.batched import batched


@pytest.mark.parametrize(
    ("number", "wanted"), [(0, []), (1, [[0]]), (3, [[0, 1, 2]]), (7, [[0, 1, 2], [3, 4, 5], [6]])]
)
def test_batches_have_all_items_in_order_and_only_the_last_one_is_shorter(number: int, wanted: list[list[int]]) -> None:
    assert list(batched(range(number), 3)) == wanted


def test_no_item_is_read_before_its_batch_is_asked_for() -> None:
    source = iter(range(10))
    batches = batched(source, 4)
    assert next(batches) == [0, 1, 2, 3]
    assert next(source) == 4
