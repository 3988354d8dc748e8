"""Ending a process together with all that it has started.

It is the leader of a session, and a process group, of its own, so one signal reaches whoever has not left the group.
Whoever did leave (a daemon, a nested `bayou`, whose commands have groups of their own) is known by a mark in its
environment, where the system shows it (`/proc`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

GRACE_S = 2.0
"""From SIGTERM to SIGKILL: time to clean up, and short enough to be over before a signalled command must end."""

VARIABLE = "BAYOU_OUTPUT_ID"
"""The mark: the ids of the outputs that a process works for, the innermost last."""

_PROC = Path("/proc")
_LOOK_S = 0.02
_ROUNDS = 10


def marked_environment(environment: dict[str, str], mark: str) -> dict[str, str]:
    """Return an environment with the mark in it, beside those that are there already."""
    outer = environment.get(VARIABLE)
    return {**environment, VARIABLE: f"{outer}:{mark}" if outer else mark}


def end_tree(process: subprocess.Popen[bytes], mark: str) -> None:
    """End a process and whatever bears its mark: asked first, killed after the grace. Returns when they are gone.

    What a nested `bayou` has started is for that one to ask: it knows that this is no failure of theirs.
    """
    _signal_group(process, signal.SIGTERM)
    _signal_marked(mark, signal.SIGTERM, process.pid)
    _wait(lambda: process.poll() is not None and not _group_is_alive(process) and not any(_marked(mark)))
    for _ in range(_ROUNDS):  # whoever was forked between a look and a signal is found by the next look
        _signal_group(process, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # one that hangs in the kernel is left to it
            process.wait(GRACE_S)
        if not _signal_marked(mark, signal.SIGKILL, process.pid):
            return
        time.sleep(_LOOK_S)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End what a process, which has ended itself, left running in its group."""
    if _group_is_alive(process):
        _signal_group(process, signal.SIGTERM)
        _wait(lambda: not _group_is_alive(process))
        _signal_group(process, signal.SIGKILL)


def _wait(over: Callable[[], bool]) -> None:
    until = time.monotonic() + GRACE_S
    while not over() and time.monotonic() < until:
        time.sleep(_LOOK_S)


def _group_is_alive(process: subprocess.Popen[bytes]) -> bool:
    """Whether the group has members; its number is not used again as long as it has."""
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's by now: the last of ours became another user
        return False
    return True


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _signal_marked(mark: str, number: signal.Signals, leader: int) -> int:
    """Signal whoever bears the mark: to be killed all, to be asked those out of the group; say how many there were."""
    asked = number != signal.SIGKILL
    count = 0
    for pid in _marked(mark, innermost=asked):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if not asked or os.getpgid(pid) != leader:
                os.kill(pid, number)
                count += 1
    return count


def _marked(mark: str, *, innermost: bool = False) -> Iterator[int]:
    """Yield the processes that bear the mark (`innermost`: and none inside of it).

    A process that has ended, but was not waited for, shows none.
    """
    wanted = mark.encode()
    try:
        names = os.listdir(_PROC)
    except OSError:
        return  # no such thing on this system: the group has to do
    for name in names:
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                environment = (_PROC / name / "environ").read_bytes()
                start = environment.find(f"{VARIABLE}=".encode())
                marks = environment[start:].partition(b"\0")[0] if start >= 0 else b""
                if marks.endswith(wanted) if innermost else wanted in marks:
                    yield int(name)
