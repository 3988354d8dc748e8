"""Processes that outlive the command that starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

# Forks in a process that has no threads; what is started is nobody's child, so nobody has to wait for its end.
_START = """
import os, sys
log, command = sys.argv[1], sys.argv[2:]
pid = os.fork()
if pid:
    print(pid)
    sys.exit()
os.setsid()
nowhere, out = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
os.dup2(nowhere, 0), os.dup2(out, 1), os.dup2(out, 2)
try:
    os.execv(command[0], command)
except OSError as error:
    print(f"{command[0]}: {error.strerror}", file=sys.stderr)
    os._exit(127)
"""


def start_detached(
    command: Sequence[str], *, cwd: Path, log: Path, env: Mapping[str, str], inherit: Sequence[int] = ()
) -> int:
    """Start a process in a session of its own, away from this terminal; return its id. `log` gets what it prints."""
    started = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _START, str(log), *command],
        cwd=cwd,
        env=dict(env),
        pass_fds=inherit,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    return int(started.stdout)


def watch_environment() -> dict[str, str]:
    """Return the little that a watcher needs."""
    return {name: os.environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH") if name in os.environ}
