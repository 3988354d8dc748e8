"""Processor time of servers that no command waits for."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from _cpu import Meter, Process, Tally, processes, tree_of


def process(pid: int, cpu: float, *, parent: int = 1, started: int = 7) -> Process:
    return Process(pid, parent, started, cpu)


def test_what_a_process_used_before_does_not_count_and_what_an_ended_one_used_does():
    tally = Tally([process(10, 30.0), process(11, 5.0)])
    tally.look([process(10, 31.0), process(11, 5.5), process(12, 2.0)])
    tally.look([process(10, 32.0)])  # the other two have ended

    assert tally.seconds == 2.0 + 0.5 + 2.0


def test_another_process_of_the_same_id_begins_at_nothing():
    tally = Tally([process(10, 30.0, started=7)])
    tally.look([process(10, 1.0, started=9)])

    assert tally.seconds == 1.0


def test_a_tree_has_descendants_and_no_others():
    known = {one.pid: one for one in (process(10, 0.0), process(11, 0.0, parent=10), process(12, 0.0, parent=11))}
    known |= {20: process(20, 0.0)}

    assert {one.pid for one in tree_of([10, 99], known)} == {10, 11, 12}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of all processes")
def test_a_process_that_works_meanwhile_is_measured():
    work = "print('ready', flush=True); input(); sum(range(10_000_000)); print('done', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", work], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        with Meter(lambda: [child.pid]) as meter:
            child.stdin.write("\n")
            child.stdin.flush()
            assert child.stdout.readline() == "done\n"
        child.communicate("\n")

    assert meter.seconds > 0
    assert processes()[os.getpid()].parent == os.getppid()


def test_without_a_server_there_is_nothing_to_measure():
    with Meter(list) as meter:
        pass

    assert meter.seconds == 0
