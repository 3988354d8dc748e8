"""Leases as `lock status` shows them: for people, and by clocks that nobody relies on."""

from __future__ import annotations

from msgspec import Struct

from bayou.lease.objects import Seen
from bayou.lease.record import Corrupt, Held


class LeaseInfo(Struct, frozen=True):
    """One lease that is not free. `stale` is what the times suggest; who takes a lease watches it for a whole TTL.

    `held` is None if it is corrupt, and `corrupt` says how; its `nonce` releases it all the same.
    """

    key: str
    nonce: str
    held: Held | None
    corrupt: str | None
    age_s: float
    expires_in_s: float
    stale: bool


def describe(key: str, seen: Seen, now_ms: int) -> LeaseInfo | None:
    """Say how a lease stands at a moment of the store's clock; None if it is free."""
    quiet_s = max(0.0, (now_ms - seen.modified) / 1000)
    match seen.record:
        case Held() as held:
            left = held.ttl_s - quiet_s
            return LeaseInfo(key, held.nonce, held, None, held.age_s + quiet_s, max(0.0, left), left <= 0)
        case Corrupt(nonce, why):
            return LeaseInfo(key, nonce, None, why, quiet_s, 0.0, stale=False)
    return None
