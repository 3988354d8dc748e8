"""Rows in order, in memory or in a file."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayou.core.errors import StateError
from bayou.engine.spool import SortedSpool

ROWS = st.lists(st.tuples(st.binary(max_size=3), st.integers(0, 3), st.none() | st.text(st.characters(codec="utf-8"))))


@given(ROWS, st.sampled_from([0, 5, 1000]))
def test_rows_come_in_order_however_many_there_are(rows, in_memory):
    spool = SortedSpool(2, in_memory)
    spool.add(rows[:7])
    spool.add(iter(rows[7:]))

    found = list(spool)

    assert [row[:2] for row in found] == sorted(row[:2] for row in rows)
    assert sorted(found, key=repr) == sorted(rows, key=repr)
    assert list(spool) == found
    spool.close()
    assert list(spool) == []


def test_a_full_disk_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch):
    real = sqlite3.connect

    def small(*args: Any, **options: Any) -> sqlite3.Connection:
        connection = real(*args, **options)
        connection.execute("PRAGMA max_page_count = 20")  # to SQLite, a full disk
        return connection

    monkeypatch.setattr(sqlite3, "connect", small)
    spool = SortedSpool(1, 0)

    with pytest.raises(StateError, match="full") as raised:
        spool.add((number, b"x" * 1000) for number in range(1000))
    assert "TMPDIR" in (raised.value.hint or "")
    spool.close()
