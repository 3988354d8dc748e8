"""The evaluator of CEL, loaded when it is first needed.

Evaluating expressions within bounds of time and memory (V25, V12).

The evaluator holds the interpreter's lock, cannot be interrupted, and takes what memory it wants. So this process
evaluates only what is cheap by a bound that is sure (`cost`), which is nearly everything; the rest goes to a process of
its own, which has limits and can be killed.

The processes that evaluate what is not cheap: started when they are needed, and ended with this one.
"""

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
"""What an evaluation raises that comes to no value."""

_EXTENSION = "cel.cel"


class Program(Protocol):
    """A compiled expression."""

    def execute(self, context: dict[str, Any]) -> Any: ...

    def variables(self) -> list[str]: ...

    def functions(self) -> list[str]: ...


def compile_expression(source: str, what: str) -> Program:
    """Compile an expression; `QueryInvalid` says where it goes wrong.

    Whoever evaluates what came from elsewhere, or over content from elsewhere, does so by `bounded` (V25).
    """
    if len(source) > limits.EXPRESSION_CHARACTERS:
        raise QueryInvalid(
            f"{what} has more than {limits.EXPRESSION_CHARACTERS} characters", hint="take it apart, or shorten it"
        )
    try:
        program: Program = _engine().compile(source)
    except ValueError as error:
        raise QueryInvalid(f"{what} is no CEL expression: {_place(str(error))}", hint=_EXAMPLE) from None
    return program


_EXAMPLE = """one is: name == "report" && size > 1000"""


def _engine() -> Any:
    # The package's own __init__ loads a terminal interface, which takes a second; the evaluator is one file of it.
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


def _place(message: str) -> str:
    """Return the line of a parser's complaint that names the place."""
    _, found, complaint = message.partition("<input>:")
    line = complaint.partition("\n")[0].strip()
    return f"line {line}" if found else message.partition("\n")[0]


Functions = Mapping[str, Callable[..., Any]]


class TooCostly(ValueError):
    """An expression took more time or memory than it may; its text says which."""


class BoundedProgram:
    """A compiled expression that is evaluated within bounds. `functions` names those that `execute` will be given."""

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
        """Return what the expression comes to; `TooCostly`, or what the evaluator raises, if it comes to nothing."""
        called = {name: functions[name] for name in self._calls} if functions else {}
        cost = self._cost
        if cost is None or (called and cost.macros):
            return _evaluate_apart(self._source, values, called)
        given = weigh(values.values(), cost.most)
        if not cost.allows(given):
            return _evaluate_apart(self._source, values, called)
        if not called:
            return self._program.execute(dict(values))
        answers = _Answers(called, cost.most - given.total)
        try:
            found = self._program.execute({**values, **answers.functions()})
        except FAILURES:
            if not answers.too_large:
                raise
        if answers.too_large:  # what came of it counts for nothing: an answer was withheld
            return _evaluate_apart(self._source, values, called)
        return found


class _Answers:
    """The functions of a caller, whose answers count as input: beyond what is left of that they are withheld."""

    def __init__(self, functions: Functions, left: int) -> None:
        self._functions = functions
        self._left = left
        self.too_large = False

    def functions(self) -> dict[str, Callable[..., Any]]:
        return {name: self._weighed(function) for name, function in self._functions.items()}

    def _weighed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if self.too_large:
                return None
            answer = function(*arguments)
            self._left -= weigh([answer], self._left).total
            self.too_large = self._left < 0
            return None if self.too_large else answer

        return call


def _evaluate_apart(source: str, values: Mapping[str, Any], functions: Functions) -> Any:

    try:
        answer = evaluate_in_child(source, values, functions)
    except DeadlinePassed:
        raise TooCostly(f"it takes more than {limits.EXPRESSION_SECONDS:g} s") from None
    except EOFError:  # it was killed, by itself or by a limit
        raise TooCostly(f"it takes more than {limits.EXPRESSION_MEMORY >> 20} MiB of memory, or too long") from None
    match answer:
        case {"value": value}:
            return value
        case {"missing": name}:
            raise KeyError(name)
        case {"costly": why}:
            raise TooCostly(why)
    raise ValueError(answer["failed"])


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
            [sys.executable, "-I", "-S", evaluator_child.__file__, json.dumps([here, *sys.path]), json.dumps(bounds)],
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


_idle: list[_Evaluator] = []
_lock = threading.Lock()


def evaluate_in_child(source: str, values: Mapping[str, Any], functions: Functions) -> dict[str, Any]:
    """Evaluate an expression in a process of its own; return its answer.

    `DeadlinePassed` if it takes too long, `EOFError` if the process came to an end, `Cancelled` after a signal.
    """
    return _ask({"source": source, "values": dict(values), "functions": list(functions)}, functions)


def call_in_child(module: str, function: str, *arguments: Any) -> Any:
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
