"""Running a process to its end."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from bayou.core.errors import Cancelled, MethodFailed
from bayou.model.process.tree import end_group, end_tree, marked_environment

_CHUNK = 1 << 16
_TICK_S = 0.1
LINGER_S = 1.0
"""How long what a command left behind may still say something: `>(tee log)` ends a moment after its shell."""


class Ended(Struct, frozen=True):
    """How a process ended. `why` says what was wrong with that, if anything; `exited`: by itself, with that code.

    The exit code of one that a signal ended is that of a shell: 128 and the signal's number.
    """

    exit_code: int
    exited: bool
    why: str | None
    duration_s: float


def run_process(
    arguments: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    mark: str,
    timeout: float | None,
    cancelled: threading.Event,
    printed: Callable[[str, bytes], None],
    waiting: Callable[[], None],
) -> Ended:
    """Run a process in a session of its own, with no input, and hand on what it prints (`stdout` or `stderr`).

    However this ends, nothing stays that it has started: after `timeout`, when `cancelled` is set (`Cancelled`), and
    when `printed` or `waiting`, which is called now and then, raises. What it leaves in its group when it ends is ended
    too. `MethodFailed` if it cannot be started.
    """
    begun = time.monotonic()
    process = _start(arguments, cwd, marked_environment(dict(environment), mark))
    try:
        timed_out = _follow(process, begun, timeout, cancelled, printed, waiting)
        if timed_out or cancelled.is_set():
            end_tree(process, mark)
            _drain(process, printed)
        else:
            process.wait()
            end_group(process)
    except BaseException:
        end_tree(process, mark)
        raise
    finally:
        _close(process)
    if cancelled.is_set():
        raise Cancelled("cancelled")
    code = -signal.SIGKILL if process.returncode is None else process.returncode
    return _ended(code, timeout if timed_out else None, time.monotonic() - begun)


def _start(arguments: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            arguments,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        what = f" ({error.filename})" if error.filename else ""
        raise MethodFailed(f"the command cannot be started: {os.strerror(error.errno or 0)}{what}") from None
    except ValueError as error:  # a NUL in it
        raise MethodFailed(f"the command cannot be started: {error}") from None


def _follow(
    process: subprocess.Popen[bytes],
    begun: float,
    timeout: float | None,
    cancelled: threading.Event,
    printed: Callable[[str, bytes], None],
    waiting: Callable[[], None],
) -> bool:
    """Hand on what is printed until the process has ended and said all; say whether its time was over before."""
    left: float | None = None
    with selectors.DefaultSelector() as pipes:
        for name, pipe in (("stdout", process.stdout), ("stderr", process.stderr)):
            assert pipe is not None  # both were asked for
            pipes.register(pipe, selectors.EVENT_READ, name)
        while pipes.get_map() or left is None:
            for key, _ in pipes.select(_TICK_S):
                data = os.read(key.fd, _CHUNK)
                if data:
                    printed(key.data, data)
                else:
                    pipes.unregister(key.fileobj)
            waiting()
            now = time.monotonic()
            if cancelled.is_set():
                return False
            if left is None and timeout is not None and now - begun >= timeout:
                return True
            if left is None and (process.poll() if pipes.get_map() else _reap(process)) is not None:
                left = now + LINGER_S
            if left is not None and now >= left:
                break
    return False


def _reap(process: subprocess.Popen[bytes]) -> int | None:
    """Look whether a process that has nothing more to say has ended; wait a moment, since most have."""
    try:
        return process.wait(_TICK_S)
    except subprocess.TimeoutExpired:
        return None


def _drain(process: subprocess.Popen[bytes], printed: Callable[[str, bytes], None]) -> None:
    """Hand on the last words of a process that was ended, without waiting for more."""
    for name, pipe in (("stdout", process.stdout), ("stderr", process.stderr)):
        assert pipe is not None  # both were asked for
        os.set_blocking(pipe.fileno(), False)
        with contextlib.suppress(BlockingIOError):
            while data := os.read(pipe.fileno(), _CHUNK):
                printed(name, data)


def _close(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def _ended(code: int, limit: float | None, duration_s: float) -> Ended:
    killed = -code if code < 0 else None
    exit_code = 128 + killed if killed is not None else code
    if limit is not None:
        return Ended(exit_code, False, f"took longer than {limit:g} s, and was killed", duration_s)
    if killed is not None:
        return Ended(exit_code, False, f"was killed by {_signal_name(killed)}", duration_s)
    return Ended(exit_code, True, None if code == 0 else f"ended with exit code {code}", duration_s)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
