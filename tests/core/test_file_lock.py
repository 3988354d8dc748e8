"""Locks between processes and threads."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bayou.core.file_lock import FileLock, is_locked, lock_descriptor

HOLD = """
import sys
from pathlib import Path
from bayou.core.file_lock import FileLock
lock = FileLock(Path(sys.argv[1]))
assert lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


@pytest.fixture
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_lock_excludes_another_one_until_it_is_released(path: Path) -> None:
    one, other = FileLock(path), FileLock(path)
    assert one.acquire()
    assert not other.acquire()
    one.release()
    one.release()
    assert other.acquire()
    other.release()


def test_shared_locks_exclude_only_an_exclusive_one(path: Path) -> None:
    readers, writer = [FileLock(path), FileLock(path)], FileLock(path)
    assert all(reader.acquire(shared=True) for reader in readers)
    assert not writer.acquire(timeout=0.02)
    for reader in readers:
        reader.release()
    assert writer.acquire()
    assert not readers[0].acquire(shared=True)
    writer.release()


def test_a_waiting_lock_gets_its_turn(path: Path) -> None:
    one, other = FileLock(path), FileLock(path)
    assert one.acquire()
    releasing = threading.Timer(0.05, one.release)
    releasing.start()
    assert other.acquire(timeout=30)
    releasing.join()
    other.release()


def test_the_wait_ends_at_its_timeout(path: Path, holder: subprocess.Popen[str]) -> None:
    assert holder.poll() is None
    begin = time.monotonic()
    assert not FileLock(path).acquire(timeout=0.05)
    assert time.monotonic() - begin >= 0.05


def test_the_kernel_releases_the_lock_of_a_killed_process(path: Path, holder: subprocess.Popen[str]) -> None:
    assert is_locked(path)
    holder.kill()
    holder.wait()
    assert not is_locked(path)
    lock = FileLock(path)
    assert lock.acquire()
    lock.release()


def test_the_probe_makes_no_file_and_ignores_shared_holders(path: Path) -> None:
    assert not is_locked(path)
    assert not path.exists()
    lock = FileLock(path)
    assert lock.acquire(shared=True)
    assert not is_locked(path)
    lock.release()


def test_the_file_is_private_and_no_program_that_is_started_inherits_it(path: Path) -> None:
    lock = FileLock(path)
    assert lock.acquire()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not os.get_inheritable(lock.descriptor)
    lock.release()


def test_a_link_in_the_place_of_the_lock_is_not_followed(path: Path) -> None:
    path.symlink_to("elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        FileLock(path).acquire()
    assert not (path.parent / "elsewhere").exists()


def test_a_directory_can_be_locked_by_its_descriptor(tmp_path: Path) -> None:
    one, other = (os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY) for _ in range(2))
    try:
        assert lock_descriptor(one, timeout=None)
        assert not lock_descriptor(other)
    finally:
        os.close(one)
    try:
        assert lock_descriptor(other, timeout=1)
    finally:
        os.close(other)
