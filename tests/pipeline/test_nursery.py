"""Daemons forked from a process that has loaded everything: each is nobody's but its session's, and none outlives its
server."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bayou.config import SparkConfig
from bayou.core.file_lock import FileLock
from bayou.pipeline.server.place import Place

FOUND = """
import os, sys, time
from pathlib import Path
from bayou.pipeline import nursery
from bayou.pipeline.server.place import Place

def become():
    print(os.getpid(), os.getppid(), os.environ.get("WHO"), "FIRST" in os.environ, flush=True)
    sys.stdin.read()
    raise SystemExit(3)

if len(sys.argv) > 2:
    nursery.code = lambda: {"code": Path(sys.argv[2]).read_text()}
nursery.found(Place(Path(sys.argv[1])), become)
print("founded", flush=True)
"""

DELEGATE = """
import sys
from pathlib import Path
from bayou.pipeline import nursery
from bayou.pipeline.server.place import Place
delegated = nursery.delegate(Place(Path(sys.argv[1])))
sys.exit(0 if delegated else 7)
"""


@pytest.fixture
def place() -> Iterator[Place]:
    """The folder of a server; its name is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="bayou-") as folder:
        yield Place(Path(folder))


@pytest.fixture
def alive(place: Place) -> Iterator[FileLock]:
    """What a server holds for as long as it lives."""
    lock = FileLock(place.alive)
    assert lock.acquire()
    yield lock
    lock.release()


def found(place: Place, *args: object) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FOUND, str(place.root), *map(str, args)],
        env={**os.environ, "FIRST": "a word of the first caller's"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,  # the nursery holds nothing of its founder's open
    )
    assert done.stdout == "founded\n"
    wait_for(place.nursery.exists)


def test_whoever_founds_a_nursery_is_not_its_parent(place: Place, alive: FileLock) -> None:
    """A daemon ends once it has no child, and a nursery may stay for days."""
    look = """
try:
    os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
except ChildProcessError:
    print("alone", flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", FOUND + look, str(place.root)], stdout=subprocess.PIPE, text=True, check=True, timeout=60
    )
    assert done.stdout == "founded\nalone\n"
    wait_for(place.nursery.exists)


def delegate(place: Place, who: str = "me") -> subprocess.Popen[str]:
    environ = {name: value for name, value in os.environ.items() if name != "FIRST"} | {"WHO": who}
    return subprocess.Popen(
        [sys.executable, "-c", DELEGATE, str(place.root)],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def wait_for(true: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_there(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def told(asked: subprocess.Popen[str]) -> tuple[int, int, str, str]:
    """Return what a daemon says of itself: its process, that of the nursery, and what it finds in its environment."""
    assert asked.stdout is not None
    pid, parent, who, first = asked.stdout.readline().split()
    return int(pid), int(parent), who, first


def test_each_daemon_is_a_process_of_its_own_with_its_caller_s_environment_and_pipes(place, alive):
    found(place)
    one, two = delegate(place, "one"), delegate(place, "two")

    (first, nursery, who, _), (second, same, other, leaked) = told(one), told(two)

    assert (who, other, leaked) == ("one", "two", "False")
    assert nursery == same
    assert len({first, second, nursery, one.pid, two.pid}) == 5
    for asked in (one, two):
        assert asked.poll() is None
        asked.communicate()  # Spark closes its side: that is how a daemon is told to end
        assert asked.returncode == 0
    wait_for(lambda: not is_there(first) and not is_there(second))
    assert is_there(nursery)


def test_a_signal_for_the_one_that_spark_knows_reaches_the_daemon(place, alive):
    found(place)
    asked = delegate(place)
    daemon, *_ = told(asked)

    asked.send_signal(signal.SIGTERM)

    asked.wait(30)
    wait_for(lambda: not is_there(daemon))


def test_a_signal_that_comes_before_the_daemon_is_known_reaches_it_too(place):
    """The nursery has forked it, and its answer is on its way."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(place.nursery))
        listening.listen(1)
        daemon = subprocess.Popen(["sleep", "600"])
        try:
            asked = delegate(place)
            connection, _ = listening.accept()
            with connection:
                head, given, _, _ = socket.recv_fds(connection, 4, 3)
                for descriptor in given:
                    os.close(descriptor)
                connection.recv(struct.unpack("!I", head)[0], socket.MSG_WAITALL)
                asked.send_signal(signal.SIGTERM)
                time.sleep(0.2)  # whoever does not wait with it has died by now
                connection.sendall(struct.pack("!I", daemon.pid))
                assert daemon.wait(30) == -signal.SIGTERM
            asked.communicate(timeout=30)
            assert asked.returncode == 0
        finally:
            daemon.kill()
            daemon.wait()


