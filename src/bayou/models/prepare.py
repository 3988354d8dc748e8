"""Getting ready to run a method: all that can be wrong is found here, before anything is run or written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from bayou.core.documents import Unusable, check_plain
from bayou.core.errors import ArgumentsInvalid, MethodNotFound
from bayou.core.text import did_you_mean
from bayou.data.layout import check_tags
from bayou.models.definition import Definition
from bayou.models.expressions import DataLookup, EvaluationScope, check, evaluate, inputs_used, redact
from bayou.models.expressions.check import Where
from bayou.models.expressions.scan import Path
from bayou.models.types.registry import find_type
from bayou.models.types.schema import Method, ModelType, find_method, method_not_found
from bayou.models.types.validation import ArgumentProblem, problems
from bayou.repo import Repo
from bayou.state.connection import Connection


class RunRequest(Struct, frozen=True):
    """Which method is to run, and with what.

    `inputs` are values: they go over the arguments of the definition, and its expressions find them as `inputs`, over
    those of `scope`. `secrets` are texts in them that came from the environment. `run` to `step` say for which
    workflow, if for one.
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


class Prepared(Struct, frozen=True):
    """A method that can be run: `arguments` are evaluated, and what its schema wants."""

    request: RunRequest
    type: ModelType
    method: Method
    arguments: Mapping[str, Any]
    secrets: frozenset[str]

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The inputs as they may be recorded."""
        found: dict[str, Any] = redact(dict(self.request.inputs), self.secrets)
        return found

    def to_document(self) -> dict[str, Any]:
        """Return the evaluated definition as it is kept: nothing from the environment is in it."""
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


def prepare(repo: Repo, request: RunRequest, connection: Connection | None = None) -> Prepared:
    """Check and evaluate a request. Runs nothing, writes nothing, sends nothing but for content that is not here.

    `TypeNotFound`, `MethodNotFound`, `ArgumentsInvalid`, `ExpressionInvalid`: each names the place.
    """
    kind = find_type(repo.running(), request.model.type)
    method = find_method(kind, request.method)
    check_definition(request.model, kind)
    said = _said(request.model, method)
    check_tags({**request.model.tags, **request.tags})
    _check_inputs(request, method, said)
    where = said.where
    with DataLookup(repo, connection) as data:
        scope = replace(
            request.scope,
            inputs={**request.scope.inputs, **request.inputs},
            data=request.scope.data or data,
        )
        evaluated = evaluate(said.arguments, scope, where)
    secrets = evaluated.secrets | request.secrets
    arguments = {**evaluated.value, **{name: value for name, value in request.inputs.items() if name in said.takes}}
    for problem in problems(method.arguments, arguments, secrets=secrets):
        raise _invalid(problem, _place(problem, request, said), kind, secrets)
    return Prepared(request, kind, method, arguments, secrets)


def check_definition(model: Definition, kind: ModelType) -> None:
    """Raise for what can be told of a definition without running it: its methods, their arguments, its expressions.

    Not for an argument that is missing: an input may bring it.
    """
    for name in model.methods:
        if name not in kind.methods:
            error = method_not_found(kind, name)
            raise MethodNotFound(f"{model.where(('methods', name))}: {error.message}", hint=error.hint)
    for path, arguments, schema in _schemas(model, kind):
        check(arguments, _within(model, path))
        for problem in problems({**schema, "required": []}, arguments, evaluated=False):
            raise _invalid(problem, model.where((*path, *problem.path)), kind)


def request_problems(repo: Repo, request: RunRequest) -> list[ArgumentProblem]:
    """Return what can be told of a request before it is evaluated: here, inputs may be expressions.

    The path of a problem is one in the inputs; it is empty for what is missing, and for what the definition says.
    """
    kind = find_type(repo, request.model.type)
    method = find_method(kind, request.method)
    check_definition(request.model, kind)
    said = _said(request.model, method)
    _check_inputs(request, method, said)
    arguments = {**said.arguments, **{name: value for name, value in request.inputs.items() if name in said.takes}}
    return [
        problem
        if problem.path and problem.path[0] in request.inputs
        else ArgumentProblem((), f"{_place(problem, request, said)}: {problem.message}", problem.hint)
        for problem in problems(method.arguments, arguments, evaluated=False)
    ]


def _within(model: Definition, path: Path) -> Where:
    """Say where a place below `path` is."""
    return lambda place: model.where((*path, *place))


def _schemas(model: Definition, kind: ModelType) -> list[tuple[Path, Mapping[str, object], Mapping[str, Any]]]:
    """Return the places of arguments in a definition, with what stands there, and what may.

    What stands there for all methods must be known to one of them.
    """
    found: list[tuple[Path, Mapping[str, object], Mapping[str, Any]]] = [
        (("methods", name, "arguments"), model.method_arguments(name), kind.methods[name].arguments)
        for name in model.methods
    ]
    schemas = [method.arguments for method in kind.methods.values()]
    if len(schemas) == 1:
        shared: Mapping[str, Any] = schemas[0]
    else:
        known: dict[str, Any] = {name: {} for schema in schemas for name in schema.get("properties", {})}
        more = any(schema.get("additionalProperties", True) is not False for schema in schemas)
        shared = {"type": "object", "properties": known, "additionalProperties": more}
    return [(("arguments",), model.arguments, shared), *found]


class _Said(Struct, frozen=True):
    """What a definition says for one method, and where; `takes` are the arguments that the method has."""

    arguments: Mapping[str, object]
    model: Definition
    method: Method
    takes: frozenset[str]

    def where(self, path: Path) -> str:
        own = self.model.method_arguments(self.method.name)
        before: Path = ("methods", self.method.name, "arguments") if path and path[0] in own else ("arguments",)
        return self.model.where((*before, *path))


def _said(model: Definition, method: Method) -> _Said:
    """Put together the arguments for all methods that this one takes, and those for this one alone."""
    properties = method.arguments.get("properties", {})
    own = model.method_arguments(method.name)
    open_ended = method.arguments.get("additionalProperties", True) is not False
    shared = {name: value for name, value in model.arguments.items() if open_ended or name in properties}
    return _Said({**shared, **own}, model, method, frozenset({*properties, *shared, *own}))


def _check_inputs(request: RunRequest, method: Method, said: _Said) -> None:
    """Raise `ArgumentsInvalid` for an input that cannot be kept, or that neither the method nor an expression wants."""
    for name, value in request.inputs.items():
        try:
            check_plain(value, {})
        except Unusable as error:
            raise ArgumentsInvalid(f"input {name}: {error}", hint=error.hint) from None
    asked = inputs_used(said.arguments, said.where)
    if method.arguments.get("additionalProperties", True) is not False:
        return
    for name in request.inputs:
        if name not in said.takes and name not in asked:
            known = sorted({*said.takes, *asked})
            hint = did_you_mean(name, known, f"there are {', '.join(known)}")
            raise ArgumentsInvalid(f"{request.model.name} {method.name}: there is no input {name}", hint=hint)


def _place(problem: ArgumentProblem, request: RunRequest, said: _Said) -> str:
    if problem.path and problem.path[0] in request.inputs:
        return f"input {problem.path[0]}"
    return said.where(problem.path) if problem.path else f"{request.model.path}, {request.method}"


def _invalid(
    problem: ArgumentProblem, where: str, kind: ModelType, secrets: frozenset[str] = frozenset()
) -> ArgumentsInvalid:
    return ArgumentsInvalid(
        f"{where}: {redact(problem.message, secrets)}",
        hint=problem.hint or f"see what it takes with `bayou model describe {kind.name}`",
    )
