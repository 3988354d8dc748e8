"""Evaluating expressions within bounds of time and memory (V25, V12).

The evaluator holds the interpreter's lock, cannot be interrupted, and takes what memory it wants. So this process
evaluates only what is cheap by a bound that is sure (`cost`), which is nearly everything; the rest goes to a process of
its own, which has limits and can be killed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bayou.core import limits
from bayou.core.errors import DeadlinePassed
from bayou.records.query.cost import Cost, cost_of, weigh
from bayou.records.query.engine import FAILURES, Program, compile_expression

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
    from bayou.records.query.apart import evaluate_apart  # noqa: PLC0415  (hardly ever needed)

    try:
        answer = evaluate_apart(source, values, functions)
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
