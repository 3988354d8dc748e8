"""Numbers, sizes and times as people read them, and as people type them."""

from __future__ import annotations

import re
from functools import cache

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw]?)", re.ASCII)
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z", re.ASCII)
_STEP = 1000.0


def count(number: int, one: str, many: str | None = None) -> str:
    """Return `1 file`, `2 files`, `1,204 files`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def size(number: int) -> str:
    """Return `512 B`, `1.2 KB`, `12 KB`, `3.4 GB`."""
    if number < _STEP:
        return f"{number} B"
    value = float(number)
    for unit in ("KB", "MB", "GB", "TB", "PB"):
        value /= _STEP
        if round(value) < _STEP or unit == "PB":
            break
    return f"{value:.1f} {unit}" if value < 9.95 else f"{value:,.0f} {unit}"


def first_line(error: str) -> str:
    """Return the line of an error that is for people; a traceback may follow it."""
    return error.partition("\n")[0]


def files(number: int, total: int) -> str:
    """Return `3 files (12 KB)`."""
    return f"{count(number, 'file')} ({size(total)})"


def parse_duration(text: str) -> float | None:
    """Return the seconds of `90`, `90s`, `5m`, `24h`, `7d` or `2w`, or None if it is none of these."""
    found = _DURATION.fullmatch(text.strip())
    return float(found[1]) * _UNITS[found[2]] if found else None


def moment(text: str) -> str:
    """Return a time, given as `clock.format_ms` writes it, as people get it: to the second, in their own zone.

    What somebody else has written, in whatever form, is left as it is.
    """
    if not _MOMENT.fullmatch(text):
        return text
    try:
        return _minute(text[:16]) + text[16:19]
    except ValueError:  # the 31st of February
        return text


@cache
def _minute(text: str) -> str:
    """Return a minute of UTC in this machine's zone; zones differ by whole minutes."""
    from datetime import datetime  # noqa: PLC0415

    return f"{datetime.fromisoformat(f'{text}Z').astimezone():%Y-%m-%d %H:%M}"
