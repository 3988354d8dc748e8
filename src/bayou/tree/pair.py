"""Walk a large tree by two processes: this one, and a child that is forked for half of it.

A walk is calls to the kernel, one for each name, and threads of one interpreter would take turns at them. The child
knows all that this process knows; it looks, tells what it found, and ends. Whatever goes wrong with it costs time only:
its half is walked here.
"""

from __future__ import annotations

import gc
import marshal
import os
import select
import signal
import sys
import time
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from bayou.tree.filestat import FileStat
from bayou.tree.scan import Found, Kind, Known, Skipped, Waiting, look_at_roots, scan, walk
from bayou.tree.trail import no_link

_MANY = 4000
"""Files that are worth a process of their own."""

_ENOUGH = 64
"""Directories that are divided among the two: so many that the halves are about equal."""

_PATIENCE, _AT_LEAST_S = 4, 5.0
"""How much longer than this process's own half the child's may take."""

_DESCRIPTORS = 1 << 16
_LOOK_S = 0.1
_LENGTH = 8


def scan_by_two(root: Path, temporaries: list[str], known: Known) -> Iterator[Found | Skipped]:
    """Yield what `scan` does of a whole tree. Where little is known to be there, or nobody can help, it is that."""
    if len(known) < _MANY or not _can_help():
        yield from scan(root, None, temporaries, known)
        return
    no_link(root)
    waiting: Waiting = deque()
    yield from look_at_roots(root, waiting)
    yield from walk(waiting, temporaries, known, _ENOUGH)
    # Every other one: they are of two levels, of which the upper is most of the work.
    mine, theirs = (deque(list(waiting)[at::2]) for at in range(2))
    child = _Child(theirs, known) if theirs else None
    try:
        begin = time.monotonic()
        yield from walk(mine, temporaries, known)
        taken = time.monotonic() - begin
        yield from child.found(temporaries, max(_AT_LEAST_S, _PATIENCE * taken)) if child else ()
    finally:
        if child is not None:
            child.end()


def _can_help() -> bool:
    """Whether a child costs less than it does: elsewhere than on Linux a fork is slow, or not safe."""
    return sys.platform == "linux" and len(os.sched_getaffinity(0)) > 1


class _Child:
    """A process that walks some directories. It answers once, and is ended in any case."""

    def __init__(self, share: Waiting, known: Known) -> None:
        self._share = share
        self._known = known
        self._order = list(known)
        self._reading, writing = os.pipe()
        # A signal is for this process, which ends the child; in the child it would call handlers of ours.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # threads: the child asks nothing of them
                self._pid = os.fork()
            if self._pid == 0:
                self._work(writing)
        except OSError:
            self._pid = -1  # no room for another process
        except BaseException:
            # A signal that another thread received: of the child nobody knows yet. It ends when it cannot answer.
            os.close(self._reading)
            raise
        finally:
            os.close(writing)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def found(self, temporaries: list[str], within: float) -> Iterator[Found | Skipped]:
        """Yield what it found, and take that out of what is known; without an answer in time, look here."""
        answer = self._answer(within)
        if answer is None:
            yield from walk(self._share, temporaries, self._known)
            return
        files, skipped, made, left = answer
        for path, here in zip(self._order, left, strict=True):
            if not here:
                self._known.pop(path, None)
        temporaries += made
        yield from (Found(path, FileStat(*status)) for path, status in files)
        yield from (Skipped(*one) for one in skipped)

    def end(self) -> None:
        """Leave no process behind, and no descriptor."""
        os.close(self._reading)
        if self._pid > 0:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(self._pid, 0)

    def _answer(self, within: float) -> _Answer | None:
        """Wait for the answer; None if it does not come, or not whole."""
        until = time.monotonic() + within
        data = bytearray()
        while (left := until - time.monotonic()) > 0:
            # In short sleeps: a signal that comes just before Python falls asleep would wait until it wakes up.
            if select.select([self._reading], [], [], min(left, _LOOK_S))[0]:
                piece = os.read(self._reading, 1 << 20)
                if not piece:
                    break
                data += piece
        whole = len(data) >= _LENGTH and int.from_bytes(data[:_LENGTH], "big") == len(data) - _LENGTH
        answer: _Answer | None = marshal.loads(data[_LENGTH:]) if whole else None
        return answer

    def _work(self, writing: int) -> NoReturn:
        """Be the child. It has nothing of what this process has open: no lock outlives us because of it."""
        code = 1
        try:
            gc.disable()  # nothing of ours is finalised by it: it would close a database that is not its own
            os.closerange(0, writing)
            os.closerange(writing + 1, _DESCRIPTORS)
            made: list[str] = []
            files: list[tuple[str, tuple[int, ...]]] = []
            skipped: list[tuple[str, str, Kind]] = []
            for one in walk(self._share, made, self._known):
                if isinstance(one, Found):
                    files.append((one.path, tuple(one.stat)))
                else:
                    skipped.append((one.path, one.reason, one.kind))
            data = marshal.dumps((files, skipped, made, bytes(path in self._known for path in self._order)))
            rest = memoryview(len(data).to_bytes(_LENGTH, "big") + data)
            while rest:
                rest = rest[os.write(writing, rest) :]
            code = 0
        finally:
            os._exit(code)


_Answer = tuple[list[tuple[str, tuple[int, int, int, int]]], list[tuple[str, str, Kind]], list[str], bytes]
"""Files, what was skipped, temporaries, and of each path that is known whether it was not found."""
