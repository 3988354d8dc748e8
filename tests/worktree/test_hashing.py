"""Hashing a file that may change under the hand (F038, V6)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayou.core.deadline import Deadline
from bayou.core.errors import Cancelled, ContentChanged, PathRefused
from bayou.worktree.hashing import Content, FileStat, read_content

SECOND = 1_000_000_000


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "file"


@pytest.fixture
def while_reading(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], None]], None]:
    """Let something happen after each read; it is told how many there were."""

    def arrange(happen: Callable[[int], None]) -> None:
        real, reads = os.read, 0

        def read(descriptor: int, size: int) -> bytes:
            nonlocal reads
            data = real(descriptor, size)
            reads += 1
            happen(reads)
            return data

        monkeypatch.setattr(os, "read", read)

    return arrange


@pytest.mark.parametrize("size", [0, 1, 5000, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3_000_000])
def test_a_quiet_file_is_hashed_whole(file: Path, size: int) -> None:
    data = os.urandom(size)
    file.write_bytes(data)
    assert read_content(file) == Content(hashlib.sha256(data).digest(), size, FileStat.of(os.stat(file)))


def test_a_file_that_grows_gives_what_it_had_at_the_start(
    file: Path, while_reading: Callable[[Callable[[int], None]], None]
) -> None:
    start = os.urandom(2_500_000)
    file.write_bytes(start)
    before = FileStat.of(os.stat(file))

    def grow(_: int) -> None:
        with open(file, "ab") as more:
            more.write(b"more")

    while_reading(grow)
    content = read_content(file)
    assert (content.sha256, content.size) == (hashlib.sha256(start).digest(), len(start))
    assert content.stat == before
    assert content.stat != FileStat.of(os.stat(file))  # a later reader sees that there is more


def test_a_file_that_is_rewritten_once_is_read_again(
    file: Path, while_reading: Callable[[Callable[[int], None]], None]
) -> None:
    file.write_bytes(b"a" * 2_000_000)

    def rewrite(reads: int) -> None:
        if reads == 1:
            file.write_bytes(b"b" * 2_000_000)
            os.utime(file, ns=(SECOND, SECOND))

    while_reading(rewrite)
    assert read_content(file).sha256 == hashlib.sha256(b"b" * 2_000_000).digest()


def test_a_file_that_is_replaced_is_read_again(
    file: Path, while_reading: Callable[[Callable[[int], None]], None]
) -> None:
    file.write_bytes(b"a" * 100)
    os.utime(file, ns=(SECOND, SECOND))

    def replace(reads: int) -> None:
        if reads == 1:
            new = file.with_name("new")
            new.write_bytes(b"b" * 100)
            os.utime(new, ns=(SECOND, SECOND))
            os.replace(new, file)

    while_reading(replace)
    content = read_content(file)
    assert content.stat == FileStat.of(os.stat(file))
    assert content.sha256 == hashlib.sha256(b"b" * 100).digest()


def test_a_file_that_shrinks_is_read_again(file: Path, while_reading: Callable[[Callable[[int], None]], None]) -> None:
    file.write_bytes(b"a" * 3_000_000)

    def shrink(reads: int) -> None:
        if reads == 1:
            os.truncate(file, 10)

    while_reading(shrink)
    assert read_content(file).sha256 == hashlib.sha256(b"a" * 10).digest()


def test_a_file_that_never_rests_is_an_error(
    file: Path, while_reading: Callable[[Callable[[int], None]], None]
) -> None:
    file.write_bytes(b"a" * 100)
    while_reading(lambda reads: os.utime(file, ns=(reads, reads)))
    with pytest.raises(ContentChanged) as caught:
        read_content(file)
    assert caught.value.hint is not None


def test_what_is_no_file_is_refused_without_waiting_for_it(tmp_path: Path, file: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_content(file)
    os.mkfifo(file)
    with pytest.raises(PathRefused, match="a FIFO"):
        read_content(file)
    with pytest.raises(PathRefused, match="a directory"):
        read_content(tmp_path)


def test_hashing_stops_when_it_is_told_to(file: Path) -> None:
    # V12
    file.write_bytes(b"x" * 100)
    deadline = Deadline.after(60)
    assert read_content(file, deadline).size == 100
    deadline.cancel()
    with pytest.raises(Cancelled):
        read_content(file, deadline)


NOW = 1_700_000_000 * SECOND


@pytest.mark.parametrize(
    ("mtime", "ctime", "settled"),
    [
        (NOW - 10 * SECOND, NOW - 10 * SECOND, True),
        (NOW - 2 * SECOND, NOW - 2 * SECOND, False),  # FAT: the same two seconds
        (NOW - 1, NOW - 1, False),
        (NOW, NOW, False),
        (NOW - 5_000_000, NOW - 1_000_000, True),  # written, synced, renamed: the clock has moved on since the write
        (NOW - 10 * SECOND, NOW, True),
        (NOW + 5 * SECOND, NOW - 10 * SECOND, False),  # a date in the future is met again one day
        (NOW - 10 * SECOND, NOW + 5 * SECOND, False),  # the clock that stamps files is not ours
    ],
)
def test_a_stat_is_settled_when_every_later_write_must_change_it(mtime: int, ctime: int, settled: bool) -> None:
    assert FileStat(1, mtime, ctime, 1).settled(NOW) is settled


@given(
    times=st.lists(st.integers(0, 8 * SECOND), min_size=3, max_size=3).map(sorted),
    renamed=st.booleans(),
    step=st.sampled_from([1, 1_000, 4_000_000, 10_000_000, SECOND, 2 * SECOND]),
)
def test_no_write_after_a_settled_stat_hides(times: list[int], renamed: bool, step: int) -> None:
    """A file system whose clock moves in steps: write, perhaps rename, look; then write the same size again."""
    written, moved, again = (NOW + time for time in times)
    looked = moved

    def stamp(time: int) -> int:
        return time // step * step

    first = FileStat(1, stamp(written), stamp(moved if renamed else written), 1)
    second = FileStat(1, stamp(again), stamp(again), 1)
    if first.settled(looked):
        assert first != second


def test_any_difference_makes_stats_differ() -> None:
    stat = FileStat(1, 2, 3, 4)
    assert stat == FileStat(1, 2, 3, 4)
    for other in (FileStat(0, 2, 3, 4), FileStat(1, 0, 3, 4), FileStat(1, 2, 0, 4), FileStat(1, 2, 3, 0)):
        assert stat != other
