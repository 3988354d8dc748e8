"""Times as Bayou writes and reads them: RFC 3339 in UTC, with milliseconds and a `Z`, so that text sorts by time."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def now(timespec: str = "milliseconds") -> str:
    """Return the current time as records and documents have it."""
    return format_utc(datetime.now(UTC), timespec)


def now_ms() -> int:
    """Return the current time in ms since 1970."""
    return time.time_ns() // 1_000_000


def format_utc(moment: datetime, timespec: str = "milliseconds") -> str:
    """Format a moment that has a zone; what is finer than `timespec` is cut off."""
    return moment.astimezone(UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


def format_ms(ms: int) -> str:
    """Format a moment given in ms since 1970."""
    return format_utc(datetime.fromtimestamp(ms // 1000, UTC).replace(microsecond=ms % 1000 * 1000))


def parse_utc(text: str) -> datetime:
    """Parse an ISO 8601 time, also one of other programs; a text without a zone is in UTC.

    A text that is no time, or lies outside the years 1 to 9999 in UTC, raises `ValueError` (V25: others wrote it).
    """
    found = datetime.fromisoformat(text)
    try:
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{text} is out of range") from None


def parse_ms(text: str) -> int:
    """Parse such a time as ms since 1970."""
    return to_ms(parse_utc(text))


def to_ms(moment: datetime) -> int:
    """Return a moment in ms since 1970, rounded."""
    return round(moment.timestamp() * 1000)
