"""Real processes that take leases, are stopped, and die on cue."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import bayou
from tests.leases.conftest import Place

_PRELUDE = """
import json, os, sys, time
from pathlib import Path
from bayou.core.errors import BayouError, LeaseLost, LeaseTimeout
from bayou.leases import STORE, Leases, LeaseGroup, environment, model_key
from bayou.leases.acquire import Backoff
from bayou.objectstore import open_store
from bayou.objectstore.open import open_directory

place = json.loads(sys.argv[1])
TTL = float(sys.argv[2])
SWIFT = Backoff(base_s=0.02, cap_s=0.1)

def leases(**kwargs):
    store = open_directory(Path(place["directory"])) if place["directory"] else open_store(
        place["url"], options=place["options"])
    return Leases(store, ttl_s=TTL, backoff=SWIFT, **kwargs)

def say(*words):
    print(*words, flush=True)

def hear():
    return sys.stdin.readline().strip()
"""

HOLDER = """
lease = leases().acquire(sys.argv[3], wait_s=30)
say(lease.nonce)
while (word := hear()) not in ("", "end"):
    try:
        lease.check()
        say("held")
    except LeaseLost as error:
        say(f"lost: {error.message}")
lease.release()
say("ended")
"""


class Child:
    """A process that talks by lines."""

    def __init__(
        self, body: str, place: Place, ttl_s: float, *arguments: object, env: Mapping[str, str] | None = None
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PRELUDE + body, place.spec, str(ttl_s), *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": str(Path(bayou.__path__[0]).parent), **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.pid = self._process.pid

    def hear(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def ask(self, word: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        return self.hear()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait_stopped(self) -> None:
        """Return when the kernel has stopped it."""
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def end(self) -> int:
        """Close what it reads from, and wait for its end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        code = self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self._process.wait(60)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None and not stream.closed:
                stream.close()


def holder(
    place: Place, ttl_s: float, key: str, *, env: Mapping[str, str] | None = None, before: str = ""
) -> tuple[Child, str]:
    """Start a process that holds a lease; return it, and its nonce. It answers each line with how the lease stands."""
    child = Child(before + HOLDER, place, ttl_s, key, env=env)
    nonce = child.hear()
    assert nonce, "the child could not take the lease"
    return child, nonce


def document(text: str) -> object:
    return json.loads(text)