def test_a_nursery_ends_with_its_server(place, alive):
    found(place)
    asked = delegate(place)
    _, nursery, *_ = told(asked)
    asked.communicate()

    alive.release()

    wait_for(lambda: not is_there(nursery))


def test_where_there_is_no_nursery_or_a_dead_one_nothing_is_delegated(place, alive):
    assert delegate(place).wait(30) == 7
    found(place)
    asked = delegate(place)
    _, nursery, *_ = told(asked)
    asked.communicate()
    os.kill(nursery, signal.SIGKILL)
    wait_for(lambda: not is_there(nursery))

    assert delegate(place).wait(30) == 7

    found(place)
    again = delegate(place)
    assert told(again)[1] != nursery
    again.communicate()


def test_of_two_nurseries_the_later_one_stays(place, alive):
    found(place)
    asked = delegate(place)
    _, first, *_ = told(asked)
    asked.communicate()
    found(place)
    wait_for(lambda: not is_there(first))

    asked = delegate(place)

    assert told(asked)[1] != first
    asked.communicate()


def test_a_nursery_whose_code_has_changed_forks_nobody(place, alive, tmp_path):
    code = tmp_path / "code"
    code.write_text("1")
    found(place, code)
    asked = delegate(place)
    _, nursery, *_ = told(asked)
    asked.communicate()

    code.write_text("2")

    assert delegate(place).wait(30) == 7
    wait_for(lambda: not is_there(nursery))
    assert not place.nursery.exists()


def test_a_place_whose_name_is_too_long_for_a_socket_has_none(tmp_path):
    from bayou.pipeline import nursery

    place = Place(tmp_path / ("long" * 30))
    place.root.mkdir()

    nursery.found(place, lambda: None)

    assert list(place.root.iterdir()) == []
    assert not nursery.delegate(place)


def workers(spark) -> set[tuple[int, int]]:
    """Return the processes that a session's tasks run in, each with its daemon."""
    import pyarrow

    def who(batches):
        for _ in batches:
            pass
        yield pyarrow.RecordBatch.from_pydict({"pid": [os.getpid()], "parent": [os.getppid()]})

    return {tuple(row) for row in spark.range(0, 8, 1, 8).mapInArrow(who, "pid long, parent long").collect()}


@pytest.mark.spark
def test_sessions_share_a_nursery_and_no_daemon_and_do_without_one_that_was_killed(warm):
    from bayou.pipeline.session import spark_session

    def nursery_of(daemon: int) -> int:
        return int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])

    with spark_session(SparkConfig()) as one, spark_session(SparkConfig()) as two:
        mine, theirs = workers(one), workers(two)
        (first,), (second,) = {daemon for _, daemon in mine}, {daemon for _, daemon in theirs}
        assert first != second
        assert not {pid for pid, _ in mine} & {pid for pid, _ in theirs}
        nursery = nursery_of(second)
        assert nursery_of(first) == nursery
        os.kill(nursery, signal.SIGKILL)
        wait_for(lambda: not is_there(nursery))
        assert workers(two) == theirs

        with spark_session(SparkConfig()) as three:
            assert not {daemon for _, daemon in workers(three)} & {first, second}


@pytest.mark.spark
def test_tasks_are_spoken_to_over_sockets_that_only_this_user_can_reach(warm):
    """Over TCP each of them waits for 40 ms."""
    from bayou.pipeline.session import spark_session

    with spark_session(SparkConfig()) as spark:
        assert spark.conf.get("spark.python.unix.domain.socket.enabled") == "true"
        assert workers(spark)
        assert list(warm.place.work.glob(".*.sock"))
        assert warm.place.root.stat().st_mode & 0o077 == 0
