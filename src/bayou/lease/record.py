"""What a lease's object says.

No two writes of one key ever have the same bytes: a nonce belongs to one acquisition, is renewed by counting, and is
freed once. So an ETag that is made of content is a version too, and a write that arrives late never fits (F083).
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from bayou import limits
from bayou.index.fields import Malformed, dump, parse
from bayou.quick import dataclass

_LONGEST_KEY = 4096

RENEW = 1 / 3
"""The part of its TTL after which a holder renews a lease."""


@dataclass(frozen=True, slots=True)
class Held:
    """Somebody has it, for at most `limits.TTL_MAX` at a time, whatever it says (V25).

    `acquired_at` is the holder's own clock, and for people only; `renewed` counts renewals.
    """

    key: str
    holder: str
    host: str
    pid: int
    nonce: str
    acquired_at: str
    ttl_s: float
    renewed: int = 0

    def again(self) -> Held:
        """Return what its holder writes next."""
        return replace(self, renewed=self.renewed + 1)

    @property
    def age_s(self) -> float:
        """How long it is held, at least: renewals come every third of the TTL, and need no clock that we trust."""
        return self.renewed * self.ttl_s * RENEW

    def __str__(self) -> str:
        return f"{self.holder} on {self.host} (pid {self.pid})"


@dataclass(frozen=True, slots=True)
class Free:
    """Nobody has it; the one with this nonce was the last."""

    nonce: str


@dataclass(frozen=True, slots=True)
class Corrupt:
    """Something that is no lease. Its nonce is made of its bytes, so that it can be released like any other."""

    nonce: str
    why: str


Record = Held | Free | Corrupt


def encode(record: Held | Free) -> bytes:
    """Write a record. A free one is always `FREE_SIZE` long, and no other is: a listing shows which need no look."""
    if isinstance(record, Free):
        return dump({"free": True, "nonce": record.nonce})
    return dump(
        {
            "key": record.key,
            "holder": record.holder,
            "host": record.host,
            "pid": record.pid,
            "nonce": record.nonce,
            "acquired_at": record.acquired_at,
            "ttl_s": record.ttl_s,
            "renewed": record.renewed,
        }
    )


def decode(data: bytes) -> Record:
    """Read a record; what is none is `Corrupt`, never an error."""
    try:
        fields = parse(data, limits.LEASE_BYTES)
        if fields.flag("free"):
            return Free(fields.identifier("nonce"))
        return Held(
            key=fields.text("key", _LONGEST_KEY),
            holder=fields.text("holder"),
            host=fields.text("host"),
            pid=fields.count("pid"),
            nonce=fields.identifier("nonce"),
            acquired_at=fields.time("acquired_at"),
            ttl_s=fields.seconds("ttl_s", limits.TTL_MAX),
            renewed=fields.count("renewed"),
        )
    except Malformed as error:
        return corrupt(data, str(error))


def corrupt(data: bytes, why: str) -> Corrupt:
    return Corrupt(f"corrupt-{hashlib.sha256(data).hexdigest()[:16]}", why)


def too_large(version: str, why: str) -> Corrupt:
    """Return the record of an object that is too large to be read; its version makes its nonce."""
    return corrupt(version.encode(errors="replace"), why)


FREE_SIZE = len(encode(Free("0" * 26)))
