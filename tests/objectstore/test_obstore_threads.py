"""obstore's threads: as many as help, and nobody else's business."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import os
import sys
import time
from bayou.core.errors import NotFound
from bayou.objectstore import open_store
from bayou_testing.contract import payload

os.sched_getaffinity = lambda pid: set(range(6))
before = dict(os.environ)
store = open_store("memory://here")
for key in ("data/a", "data/b"):
    try:
        store.get(payload(key))
    except NotFound:
        pass
assert dict(os.environ) == before
def count():
    names = [open(f"/proc/self/task/{one}/comm").read() for one in os.listdir("/proc/self/task")]
    return sum(name.startswith("tokio") for name in names)
until = time.monotonic() + 20
while count() < int(sys.argv[1]) and time.monotonic() < until:
    time.sleep(0.01)  # each gives itself its name
time.sleep(0.1)
print(count())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
@pytest.mark.parametrize(("told", "threads"), [(None, 3), ("2", 2)])
def test_half_as_many_threads_as_cores_unless_somebody_said_otherwise(told: str | None, threads: int) -> None:
    env = {name: value for name, value in os.environ.items() if name != "TOKIO_WORKER_THREADS"}
    if told is not None:
        env["TOKIO_WORKER_THREADS"] = told
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(threads)], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == threads
