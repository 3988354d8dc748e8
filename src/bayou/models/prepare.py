"""Preparing the run of a method: every check, and the evaluation, before anything is run or written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from bayou.core.documents import Unusable, check_plain
from bayou.core.errors import ArgumentsInvalid, BayouError, ExpressionInvalid, MethodNotFound
from bayou.core.text import did_you_mean
from bayou.data.layout import check_tags
from bayou.models.definition import Definition
from bayou.models.expressions import DataLookup, EvaluationScope, check, evaluate, inputs_used, redact
from bayou.models.expressions.check import Where
from bayou.models.expressions.scan import Path, texts
from bayou.models.types.registry import find_type
from bayou.models.types.schema import Method, ModelType, find_method, method_not_found
from bayou.models.types.validation import ArgumentProblem, problems
from bayou.repo import Repo
from bayou.state.connection import Connection


class RunRequest(Struct, frozen=True):
    """Which method is to run, and with what.

    `inputs` are values. They override the arguments of the definition; its expressions see them as `inputs`, merged
    over those of `scope`. `secrets` are texts in them that came from the environment. `run` to `step` name the workflow
    step, if there is one.
    """

    model: Definition
    method: str
    inputs: Mapping[str, object] = field(default_factory=dict)
    scope: EvaluationScope = field(default_factory=EvaluationScope)
    run: str | None = None
    workflow: str | None = None
    job: str | None = None
    step: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    secrets: frozenset[str] = frozenset()


class PreparedRun(Struct, frozen=True):
    """A method that can be run: its `arguments` are evaluated, and match its schema."""

    request: RunRequest
    type: ModelType
    method: Method
    arguments: Mapping[str, Any]
    secrets: frozenset[str]

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The inputs, redacted for the record."""
        found: dict[str, Any] = redact(dict(self.request.inputs), self.secrets)
        return found

    def to_document(self) -> dict[str, Any]:
        """Return the evaluated definition for the record, without values from the environment (V26)."""
        model = self.request.model
        return {
            "id": model.id,
            "name": model.name,
            "type": model.type,
            "method": self.method.name,
            "arguments": redact(dict(self.arguments), self.secrets),
            "inputs": self.inputs,
            "tags": {**model.tags, **self.request.tags},
        }


def prepare(connection: Connection, request: RunRequest) -> PreparedRun:
    """Check and evaluate a request. Runs and writes nothing; sends requests only for content that is not here.

    `TypeNotFound`, `MethodNotFound`, `ArgumentsInvalid` or `ExpressionInvalid` name the file and line.
    """
    kind = find_type(connection.repo.running(), request.model.type)
    method = find_method(kind, request.method)
    check_definition(request.model, kind)
    defined = _defined_arguments(request.model, method)
    check_tags({**request.model.tags, **request.tags})
    for problem in _input_problems(request, method, defined):
        raise ArgumentsInvalid(problem.message, hint=problem.hint)
    where = defined.where
    with DataLookup(connection) as data:
        scope = replace(
            request.scope,
            inputs={**request.scope.inputs, **request.inputs},
            data=request.scope.data or data,
        )
        evaluated = evaluate(defined.arguments, scope, where)
    secrets = evaluated.secrets | request.secrets
    arguments = {**evaluated.value, **{name: value for name, value in request.inputs.items() if name in defined.takes}}
    for problem in problems(method.arguments, arguments, secrets=secrets):
        raise _invalid(problem, _location(problem, request, defined), kind, secrets)
    return PreparedRun(request, kind, method, arguments, secrets)


def check_definition(model: Definition, kind: ModelType) -> None:
    """Raise for errors of a definition that show without running it: in methods, arguments and expressions.

    A missing argument is no error: an input may provide it.
    """
    for error in _definition_errors(model, kind):
        raise error


def _definition_errors(model: Definition, kind: ModelType) -> Iterator[BayouError]:
    """Yield all errors of a definition that show without running it, each with file and line."""
    for name in model.methods:
        if name not in kind.methods:
            error = method_not_found(kind, name)
            yield MethodNotFound(f"{model.where(('methods', name))}: {error.message}", hint=error.hint)
    for path, arguments, schema in _schemas(model, kind):
        for inner, text in texts(arguments):
            where = model.where((*path, *inner))
            try:
                check(text, lambda _, where=where: where)  # type: ignore[misc]
            except ExpressionInvalid as error:
                yield error
        for problem in problems({**schema, "required": []}, arguments, evaluated=False):
            yield _invalid(problem, model.where((*path, *problem.path)), kind)


def definition_problems(model: Definition, kind: ModelType) -> list[ArgumentProblem]:
    """Return all errors in the arguments of a definition that show without running it; `check_definition` raises one.

    `ExpressionInvalid` if an expression is wrong.
    """
    found = []
    for path, arguments, schema in _schemas(model, kind):
        check(arguments, _where_below(model, path))
        found += problems({**schema, "required": []}, arguments, evaluated=False)
    return found


