"""The evaluator of CEL, loaded when it is first needed."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Any, Protocol

from bayou.core import limits
from bayou.core.errors import QueryInvalid

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
