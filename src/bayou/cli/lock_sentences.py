"""Leases as scripts get them, and as people read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from bayou.cli.output import Part, Table, hint, say, show, warn

if TYPE_CHECKING:
    from bayou.leases import LeaseInfo

_MINUTE, _HOUR = 60.0, 3600.0


def document(leases: Sequence[LeaseInfo]) -> Mapping[str, object]:
    return {"leases": [_row(one) for one in leases]}


def status(leases: Sequence[LeaseInfo]) -> Iterator[Part]:
    if not leases:
        yield show("nobody holds a lease")
        return
    rows = [(one.key, *_holder(one), _span(one.age_s), _standing(one), one.nonce) for one in leases]
    yield Table(("lease", "holder", "host", "pid", "held", "", "nonce"), rows, frozenset({"pid", "held"}))
    for one in leases:
        if one.corrupt is not None:
            yield warn(f"{one.key} is no lease: {one.corrupt}")
    if any(one.stale or one.corrupt for one in leases):
        yield hint("who needs a stale lease takes it over; sooner: `bayou datastore lock release KEY --nonce N`")


def release(key: str, released: bool) -> Iterator[Part]:
    if released:
        yield say(f"{key} is free; who held it stops before its next write")
        return
    yield warn(f"nothing was released: {key} is free already, or somebody else has it by now")
    yield hint("look again with `bayou datastore lock status`")


def _row(one: LeaseInfo) -> Mapping[str, object]:
    held = one.held
    row: dict[str, object] = {
        "key": one.key,
        "holder": held and held.holder,
        "host": held and held.host,
        "pid": held and held.pid,
        "nonce": one.nonce,
        "acquired_at": held and held.acquired_at,
        "expires_in_s": round(one.expires_in_s, 1),
        "stale": one.stale,
    }
    return row if one.corrupt is None else {**row, "corrupt": one.corrupt}


def _holder(one: LeaseInfo) -> tuple[str, str, str]:
    return ("", "", "") if one.held is None else (one.held.holder, one.held.host, str(one.held.pid))


def _standing(one: LeaseInfo) -> str:
    if one.corrupt is not None:
        return "corrupt"
    return "stale" if one.stale else f"expires in {_span(one.expires_in_s)}"


def _span(seconds: float) -> str:
    """Return `12 s`, `4 min`, `3 h`."""
    if seconds < 2 * _MINUTE:
        return f"{seconds:.0f} s"
    if seconds < 2 * _HOUR:
        return f"{seconds / _MINUTE:.0f} min"
    return f"{seconds / _HOUR:,.0f} h"
