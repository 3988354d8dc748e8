"""Issue 17, items 9 and 13: leases that were made to keep others out, or to break whoever reads them."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pytest

from bayou.core import limits
from bayou.core.errors import LeaseCorrupt, LeaseTimeout
from bayou.leases import model_key
from bayou.leases.objects import STORE, HeldLease, decode, object_key
from tests.leases.conftest import Place

KEY = model_key("t", "0c7a")
GOOD = {
    "key": KEY,
    "holder": "h",
    "host": "h",
    "pid": 1,
    "nonce": "n" * 26,
    "acquired_at": "2026-01-01T00:00:00.000Z",
    "ttl_s": 30,
    "renewed": 0,
}


def put(place: Place, data: bytes, key: str = KEY) -> None:
    place.store().put(object_key(key), data)


def age(place: Place, seconds: float, key: str = KEY) -> None:
    """Let the store say that a lease was written so long ago."""
    assert place.directory is not None
    then = time.time() - seconds
    os.utime(place.directory / object_key(key), (then, then))


@pytest.mark.parametrize("ttl", [2e9, 1e300, 10**400, limits.TTL_MAX + 1])
def test_17_13_no_lease_is_held_for_longer_than_a_day_whatever_it_says(ttl: float) -> None:
    text = json.dumps(GOOD).replace('"ttl_s": 30', f'"ttl_s": {"1" + "0" * 400 if ttl == 10**400 else ttl}')

    found = decode(text.encode())

    assert isinstance(found, HeldLease)
    assert found.ttl_s == limits.TTL_MAX


HARM: dict[str, Any] = {
    "negative": {"ttl_s": -1},
    "zero": {"ttl_s": 0},
    "text": {"ttl_s": "30"},
    "true": {"ttl_s": True},
    "null": {"ttl_s": None},
    "list": {"ttl_s": [30]},
    "long holder": {"holder": "x" * 50_000},
    "no time": {"acquired_at": "9999-99-99T00:00:00.000Z"},
    "nonce of a path": {"nonce": "../x"},
    "huge pid": {"pid": 2**80},
    "fraction of a renewal": {"renewed": 0.5},
}
BYTES = {
    **{name: json.dumps(GOOD | harm).encode() for name, harm in HARM.items()},
    "not a number": json.dumps(GOOD).replace("30", "NaN").encode(),
    "infinite": json.dumps(GOOD).replace("30", "Infinity").encode(),
    "too large": b"x" * (limits.LEASE_BYTES + 1),
    "deep": b"[" * 50_000,
    "surrogate": b'{"key":"\\ud800"}',
    "not UTF-8": b"\xff\xfe",
    "empty": b"",
}


@pytest.mark.parametrize("data", BYTES.values(), ids=BYTES)
def test_17_13_a_lease_that_is_none_is_told_and_has_a_way_out(directory: Place, data: bytes) -> None:
    put(directory, data)

    with pytest.raises(LeaseCorrupt, match=KEY):
        directory.leases().acquire(KEY, wait_s=0)
    (info,) = directory.leases().list()
    assert info.corrupt
    assert len(info.corrupt) < 300
    assert directory.leases().release(KEY, info.nonce)
    directory.leases().acquire(KEY, wait_s=0).release()


@pytest.mark.parametrize("data", [BYTES["too large"], BYTES["negative"], json.dumps(GOOD | {"ttl_s": 2e9}).encode()])
def test_17_13_nobody_is_kept_out_for_longer_than_a_lease_can_be_held(directory: Place, data: bytes) -> None:
    put(directory, data)
    age(directory, limits.TTL_MAX + 60)

    directory.leases().acquire(STORE, wait_s=0).release()
    directory.leases().acquire(KEY, wait_s=0).release()


def test_17_13_a_lease_of_years_is_waited_for_like_any_other_and_can_be_released(directory: Place) -> None:
    put(directory, json.dumps(GOOD | {"ttl_s": 63 * 365 * 86400}).encode())
    age(directory, 600)

    with pytest.raises(LeaseTimeout):
        directory.leases().acquire(KEY, wait_s=0)
    (info,) = directory.leases().list()
    assert info.expires_in_s <= limits.TTL_MAX
    assert directory.leases().release(KEY, info.nonce)
    directory.leases().acquire(KEY, wait_s=0).release()


def test_17_13_an_object_that_no_key_makes_is_no_lease(directory: Place) -> None:
    assert directory.directory is not None
    folder = directory.directory / ".bayou/leases"
    folder.mkdir(parents=True)
    for name in ("%2E.json", "a b.json", "%zz.json"):
        (folder / name).write_bytes(b"x")

    directory.leases().acquire(STORE, wait_s=0).release()
