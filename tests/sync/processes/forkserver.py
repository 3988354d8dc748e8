"""A process that starts workers by fork, with everything imported already, and ends them on time.

It is the workers' parent, so a worker that it kills is the one that it started, ended or not.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import Self

import bayou
from tests.sync.processes.upkeep import KeeperOrders
from tests.sync.processes.worker import Orders

_ROOT = Path(__file__).parents[3]
_ORDERS: dict[str, type[Orders]] = {"worker": Orders, "keeper": KeeperOrders}


class ForkServer:
    """One at a time, a worker of its own."""

    def __init__(self) -> None:
        paths = os.pathsep.join([str(Path(bayou.__path__[0]).parent), str(_ROOT)])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.sync.processes.forkserver"],
            cwd=_ROOT,
            env={**os.environ, "PYTHONPATH": paths},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, orders: Orders, kill_after: float | None = None) -> bool:
        """Run a worker to its end, or kill it after so many seconds; return whether it was killed, by us or by its own
        hand. One that fails is an `AssertionError` with its words."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        kind = "keeper" if isinstance(orders, KeeperOrders) else "worker"
        self._process.stdin.write(json.dumps([kind, orders.document(), kill_after]) + "\n")
        self._process.stdin.flush()
        status, words = json.loads(self._process.stdout.readline())
        assert status in (0, -signal.SIGKILL), f"{orders.clone} failed:\n{words}"
        return bool(status)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def serve() -> None:
    """Start a worker for every line, and answer with how it ended."""
    for line in sys.stdin:
        kind, document, kill_after = json.loads(line)
        if document["point"] is not None:
            document["point"] = tuple(document["point"])
        ear, mouth = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(ear)
            _be_a_worker(_ORDERS[kind](**document), mouth)
        os.close(mouth)
        if kill_after is not None:
            time.sleep(kill_after)
            os.kill(child, signal.SIGKILL)  # nobody has waited for it yet: the number is still its own
        with os.fdopen(ear) as words:
            said = words.read()
        _, status = os.waitpid(child, 0)
        print(json.dumps([os.waitstatus_to_exitcode(status), said]), flush=True)


def _be_a_worker(orders: Orders, mouth: int) -> None:
    """Work, and leave without a word; or with what went wrong."""
    os.dup2(mouth, sys.stderr.fileno())
    try:
        orders.carry_out()
        os._exit(0)
    finally:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    serve()
