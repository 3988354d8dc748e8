"""What a process may do because the one above it holds a lease (F089).

A holder puts the nonces of its leases into the environment of the processes it starts. They are believed only while
the store shows the same nonce. A child neither renews nor releases what it was lent, so a sibling that ends first
takes nothing away from the others.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping

from bayou.core.errors import ConfigInvalid
from bayou.lease.claim import BorrowedLease, Lease, OnLost
from bayou.lease.objects import LeaseObjects, Seen
from bayou.lease.record import Held
from bayou.lease.watch import Clock

VARIABLE = "BAYOU_LEASE"


def environment(leases: Iterable[Lease]) -> dict[str, str]:
    """Return what to add to the environment of a child so that it may work under these leases, and under our own."""
    return {VARIABLE: json.dumps({**inherited(), **{lease.key: lease.nonce for lease in leases}})}


def inherited() -> Mapping[str, str]:
    """Return the nonces that the process above us named, by key; nothing of it is proved."""
    told = os.environ.get(VARIABLE)
    if not told:
        return {}
    try:
        value = json.loads(told)
    except ValueError:
        value = None
    if not isinstance(value, dict) or not all(isinstance(nonce, str) for nonce in value.values()):
        raise ConfigInvalid(f"{VARIABLE} is not what a process hands to its children", hint=f"unset {VARIABLE}")
    return value


def borrow(
    objects: LeaseObjects, key: str, nonce: str | None, clock: Clock, on_lost: OnLost | None
) -> BorrowedLease | None:
    """Return the lease that the process above us holds, if the store says so too."""
    if nonce is None:
        return None
    asked = clock()
    match objects.read(key):
        case Seen(Held(nonce=found) as held) as seen if found == nonce:
            return BorrowedLease(objects, seen, held, asked, clock, on_lost)
    return None
