"""Times as Bayou writes and parses them: RFC 3339 in UTC, with milliseconds and a `Z`, so that text sorts by time.

Durations, as users write them, are a number and a unit.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw]?)", re.ASCII)


def parse_duration(text: str) -> float | None:
    """Return the seconds of `90`, `90s`, `5m`, `24h`, `7d` or `2w`, or None for any other text."""
    found = _DURATION.fullmatch(text.strip())
    return float(found[1]) * _UNITS[found[2]] if found else None


def now(timespec: str = "milliseconds") -> str:
    """Return the current time as text, in the format of records and documents."""
    return format_utc(datetime.now(UTC), timespec)


def now_ms() -> int:
    """Return the current time in ms since 1970."""
    return time.time_ns() // 1_000_000


def format_utc(moment: datetime, timespec: str = "milliseconds") -> str:
    """Format a time that has a zone, truncated to `timespec`."""
    return moment.astimezone(UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


def format_ms(ms: int) -> str:
    """Format a time in ms since 1970."""
    return format_utc(datetime.fromtimestamp(ms // 1000, UTC).replace(microsecond=ms % 1000 * 1000))


def parse_utc(text: str) -> datetime:
    """Parse an ISO 8601 time, also of another program; a text without a zone is in UTC.

    Raise `ValueError` for a text that is not a time, or not in the years 1 to 9999 in UTC (V25).
    """
    parsed = datetime.fromisoformat(text)
    try:
        return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{text} is out of range") from None


def parse_ms(text: str) -> int:
    """Parse a time as `parse_utc` does, and return it in ms since 1970."""
    return to_ms(parse_utc(text))


def to_ms(moment: datetime) -> int:
    """Convert a time to ms since 1970, rounded."""
    return round(moment.timestamp() * 1000)
