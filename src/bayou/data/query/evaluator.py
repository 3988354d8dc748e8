"""Evaluating CEL expressions within bounds of time and memory (V25, V12).

The CEL library holds the interpreter's lock, cannot be interrupted, and takes as much memory as it wants. So this
process evaluates only expressions that are cheap by a proven bound (`cost`), which is nearly all of them. A child
process, which has limits and can be killed, evaluates the rest (`evaluator_child`). Children are started when they are
needed, kept for the next expression, and ended with this process. The CEL library, too, is loaded when it is first
needed.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import pickle
import select
import sys
import threading
from collections.abc import Callable, Mapping
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from typing import IO, Any, Protocol, cast

from bayou.core import limits
from bayou.core.deadline import Deadline
from bayou.core.errors import DeadlinePassed, QueryInvalid
from bayou.data.query import evaluator_child
from bayou.data.query.cost import Cost, cost_of, weigh

FAILURES = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)
"""The errors that an evaluation raises if the expression has no value."""

Functions = Mapping[str, Callable[..., Any]]

_EXTENSION = "cel.cel"
_EXAMPLE = """one is: name == "report" && size > 1000"""

_ENVIRONMENT = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""Variables that Python may need to start; the child gets no others."""

_POLL_S = 0.05
_CHUNK = 1 << 16
_MAX_IDLE = 2
"""Children that wait for the next expression."""


class TooCostly(ValueError):
    """An expression took more time or memory than its limit; the message says which."""


class Program(Protocol):
    """A compiled expression."""

    def execute(self, context: dict[str, Any]) -> Any: ...

    def variables(self) -> list[str]: ...

    def functions(self) -> list[str]: ...


def compile_expression(source: str, what: str) -> Program:
    """Compile an expression; `QueryInvalid` says where it is wrong.

    An expression from elsewhere, or over content from elsewhere, must be evaluated as a `BoundedProgram` (V25).
    """
    if len(source) > limits.EXPRESSION_CHARACTERS:
        raise QueryInvalid(
            f"{what} has more than {limits.EXPRESSION_CHARACTERS} characters", hint="take it apart, or shorten it"
        )
    try:
        program: Program = _cel().compile(source)
    except ValueError as error:
        raise QueryInvalid(f"{what} is no CEL expression: {_parse_error(str(error))}", hint=_EXAMPLE) from None
    return program


class BoundedProgram:
    """A compiled expression that is evaluated within bounds. `functions` names the functions that `execute` gets."""

    def __init__(self, source: str, what: str, functions: tuple[str, ...] = ()) -> None:
        self._source = source
        self._program: Program = compile_expression(source, what)
        self._cost: Cost | None = cost_of(source, functions)
        self._calls = tuple(name for name in self._program.functions() if name in functions)

    def variables(self) -> list[str]:
        return self._program.variables()

    def functions(self) -> list[str]:
        return self._program.functions()

    def execute(self, values: Mapping[str, Any], functions: Functions | None = None) -> Any:
        """Return the value of the expression; raise `TooCostly` or one of `FAILURES` if it has none."""
        called = {name: functions[name] for name in self._calls} if functions else {}
        cost = self._cost
        if cost is None or (called and cost.macros):
            return _evaluate_in_child(self._source, values, called)
        given = weigh(values.values(), cost.most)
        if not cost.allows(given):
            return _evaluate_in_child(self._source, values, called)
        if not called:
            return self._program.execute(dict(values))
        metered = _MeteredFunctions(called, cost.most - given.total)
        try:
            found = self._program.execute({**values, **metered.functions()})
        except FAILURES:
            if not metered.too_large:
                raise
        if metered.too_large:  # the value is wrong: an answer was withheld
            return _evaluate_in_child(self._source, values, called)
        return found


def evaluate_in_child(source: str, values: Mapping[str, Any], functions: Functions) -> dict[str, Any]:
    """Evaluate an expression in a child process; return the child's answer.

    `DeadlinePassed` if it takes too long, `EOFError` if the child ended, `Cancelled` after a signal.
    """
    return _request({"source": source, "values": dict(values), "functions": list(functions)}, functions)


def call_in_child(module: str, function: str, *arguments: Any) -> Any:
    """Call a function of Bayou in a child process; return its answer as JSON. Raises as `evaluate_in_child`."""
    return _request({"module": module, "function": function, "arguments": arguments}, {})["value"]


