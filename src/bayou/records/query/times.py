"""Times as people write them in an expression."""

from __future__ import annotations

import re
from datetime import datetime

from bayou.core.clock import format_utc, parse_utc

_PART = re.compile(r"(\d{4})(?:-(\d{2}))?")


def parse_time(text: str) -> datetime | None:
    """Return the moment that a text names: a year, a month, a day or a time, in UTC unless it says otherwise."""
    part = _PART.fullmatch(text)
    try:
        return parse_utc(f"{part[1]}-{part[2] or '01'}-01" if part is not None else text)
    except ValueError:
        return None


def as_record(moment: datetime) -> str | None:
    """Return a moment as records have it; None if they cannot tell it exactly."""
    if moment.microsecond % 1000:
        return None
    return format_utc(moment)
