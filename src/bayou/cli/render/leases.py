"""Render the leases of `datastore lock`, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from bayou.cli.output import Document, Part, Table, hint, say, show, warn

if TYPE_CHECKING:
    from bayou.leases import LeaseInfo

_MINUTE, _HOUR = 60.0, 3600.0


def leases_text(leases: Sequence[LeaseInfo]) -> Iterator[Part]:
    if not leases:
        yield show("no lease is held")
        return
    rows = [(lease.key, *_holder(lease), _duration(lease.age_s), _expiry(lease), lease.nonce) for lease in leases]
    yield Table(("lease", "holder", "host", "pid", "held", "", "nonce"), rows, frozenset({"pid", "held"}))
    for lease in leases:
        if lease.corrupt is not None:
            yield warn(f"{lease.key} is no lease: {lease.corrupt}")
    if any(lease.stale or lease.corrupt for lease in leases):
        yield hint(
            "a process that needs a stale lease takes it over; sooner: `bayou datastore lock release KEY --nonce N`"
        )


def leases_json(leases: Sequence[LeaseInfo]) -> Document:
    return {"leases": [_lease_json(lease) for lease in leases]}


def released_text(key: str, released: bool) -> Iterator[Part]:
    if released:
        yield say(f"{key} is free; its holder stops before the next write")
        return
    yield warn(f"nothing was released: {key} is free already, or another process has it by now")
    yield hint("look again with `bayou datastore lock status`")


def _lease_json(lease: LeaseInfo) -> Document:
    held = lease.held
    row: dict[str, object] = {
        "key": lease.key,
        "holder": held and held.holder,
        "host": held and held.host,
        "pid": held and held.pid,
        "nonce": lease.nonce,
        "acquired_at": held and held.acquired_at,
        "expires_in_s": round(lease.expires_in_s, 1),
        "stale": lease.stale,
    }
    return row if lease.corrupt is None else {**row, "corrupt": lease.corrupt}


def _holder(lease: LeaseInfo) -> tuple[str, str, str]:
    return ("", "", "") if lease.held is None else (lease.held.holder, lease.held.host, str(lease.held.pid))


def _expiry(lease: LeaseInfo) -> str:
    if lease.corrupt is not None:
        return "corrupt"
    return "stale" if lease.stale else f"expires in {_duration(lease.expires_in_s)}"


def _duration(seconds: float) -> str:
    """Return `12 s`, `4 min`, `3 h`."""
    if seconds < 2 * _MINUTE:
        return f"{seconds:.0f} s"
    if seconds < 2 * _HOUR:
        return f"{seconds / _MINUTE:.0f} min"
    return f"{seconds / _HOUR:,.0f} h"
