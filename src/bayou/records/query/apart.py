"""The processes that evaluate what is not cheap: started when they are needed, and ended with this one."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import pickle
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, cast

from bayou.core import limits
from bayou.core.deadline import Deadline
from bayou.records.query import child

Functions = Mapping[str, Callable[..., Any]]

_NEEDED = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""What a Python may need to start at all; nothing else of the environment is passed on."""

_POLL_S = 0.05
_CHUNK = 1 << 16
_KEPT = 2
"""Processes that wait for the next expression."""


class _Evaluator:
    """A process that evaluates one expression after the other."""

    def __init__(self) -> None:
        here = str(Path(__file__).resolve().parents[3])
        bounds = [limits.EXPRESSION_MEMORY, limits.EXPRESSION_SECONDS, limits.EXPRESSION_ANSWER]
        # Without site, without variables: it is there at once, and has nothing that an expression could ask for.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", child.__file__, json.dumps([here, *sys.path]), json.dumps(bounds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in _NEEDED if name in os.environ},
        )
        self._input = cast("IO[bytes]", self._process.stdin)
        self._output = cast("IO[bytes]", self._process.stdout).fileno()

    def ask(self, request: object, functions: Functions, deadline: Deadline) -> dict[str, Any]:
        """Return the answer to a request; what it calls meanwhile is called here."""
        self._send(request)
        while True:
            answer: dict[str, Any] = json.loads(self._receive(deadline))
            if "call" not in answer:
                return answer
            self._send(functions[answer["call"]](None, *answer["arguments"]))

    def end(self) -> None:
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):  # it may have ended with something unread
                cast("IO[bytes]", pipe).close()
        self._process.wait()

    def _send(self, message: object) -> None:
        data = pickle.dumps(message)
        try:
            self._input.write(child.LENGTH.pack(len(data)))
            self._input.write(data)
            self._input.flush()
        except BrokenPipeError:
            raise EOFError from None

    def _receive(self, deadline: Deadline) -> bytes:
        (length,) = child.LENGTH.unpack(self._read(child.LENGTH.size, deadline))
        if length > 2 * limits.EXPRESSION_ANSWER:
            raise EOFError
        return self._read(length, deadline)

    def _read(self, length: int, deadline: Deadline) -> bytes:
        chunks = []
        while length:
            left = deadline.remaining()
            if select.select([self._output], [], [], min(left, _POLL_S))[0]:
                chunk = os.read(self._output, min(length, _CHUNK))
                if not chunk:
                    raise EOFError
                chunks.append(chunk)
                length -= len(chunk)
        return b"".join(chunks)


_idle: list[_Evaluator] = []
_lock = threading.Lock()


def evaluate_apart(source: str, values: Mapping[str, Any], functions: Functions) -> dict[str, Any]:
    """Evaluate an expression in a process of its own; return its answer.

    `DeadlinePassed` if it takes too long, `EOFError` if the process came to an end, `Cancelled` after a signal.
    """
    return _ask({"source": source, "values": dict(values), "functions": list(functions)}, functions)


def call_apart(module: str, function: str, *arguments: Any) -> Any:
    """Call a function of ours in a process of its own; return its answer, as JSON has it. Raises as above."""
    return _ask({"module": module, "function": function, "arguments": arguments}, {})["value"]


def _ask(request: object, functions: Functions) -> dict[str, Any]:
    """Put a request to a process that waits for one, or to a new one.

    An expression that calls `data.query` may need a second process meanwhile, and so may another thread.
    """
    with _lock:
        evaluator = _idle.pop() if _idle else None
    evaluator = evaluator or _Evaluator()
    try:
        # V12: a signal ends it at once, by the event that every deadline has.
        answer = evaluator.ask(request, functions, Deadline.after(limits.EXPRESSION_SECONDS))
    except BaseException:
        evaluator.end()
        raise
    with _lock:
        keep = len(_idle) < _KEPT
        if keep:
            _idle.append(evaluator)
    if not keep:
        evaluator.end()
    return answer


@atexit.register
def _end_all() -> None:
    while _idle:
        _idle.pop().end()
