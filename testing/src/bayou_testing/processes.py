"""Server processes for tests: free ports, a log, and an end that comes for sure."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

# Below the range from which systems take the ports of outgoing connections: a server that is down for a moment must
# find its port free when it comes back.
_PORTS = range(20_000, 32_000)

# Runs in the child, which then becomes the server: same process id, and the kernel kills it when its parent dies.
_LAUNCHER = """
import ctypes, os, sys
parent, command = int(sys.argv[1]), sys.argv[2:]
if sys.platform == "linux":
    PR_SET_PDEATHSIG, SIGKILL = 1, 9
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL)
if os.getppid() == parent:
    os.execv(command[0], command)
"""


class ServerFailed(RuntimeError):
    """A test server did not start, or did not do what a test needs of it."""


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that no process listens on at this moment."""
    found: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise ServerFailed(f"{count} free ports could not be found")


class ServerProcess:
    """One running server in a process group of its own; on Linux it dies with the process that started it."""

    def __init__(self, command: Sequence[str], *, log: Path, cwd: Path, env: Mapping[str, str] | None = None) -> None:
        self._log = log
        full = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command]
        with log.open("ab") as output:
            self._process = (
                _spawner()
                .submit(
                    subprocess.Popen,
                    full,
                    cwd=cwd,
                    env={**os.environ, **(env or {})},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                .result()
            )
        self.pid = self._process.pid

    def alive(self) -> bool:
        return self._process.poll() is None

    def stop(self, grace: float) -> None:
        """Ask it to end, and end it if it has not done so in time."""
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(grace)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it at once (SIGKILL), and return when it is gone."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    def log_tail(self, lines: int = 20) -> str:
        """Return the last lines that it wrote, for an error."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    def _signal(self, number: int) -> None:
        if self.alive():
            os.killpg(self.pid, number)


@cache
def _spawner() -> ThreadPoolExecutor:
    """Return the one thread that starts servers and lives as long as the process.

    The kernel kills a child when the *thread* that started it ends; a server must not die with the thread of a test.
    """
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="bayou-spawner")
