"""Processes that methods start: run to their end, or ended together with all processes that they have started.

`run_process` makes a process the leader of a session and a process group, so one signal reaches every descendant that
has not left the group. A descendant that did leave it (a daemon, or a nested `bayou`, whose commands have groups of
their own) is found by a mark in its environment, where the system shows that (`/proc`).

`Excerpt` keeps the beginning and the end of an output that may be larger than memory; `RedactingForwarder` removes
secrets from what a process prints.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from bayou.core.errors import Cancelled, MethodFailed
from bayou.models.method_context import MethodContext

__all__ = ["Excerpt", "ProcessEnd", "run_process"]

GRACE_S = 2.0
"""From SIGTERM to SIGKILL: time to clean up, but less than a command has after a signal."""

VARIABLE = "BAYOU_OUTPUT_ID"
"""The variable with the mark: the ids of the outputs that a process works for, the innermost last."""

_PROC = Path("/proc")
_POLL_S = 0.02
_MAX_ROUNDS = 10
_CHUNK = 1 << 16
_TICK_S = 0.1
LINGER_S = 1.0
"""How long descendants may still print after a command has ended: `>(tee log)` ends just after its shell."""

HEAD = TAIL = 128 << 10


class ProcessEnd(Struct, frozen=True):
    """How a process ended. `why` says what was wrong, if anything; `exited` means by itself, with that code.

    After a signal the exit code is, as in a shell, 128 plus the signal's number.
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
) -> ProcessEnd:
    """Run a process in a session of its own, without input, and call `printed` with its `stdout` and `stderr`.

    However this ends, no process stays that it has started: after `timeout`, when `cancelled` is set (`Cancelled`), and
    when `printed` or `waiting`, which is called regularly, raises. Processes that it leaves in its group are ended too.
    `MethodFailed` if it cannot be started.
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


class Excerpt:
    """The first and the last bytes of an output, with a note in between of how much was left out."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._left_out = 0

    def add(self, data: bytes) -> None:
        room = HEAD - len(self._head)
        self._head += data[:room]
        self._tail += data[room:] if room < len(data) else b""
        beyond = len(self._tail) - TAIL
        if beyond > 0:
            del self._tail[:beyond]
            self._left_out += beyond

    def text(self) -> str:
        """Return the excerpt as text; bytes that are not UTF-8 show as \\x.. ."""
        if not self._left_out:
            return _text(self._head + self._tail)
        marker = f"\n[… {self._left_out:,} bytes left out: the log has them …]\n"
        return f"{_text(self._head)}{marker}{_text(self._tail)}"

    def last_line(self, longest: int) -> str:
        """Return the last line that is not blank, for a message of one line."""
        lines = _text(self._tail or self._head)[-4 * longest :].split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        return " ".join(last.split())[:longest]


class RedactingForwarder:
    """Forwards what a process prints (`stdout` or `stderr`), redacted; at the end also what was held back.

    V26: each stream is redacted by itself, and before anything else happens to it, so that shortening or mixing the
    streams cannot hide a secret from the redactor.
    """

    def __init__(self, work: MethodContext, forward: Callable[[str, bytes], None]) -> None:
        self._streams = {"stdout": work.redacting(), "stderr": work.redacting()}
        self._forward = forward

    def printed(self, stream: str, data: bytes) -> None:
        """Redact and forward what a process has printed."""
        if redacted := self._streams[stream].add(data):
            self._forward(stream, redacted)

    def __enter__(self) -> RedactingForwarder:
        return self

    def __exit__(self, *_: object) -> None:
        for name, stream in self._streams.items():
            if redacted := stream.close():
                self._forward(name, redacted)


def marked_environment(environment: dict[str, str], mark: str) -> dict[str, str]:
    """Return an environment with the mark added to the marks that it has."""
    outer = environment.get(VARIABLE)
    return {**environment, VARIABLE: f"{outer}:{mark}" if outer else mark}


def end_tree(process: subprocess.Popen[bytes], mark: str) -> None:
    """End a process and all processes with its mark: SIGTERM first, SIGKILL after the grace. Return when they are gone.

    SIGTERM does not go to what a nested `bayou` has started: that `bayou` ends its processes, and knows why.
    """
    _signal_group(process, signal.SIGTERM)
    _signal_marked(mark, signal.SIGTERM, process.pid)
    _wait(lambda: process.poll() is not None and not _group_is_alive(process) and not any(_marked(mark)))
    for _ in range(_MAX_ROUNDS):  # the next round finds a process that was forked between listing and signal
        _signal_group(process, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # a process that hangs in the kernel cannot be killed
            process.wait(GRACE_S)
        if not _signal_marked(mark, signal.SIGKILL, process.pid):
            return
        time.sleep(_POLL_S)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End the processes that a process, which has ended, left running in its group."""
    if _group_is_alive(process):
        _signal_group(process, signal.SIGTERM)
        _wait(lambda: not _group_is_alive(process))
        _signal_group(process, signal.SIGKILL)


def _wait(over: Callable[[], bool]) -> None:
    until = time.monotonic() + GRACE_S
    while not over() and time.monotonic() < until:
        time.sleep(_POLL_S)


def _group_is_alive(process: subprocess.Popen[bytes]) -> bool:
    """Return whether the group has members; the system does not reuse its number while it has."""
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # the last member runs as another user by now
        return False
    return True


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _signal_marked(mark: str, number: signal.Signals, leader: int) -> int:
    """Signal the processes with the mark, SIGKILL to all, others outside the group only; return how many there were."""
    gentle = number != signal.SIGKILL
    count = 0
    for pid in _marked(mark, innermost=gentle):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if not gentle or os.getpgid(pid) != leader:
                os.kill(pid, number)
                count += 1
    return count


def _marked(mark: str, *, innermost: bool = False) -> Iterator[int]:
    """Yield the processes with the mark (`innermost`: those whose last mark it is).

    A zombie has no environment, so it is not among them.
    """
    wanted = mark.encode()
    try:
        names = os.listdir(_PROC)
    except OSError:
        return  # this system has no /proc: only the group is known
    for name in names:
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                environment = (_PROC / name / "environ").read_bytes()
                start = environment.find(f"{VARIABLE}=".encode())
                marks = environment[start:].partition(b"\0")[0] if start >= 0 else b""
                if marks.endswith(wanted) if innermost else wanted in marks:
                    yield int(name)


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
    """Forward what is printed until the process has ended and its pipes are closed; return whether it timed out."""
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
    """Return the exit code of a process that has closed its pipes; wait a moment, since most have ended."""
    try:
        return process.wait(_TICK_S)
    except subprocess.TimeoutExpired:
        return None


def _drain(process: subprocess.Popen[bytes], printed: Callable[[str, bytes], None]) -> None:
    """Forward what an ended process has printed, without waiting for more."""
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


def _ended(code: int, limit: float | None, duration_s: float) -> ProcessEnd:
    killed = -code if code < 0 else None
    exit_code = 128 + killed if killed is not None else code
    if limit is not None:
        return ProcessEnd(exit_code, False, f"took longer than {limit:g} s, and was killed", duration_s)
    if killed is not None:
        return ProcessEnd(exit_code, False, f"was killed by {_signal_name(killed)}", duration_s)
    return ProcessEnd(exit_code, True, None if code == 0 else f"ended with exit code {code}", duration_s)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _text(data: bytes | bytearray) -> str:
    return data.decode(errors="backslashreplace")