def request_problems(repo: Repo, request: RunRequest) -> list[ArgumentProblem]:
    """Return all problems of a request that show before it is evaluated; here, inputs may be expressions.

    The path of a problem is a path in the inputs; it is empty for a missing argument and for the definition's own.
    `TypeNotFound` and `MethodNotFound`: without the method, nothing else can be checked.
    """
    kind = find_type(repo, request.model.type)
    method = find_method(kind, request.method)
    found = [ArgumentProblem((), error.message, error.hint) for error in _definition_errors(request.model, kind)]
    known = {problem.message for problem in found}
    defined = _defined_arguments(request.model, method)
    found += _input_problems(request, method, defined)
    arguments = {
        **defined.arguments,
        **{name: value for name, value in request.inputs.items() if name in defined.takes},
    }
    for problem in problems(method.arguments, arguments, evaluated=False):
        if problem.path and problem.path[0] in request.inputs:
            found.append(problem)
            continue
        message = f"{_location(problem, request, defined)}: {problem.message}"
        if message not in known:
            found.append(ArgumentProblem((), message, problem.hint))
    return found


def _where_below(model: Definition, path: Path) -> Where:
    """Return a function that names the file and line of a path below `path`."""
    return lambda inner: model.where((*path, *inner))


def _schemas(model: Definition, kind: ModelType) -> list[tuple[Path, Mapping[str, object], Mapping[str, Any]]]:
    """Return the paths of arguments in a definition, with the arguments there, and their schema.

    At least one method must know an argument that is given for all of them.
    """
    found: list[tuple[Path, Mapping[str, object], Mapping[str, Any]]] = [
        (("methods", name, "arguments"), model.method_arguments(name), kind.methods[name].arguments)
        for name in model.methods
        if name in kind.methods
    ]
    schemas = [method.arguments for method in kind.methods.values()]
    if len(schemas) == 1:
        shared: Mapping[str, Any] = schemas[0]
    else:
        known: dict[str, Any] = {name: {} for schema in schemas for name in schema.get("properties", {})}
        more = any(schema.get("additionalProperties", True) is not False for schema in schemas)
        shared = {"type": "object", "properties": known, "additionalProperties": more}
    return [(("arguments",), model.arguments, shared), *found]


class _DefinedArguments(Struct, frozen=True):
    """The arguments that a definition gives for one method; `takes` are the names of arguments that the method has."""

    arguments: Mapping[str, object]
    model: Definition
    method: Method
    takes: frozenset[str]

    def where(self, path: Path) -> str:
        own = self.model.method_arguments(self.method.name)
        before: Path = ("methods", self.method.name, "arguments") if path and path[0] in own else ("arguments",)
        return self.model.where((*before, *path))


def _defined_arguments(model: Definition, method: Method) -> _DefinedArguments:
    """Merge the arguments for all methods that this method takes, and those for this method alone."""
    properties = method.arguments.get("properties", {})
    own = model.method_arguments(method.name)
    open_ended = method.arguments.get("additionalProperties", True) is not False
    shared = {name: value for name, value in model.arguments.items() if open_ended or name in properties}
    return _DefinedArguments({**shared, **own}, model, method, frozenset({*properties, *shared, *own}))


def _input_problems(request: RunRequest, method: Method, defined: _DefinedArguments) -> Iterator[ArgumentProblem]:
    """Yield a problem for each input that is no JSON value, or that neither method nor expression uses."""
    for name, value in request.inputs.items():
        try:
            check_plain(value, {})
        except Unusable as error:
            yield ArgumentProblem((name,), f"input {name}: {error}", error.hint)
    try:
        used = inputs_used(defined.arguments, defined.where)
    except ExpressionInvalid:
        return  # a problem of the definition; until it is corrected, no input is known to be unused
    if method.arguments.get("additionalProperties", True) is not False:
        return
    known = sorted({*defined.takes, *used})
    for name in request.inputs:
        if name not in known:
            hint = did_you_mean(name, known, f"there are {', '.join(known)}")
            yield ArgumentProblem((name,), f"{request.model.name} {method.name}: there is no input {name}", hint)


def _location(problem: ArgumentProblem, request: RunRequest, defined: _DefinedArguments) -> str:
    if problem.path and problem.path[0] in request.inputs:
        return f"input {problem.path[0]}"
    return defined.where(problem.path) if problem.path else f"{request.model.path}, {request.method}"


def _invalid(
    problem: ArgumentProblem, where: str, kind: ModelType, secrets: frozenset[str] = frozenset()
) -> ArgumentsInvalid:
    return ArgumentsInvalid(
        f"{where}: {redact(problem.message, secrets)}",
        hint=problem.hint or f"see what it takes with `bayou model describe {kind.name}`",
    )
