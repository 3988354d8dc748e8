"""Identifiers that sort by time (ULIDs), and the name of the user who works."""

from __future__ import annotations

import os
import time

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_LENGTH = 26
_PAIRS = [high + low for high in _ALPHABET for low in _ALPHABET]


def ulid(at_ms: int | None = None) -> str:
    """Return a new ULID: 48 bits of time, 80 of randomness, 26 characters of Crockford's base 32."""
    number = (at_ms if at_ms is not None else time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10), "big")
    return ulid_of(number)


def ulid_of(number: int) -> str:
    """Format a number of 128 bits as a ULID."""
    return "".join([_PAIRS[number >> shift & 1023] for shift in range(120, -10, -10)])


def is_ulid(text: str) -> bool:
    return len(text) == _LENGTH and all(character in _ALPHABET for character in text)


def ulid_ms(text: str) -> int:
    """Return the time at which a ULID was made, in ms since 1970."""
    number = 0
    for character in text[:10]:
        number = number << 5 | _ALPHABET.index(character)
    return number


def user_name() -> str:
    """Return the name of this user, for people; the number of a user without a name, as in some containers."""
    import getpass  # noqa: PLC0415  (only for a commit or a lease)

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
