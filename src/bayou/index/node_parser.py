"""Parse nodes of a store in a child process, which a hostile node may crash (V25).

The Parquet parser ends its whole process on some bytes and takes any amount of memory on others; a seal does not help
against a malicious writer. The child (`index.node_parser_child`) has limits for memory and time, has no credential, and
answers with plain columns in JSON. If the child dies, hangs or answers nonsense, the node counts as damaged, and the
next node gets a new child. One child is enough: this process spends as long on an answer as the child does.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from bayou.core import limits
from bayou.core.errors import ParserFailed

_MESSAGE = struct.Struct("<IB")
_COLUMNS = 0
_MAIN = "import sys; sys.path[:] = sys.argv[1:]; from bayou.index.node_parser_child import main; main()"
_PIPE_BYTES = 1 << 20


class Unparsable(ValueError):
    """A node that the child could not parse; the message says why, in one line."""


def prepare() -> None:
    """Start the child, if there is none, without waiting for it: its imports run while a node is fetched."""
    if _state.child is None and _state.lock.acquire(blocking=False):
        try:
            _state.child = _state.child or _Child()
        finally:
            _state.lock.release()


def parse(data: bytes, level: int) -> list[list[Any]]:
    """Return the columns of a node, in the order of its schema; hashes are hexadecimal. Else `Unparsable`."""
    with _state.lock:
        chances = 2
        while True:
            # No other call gets this child before it has answered: after an exception no call reads an old answer.
            child, _state.child = _state.child, None
            fresh = child is None
            child = child or _Child()
            try:
                kind, answer = child.request(level, data)
            except _Died as error:
                child.end()
                # V4: a node is damaged only if a new child dies of it. An idle child may have ended by itself, or for
                # want of memory that an earlier node took; and SIGKILL comes from outside, not from the child's limits.
                if fresh or error.hung:
                    chances -= 1 if error.killed else 2
                if chances <= 0:
                    raise Unparsable(f"the process that reads it {error}") from error
            except BaseException:
                child.end()
                raise
            else:
                _state.child = child
                break
    return _columns(kind, answer)


class _Died(Exception):
    """The child has ended, or does not answer as it should: it `hung`, or was `killed` by SIGKILL."""

    def __init__(self, how: str, *, hung: bool = False, killed: bool = False) -> None:
        super().__init__(how)
        self.hung = hung
        self.killed = killed


class _Child:
    """One child process. Its pipes do not block, and every read and write has a time limit (V12)."""

    def __init__(self) -> None:
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _MAIN, *_import_path()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                cwd="/",
                env=_environment(),
                process_group=0,  # only this process handles an interrupt from the terminal
            )
        except OSError as error:
            raise _failed(str(error)) from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._input, False)
        os.set_blocking(self._output, False)
        _widen(self._input)
        _widen(self._output)
        self._ready = False
        _state.living.add(self)

    def request(self, level: int, data: bytes) -> tuple[int, bytes]:
        """Send a node and return the kind and the bytes of the answer; `_Died` if no valid answer comes."""
        self._wait_ready()
        until = time.monotonic() + limits.NODE_SECONDS
        # The child answers only after it has read the whole request, so neither side waits for the other to read.
        self._send(_MESSAGE.pack(len(data), level) + data, until)
        answer = self._receive(_MESSAGE.size, until)
        length, kind = _MESSAGE.unpack_from(answer)
        if length > limits.NODE_TEXT:
            raise _Died("gave an answer that is too long")
        answer += self._receive(_MESSAGE.size + length - len(answer), until)
        if len(answer) != _MESSAGE.size + length:
            raise _Died("gave an answer that is longer than it says")
        return kind, answer[_MESSAGE.size :]

    def end(self) -> None:
        """Kill the child and wait for it (V14)."""
        _state.living.discard(self)
        self._process.kill()
        self._process.wait()
        self._close()

    def leave(self) -> None:
        """Close the copies of the pipes after a fork: the child belongs to the parent process."""
        self._process.returncode = 0
        self._close()

    def _close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _wait_ready(self) -> None:
        """Wait until the child has loaded its modules: a failure before that is not the fault of any node."""
        if self._ready:
            return
        try:
            self._receive(_MESSAGE.size, time.monotonic() + limits.NODE_SECONDS)
        except _Died as error:
            raise _failed(f"it {error}") from error
        self._ready = True

    def _send(self, data: bytes, until: float) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._input, view) :]
            except BlockingIOError:
                self._wait(self._input, select.POLLOUT, until)
            except BrokenPipeError:
                raise self._ended() from None

    def _receive(self, least: int, until: float) -> bytes:
        """Return the bytes that arrive, at least `least`."""
        parts: list[bytes] = []
        while least > 0:
            self._wait(self._output, select.POLLIN, until)
            part = os.read(self._output, _PIPE_BYTES)
            if not part:
                raise self._ended()
            parts.append(part)
            least -= len(part)
        return b"".join(parts)

    def _wait(self, pipe: int, event: int, until: float) -> None:
        poll = select.poll()
        poll.register(pipe, event)
        if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
            raise _Died(f"took longer than {limits.NODE_SECONDS:g} s", hung=True)

    def _ended(self) -> _Died:
        """Return the error that says how the child ended."""
        try:
            code = self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            return _Died("closed its output")
        if code < 0:
            return _Died(f"was ended by signal {-code}", killed=code == -signal.SIGKILL)
        return _Died(f"ended with exit code {code}")


class _State:
    """The child of this process, guarded by `lock`; `living` are all children that were not waited for yet."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.child: _Child | None = None
        self.living: set[_Child] = set()


_state = _State()


def _columns(kind: int, answer: bytes) -> list[list[Any]]:
    if kind != _COLUMNS:
        raise Unparsable(answer.decode(errors="replace"))
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError) as error:
        raise Unparsable(f"the process that reads it answered no JSON: {error}") from error
    if not isinstance(found, list) or not all(isinstance(column, list) for column in found):
        raise Unparsable("the process that reads it answered no columns")
    return found


def _widen(pipe: int) -> None:
    """Enlarge a pipe to hold a whole answer, where the system can: each further read waits for other threads."""
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with suppress(OSError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def _import_path() -> list[str]:
    """Return the child's `sys.path`: that of this process, without relative entries such as the working directory."""
    home = os.path.dirname(os.path.dirname(os.path.abspath(limits.__file__)))
    return [home, *(entry for entry in sys.path if os.path.isabs(entry) and entry != home)]


def _environment() -> dict[str, str]:
    """Return the child's environment: where libraries are, and no credential (V26)."""
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH") if name in os.environ}
    return {**kept, "RUST_BACKTRACE": "0", "MALLOC_ARENA_MAX": "1"}


def _failed(why: str) -> ParserFailed:
    return ParserFailed(
        f"the process that reads index nodes does not start: {why}",
        hint="it needs some 600 MB of address space and the Python that runs this command; nothing was changed",
    )


def _end_all() -> None:
    for child in list(_state.living):
        child.end()


def _after_fork() -> None:
    global _state
    inherited, _state = _state.living, _State()
    for child in inherited:
        child.leave()


atexit.register(_end_all)
os.register_at_fork(after_in_child=_after_fork)
