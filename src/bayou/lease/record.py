"""What a lease's object says.

No two writes of one key ever have the same bytes: a nonce belongs to one acquisition, is renewed by counting, and is
freed once. So an ETag that is made of content is a version too, and a write that arrives late never fits (F083).
"""

from __future__ import annotations

import hashlib
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import asdict, replace

from bayou.core import limits
from bayou.core.structs import Count, Identifier, Label, Malformed, Time, check_time, convert, dump_json, parse

_LONGEST_KEY = 4096

RENEW = 1 / 3
"""The part of its TTL after which a holder renews a lease."""


class Held(Struct, frozen=True):
    """Somebody has it, for at most `limits.TTL_MAX` at a time, whatever it says (V25).

    `acquired_at` is the holder's own clock, and for people only; `renewed` counts renewals.
    """

    key: Annotated[str, Meta(max_length=_LONGEST_KEY)]
    holder: Label
    host: Label
    pid: Count
    nonce: Identifier
    acquired_at: Time
    ttl_s: Annotated[float, Meta(gt=0)]
    renewed: Count = 0

    def again(self) -> Held:
        """Return what its holder writes next."""
        return replace(self, renewed=self.renewed + 1)

    @property
    def age_s(self) -> float:
        """How long it is held, at least: renewals come every third of the TTL, and need no clock that we trust."""
        return self.renewed * self.ttl_s * RENEW

    def __str__(self) -> str:
        return f"{self.holder} on {self.host} (pid {self.pid})"


class Free(Struct, frozen=True):
    """Nobody has it; the one with this nonce was the last."""

    nonce: Identifier


class Corrupt(Struct, frozen=True):
    """Something that is no lease. Its nonce is made of its bytes, so that it can be released like any other."""

    nonce: str
    why: str


Record = Held | Free | Corrupt


def encode(record: Held | Free) -> bytes:
    """Write a record. A free one is always `FREE_SIZE` long, and no other is: a listing shows which need no look."""
    if isinstance(record, Free):
        return dump_json({"free": True, "nonce": record.nonce})
    return dump_json(asdict(record))


def decode(data: bytes) -> Record:
    """Read a record; what is none is `Corrupt`, never an error."""
    try:
        fields = parse(data, limits.LEASE_BYTES)
        if fields.get("free", False) is True:
            return convert(fields, Free)
        if fields.get("free", False) is not False:
            raise Malformed("free is not true or false")
        if isinstance(ttl := fields.get("ttl_s"), int | float) and not isinstance(ttl, bool):
            fields["ttl_s"] = min(ttl, limits.TTL_MAX)  # V25: also where it is too large for a float
        held = convert(fields, Held)
        check_time(held.acquired_at, "acquired_at")
        return held
    except Malformed as error:
        return corrupt(data, str(error))


def corrupt(data: bytes, why: str) -> Corrupt:
    return Corrupt(f"corrupt-{hashlib.sha256(data).hexdigest()[:16]}", why)


def too_large(version: str, why: str) -> Corrupt:
    """Return the record of an object that is too large to be read; its version makes its nonce."""
    return corrupt(version.encode(errors="replace"), why)


FREE_SIZE = len(encode(Free("0" * 26)))
