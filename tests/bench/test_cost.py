"""The cost of requests is arithmetic on S3's price list."""

from __future__ import annotations

import _cost
import pytest
from _cost import Month


def test_one_object_for_each_file_costs_a_put_each_and_a_get_for_each_pull():
    index = _cost.nodes(1_000_000) + 1

    cost = _cost.dollars(Month(files=1_000_000, size=5_000, pulls=10), packed=False)

    # 1,000,000 PUT at $0.005 for 1,000 are $5; as many GET at $0.0004 for 1,000, ten times, are $4.
    assert cost == pytest.approx(5.0 + 10 * 0.4 + index * (0.005 + 10 * 0.0004) / 1000 + 0.0004 / 1000)


def test_packs_cost_a_put_for_eight_mebibytes():
    month = Month(files=1_000_000, size=5_000, pulls=0)
    objects = _cost.objects(month, packed=True) + _cost.nodes(1_000_000) + 1

    assert _cost.objects(month, packed=True) == 597  # 5,000,000,000 / 8,388,608 = 596.05
    assert _cost.dollars(month, packed=True) == pytest.approx(objects * 0.005 / 1000 + 0.0004 / 1000)


def test_the_index_has_a_node_for_about_five_hundred_files():
    assert round(_cost.LEAF, 1) == 502.7
    assert _cost.nodes(1) == 1
    assert _cost.nodes(1_000_000) == 1_990 + 2 + 1


def test_the_table_has_a_line_for_each_number_of_pulls_and_says_how_many_times_packs_are_cheaper():
    lines = _cost.table(1_000_000, 5_000, [1, 1000])

    assert lines[0] == "| pulls a month | one object for each file | packs | times |"
    assert lines[2:] == ["| 1 | $5.41 | $0.01 | 387 |", "| 1,000 | $405.81 | $1.05 | 387 |"]
