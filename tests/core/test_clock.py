"""Times in text and in milliseconds."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayou.core.clock import format_ms, format_utc, now, now_ms, parse_ms, parse_utc, to_ms

LAST_MS = 253_402_300_799_999  # the end of the year 9999


@given(st.integers(min_value=-62_135_596_800_000, max_value=LAST_MS))
def test_milliseconds_come_back_from_text_and_text_has_one_length(ms: int) -> None:
    text = format_ms(ms)
    assert parse_ms(text) == ms
    assert len(text) == len("2030-01-02T03:04:05.678Z")


@given(st.lists(st.integers(min_value=0, max_value=LAST_MS), max_size=8))
def test_text_sorts_by_time(moments: list[int]) -> None:
    assert sorted(map(format_ms, moments)) == [format_ms(ms) for ms in sorted(moments)]


def test_the_current_time_is_now() -> None:
    before = time.time_ns() // 1_000_000
    text, ms = now(), now_ms()
    assert before <= parse_ms(text) <= ms <= time.time_ns() // 1_000_000 + 1
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", now("seconds"))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("2030-01-02T03:04:05.678Z", "2030-01-02T03:04:05.678Z"),
        ("2030-01-02T03:04:05+02:00", "2030-01-02T01:04:05.000Z"),
        ("2030-01-02T03:04:05.678999", "2030-01-02T03:04:05.678Z"),
        ("2030-01-02", "2030-01-02T00:00:00.000Z"),
    ],
)
def test_times_of_other_programs_become_utc_and_those_without_a_zone_are_in_utc(text: str, wanted: str) -> None:
    assert parse_utc(text).tzinfo is UTC
    assert format_utc(parse_utc(text)) == wanted


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Invalid isoformat"),
        ("yesterday", "Invalid isoformat"),
        ("2030-02-31", "day is out of range"),
        ("0001-01-01T00:00:00+14:00", "out of range"),
        ("9999-12-31T23:59:59-01:00", "out of range"),
    ],
)
def test_what_is_no_time_or_out_of_range_is_a_value_error(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_ms(text)


def test_a_moment_in_another_zone_is_formatted_in_utc_and_rounded_in_milliseconds() -> None:
    moment = datetime(2030, 1, 2, 3, 4, 5, 678_900, timezone(timedelta(hours=1)))
    assert format_utc(moment, "microseconds") == "2030-01-02T02:04:05.678900Z"
    assert to_ms(moment) == parse_ms("2030-01-02T02:04:05.679Z")
