"""A source is read while nobody asks, and what it raises is raised where it is waited for."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from bayou.store.ahead import Ahead


def test_a_source_is_read_to_its_end_although_nobody_asks() -> None:
    read = threading.Event()

    def source() -> Iterator[int]:
        yield from range(3)
        read.set()

    found = Ahead(source())

    assert read.wait(30)
    assert list(found) == [0, 1, 2]


def test_what_came_before_a_failure_comes_before_it() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise ValueError("broken")

    found = iter(Ahead(source()))

    assert next(found) == 1
    with pytest.raises(ValueError, match="broken"):
        next(found)


def test_whoever_leaves_does_not_wait_for_a_source_that_never_ends() -> None:
    held = threading.Event()

    def source() -> Iterator[int]:
        held.wait()
        yield 1

    found = Ahead(source())
    found.leave()
    held.set()

    assert list(found) == [1]
