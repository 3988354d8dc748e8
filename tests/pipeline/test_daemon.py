"""The daemon that Python workers are forked from: it ends when it has been without one for a while."""

from __future__ import annotations

import subprocess
import sys

DAEMON = """
import os, signal, sys, time
from bayou.pipeline.daemon import end_when_lonely
end_when_lonely(0.5)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # as Spark's daemon does
if sys.argv[1:] == ["child"] and os.fork() == 0:
    sys.stdin.read()  # outlives its parent's patience, and must not be ended by its parent's timer
    print("the worker ended by itself", flush=True)
    os._exit(0)
print("ready", flush=True)
while True:
    time.sleep(60)
"""


def start(*args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", DAEMON, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_a_daemon_without_workers_ends():
    daemon = start()

    daemon.communicate()

    assert daemon.returncode == 0


def test_a_daemon_with_a_worker_stays_until_the_worker_is_gone():
    daemon = start("child")
    assert daemon.stdout.readline() == "ready\n"
    try:
        daemon.wait(timeout=2.5)  # five times its patience
    except subprocess.TimeoutExpired:
        ended = False
    else:
        ended = True

    out, _ = daemon.communicate()

    assert not ended
    assert out == "the worker ended by itself\n"
    assert daemon.returncode == 0
