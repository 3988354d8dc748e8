"""Real processes: stopped, killed, with wrong clocks, forty at once."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from bayou.core.errors import LeaseTimeout
from bayou.leases import STORE, model_key
from tests.leases.children import Child, holder
from tests.leases.conftest import Place

KEY = model_key("@org/name/part", "0c7a")
TTL = 4.0
"""Long enough that a holder on a busy machine renews in time."""


AN_HOUR_SLOW = """
import time
real = time.time_ns
time.time_ns = lambda: real() - 3600 * 10**9
"""


def test_f074_a_holder_that_was_stopped_past_its_ttl_does_not_come_back(shared: Place) -> None:
    child, nonce = holder(shared, TTL, KEY)
    with child:
        assert child.ask("?") == "held"
        child.send(signal.SIGSTOP)
        child.wait_stopped()
        with shared.leases(ttl_s=30).acquire(KEY, wait_s=TTL + 10) as lease:
            assert lease.nonce != nonce
            child.send(signal.SIGCONT)
            assert child.ask("?").startswith("lost: "), "it learns of it before its next write"
            assert child.ask("end") == "ended"
            lease.check()
            assert [info.nonce for info in shared.leases().list()] == [lease.nonce]


def test_f093_the_lease_of_a_killed_holder_is_taken_over_within_its_ttl_and_ten_seconds(place: Place) -> None:
    child, nonce = holder(place, TTL, KEY)
    with child:
        child.kill()
        with place.leases().acquire(KEY, wait_s=TTL + 10) as lease:
            assert lease.nonce != nonce
            lease.check()


def test_f093_a_holder_whose_pid_nobody_knows_here_keeps_its_lease_while_it_renews(directory: Place) -> None:
    elsewhere = "import os, socket\nos.getpid = lambda: 4194304 + 1\nsocket.gethostname = lambda: 'elsewhere'\n"
    child, nonce = holder(directory, TTL, KEY, before=elsewhere)
    with child:
        with pytest.raises(LeaseTimeout, match="on elsewhere"):
            directory.leases().acquire(KEY, wait_s=1.5 * TTL)
        assert child.ask("?") == "held"
        assert [info.nonce for info in directory.leases().list()] == [nonce]


@pytest.mark.s3
def test_clocks_an_hour_apart_steal_nothing(s3: Place) -> None:
    child, nonce = holder(s3, TTL, KEY, before=AN_HOUR_SLOW)
    with child:
        with pytest.raises(LeaseTimeout):
            s3.leases().acquire(KEY, wait_s=1.5 * TTL)
        assert child.ask("?") == "held"
        assert [info.nonce for info in s3.leases().list()] == [nonce]


def test_f082_a_dead_holders_store_lease_is_taken_over_once_and_gone(shared: Place) -> None:
    child, _ = holder(shared, TTL, STORE)
    with child:
        with pytest.raises(LeaseTimeout, match="store is held by"):
            shared.leases().acquire(KEY, wait_s=0)
        child.kill()
        with shared.leases().acquire(KEY, wait_s=TTL + 10) as lease:
            lease.check()
            assert [info.key for info in shared.leases().list()] == [KEY]


def test_store_takes_over_from_a_writer_that_was_killed(directory: Place) -> None:
    child, _ = holder(directory, TTL, KEY)
    with child:
        child.kill()
        with directory.leases().acquire(STORE, wait_s=TTL + 10):
            assert [info.key for info in directory.leases().list()] == [STORE]


CONTENDER = """
from concurrent.futures import ThreadPoolExecutor
log, threads = sys.argv[4], int(sys.argv[5])

def want(number):
    name = f"{os.getpid()}-{number}"
    with leases().acquire(sys.argv[3], wait_s=100) as lease:
        out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(out, f"in {name}\\n".encode())
        lease.check()
        os.write(out, f"out {name}\\n".encode())
        os.close(out)

say("ready")
hear()
with ThreadPoolExecutor(threads) as pool:
    list(pool.map(want, range(threads)))
say("done")
"""


def test_forty_contenders_each_get_it_once(shared: Place, tmp_path: Path) -> None:
    log, processes, threads = tmp_path / "log", 4, 10
    children = [Child(CONTENDER, shared, 30.0, KEY, log, threads) for _ in range(processes)]
    for child in children:
        assert child.hear() == "ready"
    for child in children:
        assert child.end() == 0
    lines = log.read_text().splitlines()
    entered = lines[0::2]
    assert len(entered) == len(set(entered)) == processes * threads
    assert [line.replace("in ", "out ") for line in entered] == lines[1::2], "never two at once"
