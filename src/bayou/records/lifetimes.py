"""How long data is meant to live: `lifetime` and `keep`, as people write them."""

from __future__ import annotations

import calendar
import re
from datetime import datetime, timedelta
from typing import Literal

from msgspec import Struct

from bayou.core.errors import RetentionInvalid

_SPAN = re.compile(r"([1-9][0-9]{0,5})(m|h|d|w|mo|y)", re.ASCII)
_FIXED = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
_MONTHS = {"mo": 1, "y": 12}
_LIFETIME_HINT = "write it as 10m, 24h, 7d, 4w, 6mo, 1y, run or infinite"
_KEEP_HINT = "write it as a number of versions, like 5, or as a time, like 30d"


class Span(Struct, frozen=True):
    """A length of time. Months and years are those of the calendar."""

    count: int
    unit: str

    def after(self, start: datetime) -> datetime:
        """Return the moment this long after `start`; the last day of a month that is too short for its day."""
        months = _MONTHS.get(self.unit)
        try:
            if months is None:
                return start + self.count * _FIXED[self.unit]
            year, month = divmod(start.year * 12 + start.month - 1 + self.count * months, 12)
            day = min(start.day, calendar.monthrange(year, month + 1)[1])
            return start.replace(year=year, month=month + 1, day=day)
        except (OverflowError, ValueError):  # beyond the year 9999
            return datetime.max.replace(tzinfo=start.tzinfo)


class Keep(Struct, frozen=True):
    """How much of an item stays: its newest `count` versions, or those younger than `span`."""

    count: int | None = None
    span: Span | None = None


Lifetime = Span | Literal["run", "infinite"]
"""A time from a version's creation; `run`: as long as the record of its workflow run exists; or for ever."""


def parse_lifetime(text: str) -> Lifetime:
    """Return what a lifetime means, or raise `RetentionInvalid`."""
    if text == "run":
        return "run"
    if text == "infinite":
        return "infinite"
    span = _span(text)
    if span is None:
        raise RetentionInvalid(f"{text!r} is no lifetime", hint=_LIFETIME_HINT)
    return span


def parse_keep(text: str) -> Keep:
    """Return what a `keep` means, or raise `RetentionInvalid`."""
    if text.isascii() and text.isdigit() and int(text) > 0:
        return Keep(count=int(text))
    span = _span(text)
    if span is None:
        raise RetentionInvalid(f"{text!r} does not say how much to keep", hint=_KEEP_HINT)
    return Keep(span=span)


def _span(text: str) -> Span | None:
    found = _SPAN.fullmatch(text)
    return Span(int(found[1]), found[2]) if found else None