def _evaluate_in_child(source: str, values: Mapping[str, Any], functions: Functions) -> Any:
    try:
        answer = evaluate_in_child(source, values, functions)
    except DeadlinePassed:
        raise TooCostly(f"it takes more than {limits.EXPRESSION_SECONDS:g} s") from None
    except EOFError:  # a limit has killed the child
        raise TooCostly(f"it takes more than {limits.EXPRESSION_MEMORY >> 20} MiB of memory, or too long") from None
    match answer:
        case {"value": value}:
            return value
        case {"missing": name}:
            raise KeyError(name)
        case {"costly": why}:
            raise TooCostly(why)
    raise ValueError(answer["failed"])


class _MeteredFunctions:
    """The functions of a caller. Their answers count as input; once they are too large in all, they are withheld."""

    def __init__(self, functions: Functions, left: int) -> None:
        self._functions = functions
        self._left = left
        self.too_large = False

    def functions(self) -> dict[str, Callable[..., Any]]:
        return {name: self._metered(function) for name, function in self._functions.items()}

    def _metered(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if self.too_large:
                return None
            answer = function(*arguments)
            self._left -= weigh([answer], self._left).total
            self.too_large = self._left < 0
            return None if self.too_large else answer

        return call


class _Child:
    """A child process that evaluates one expression after the other."""

    def __init__(self) -> None:
        here = str(Path(__file__).resolve().parents[3])
        bounds = [limits.EXPRESSION_MEMORY, limits.EXPRESSION_SECONDS, limits.EXPRESSION_ANSWER]
        # Without site and without variables: it starts fast, and has nothing that an expression could read.
        import subprocess  # noqa: PLC0415  (only an expression that may be costly has a process)

        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", evaluator_child.__file__, json.dumps([here, *sys.path]), json.dumps(bounds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
        )
        self._input = cast("IO[bytes]", self._process.stdin)
        self._output = cast("IO[bytes]", self._process.stdout).fileno()

    def ask(self, request: object, functions: Functions, deadline: Deadline) -> dict[str, Any]:
        """Return the answer to a request; functions that the expression calls run in this process."""
        self._send(request)
        while True:
            answer: dict[str, Any] = json.loads(self._receive(deadline))
            if "call" not in answer:
                return answer
            self._send(functions[answer["call"]](None, *answer["arguments"]))

    def end(self) -> None:
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):  # the child may have ended before it read everything
                cast("IO[bytes]", pipe).close()
        self._process.wait()

    def _send(self, message: object) -> None:
        data = pickle.dumps(message)
        try:
            self._input.write(evaluator_child.LENGTH.pack(len(data)))
            self._input.write(data)
            self._input.flush()
        except BrokenPipeError:
            raise EOFError from None

    def _receive(self, deadline: Deadline) -> bytes:
        (length,) = evaluator_child.LENGTH.unpack(self._read(evaluator_child.LENGTH.size, deadline))
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


_idle: list[_Child] = []
_lock = threading.Lock()


def _request(request: object, functions: Functions) -> dict[str, Any]:
    """Send a request to an idle child, or to a new one; return the answer.

    An expression that calls `data.query` may need a second child meanwhile, and so may another thread.
    """
    with _lock:
        child = _idle.pop() if _idle else None
    child = child or _Child()
    try:
        # V12: a signal ends the wait at once, through the event of the deadline.
        answer = child.ask(request, functions, Deadline.after(limits.EXPRESSION_SECONDS))
    except BaseException:
        child.end()
        raise
    with _lock:
        keep = len(_idle) < _MAX_IDLE
        if keep:
            _idle.append(child)
    if not keep:
        child.end()
    return answer


@atexit.register
def _end_all() -> None:
    while _idle:
        _idle.pop().end()


def _cel() -> Any:
    # The package's own __init__ loads a terminal interface, which takes a second; CEL itself is one extension module.
    loaded = sys.modules.get(_EXTENSION)
    if loaded is not None:
        return loaded
    package = PathFinder.find_spec("cel")
    spec = PathFinder.find_spec(_EXTENSION, package.submodule_search_locations if package is not None else None)
    if spec is None or spec.loader is None:
        raise ImportError("no module named cel.cel: common-expression-language is not installed")
    module = module_from_spec(spec)
    sys.modules[_EXTENSION] = module
    spec.loader.exec_module(module)
    return module


def _parse_error(message: str) -> str:
    """Return the line of a parser's message that has the position."""
    _, found, complaint = message.partition("<input>:")
    line = complaint.partition("\n")[0].strip()
    return f"line {line}" if found else message.partition("\n")[0]
