"""The list of what may go is a list like any other, wherever it is kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayou.data.retention.expired import ExpiredSet
from bayou.data.retention.rules import ExpiredRow, ExpiredVersion
from tests.data.retention.test_rules import row

_SOME = st.sets(st.integers(1, 40)).map(sorted)


def sentenced(numbers: list[int]) -> list[ExpiredVersion]:
    return [
        ExpiredVersion(
            ExpiredRow(row(one, name=f"n{one % 2}", tags={"é": "x"}), "expired" if one % 3 else "surplus"), one
        )
        for one in sorted(numbers, key=lambda one: (one % 2, one))
    ]


@given(_SOME, st.slices(50))
def test_it_has_what_was_put_into_it(numbers, part) -> None:
    put = sentenced(numbers)
    expected = [one.expired for one in put]

    doom = ExpiredSet(put)

    assert list(doom) == expected
    assert doom[part] == expected[part]
    assert [doom[at] for at in range(-len(doom), len(doom))] == expected * 2
    assert (doom.bytes, doom.expired) == (sum(numbers), sum(1 for one in numbers if one % 3))
    assert doom == ExpiredSet(put)
    assert (doom == ()) is not bool(numbers)


@given(_SOME, _SOME)
def test_what_is_within_both_is_in_both(mine, shown) -> None:
    """F120: whoever agreed to a list agreed to that list."""
    within = ExpiredSet(sentenced(mine)).within(ExpiredSet(sentenced(shown)))

    assert within == tuple(one.expired for one in sentenced(sorted({*mine} & {*shown})))
    assert within.bytes == 0


def test_there_is_nothing_beyond_its_end() -> None:
    with pytest.raises(IndexError):
        ExpiredSet(sentenced([1]))[1]
