"""Identifiers that sort by time: ULIDs."""

from __future__ import annotations

import os
import time

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def ulid(at_ms: int | None = None) -> str:
    """Return a new ULID: 48 bits of time, 80 of randomness, 26 characters of Crockford's base 32."""
    number = (at_ms if at_ms is not None else time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10), "big")
    return "".join(_ALPHABET[number >> shift & 31] for shift in range(125, -5, -5))
