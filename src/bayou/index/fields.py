"""How documents of the index are written: compact JSON, and times in UTC with milliseconds."""

from __future__ import annotations

import json
from datetime import UTC, datetime


def time_text(ms: int) -> str:
    """Write a moment, in ms since 1970, as documents have it."""
    return datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{ms % 1000:03}Z"


def time_ms(text: str) -> int:
    """Read a moment back."""
    seconds = int(datetime.fromisoformat(text[:19] + "+00:00").timestamp())
    return seconds * 1000 + int(text[20:23])


def dump(value: object) -> bytes:
    """Write a document compactly, in the order of its fields."""
    return json.dumps(value, separators=(",", ":")).encode()
