"""Checking a workflow before it runs, resolving its inputs, and evaluating what is known before its steps run.

Nothing here runs a step, writes a file or sends a request (F094).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from bayou.core.documents import KeyPath
from bayou.core.errors import BayouError, ExpressionInvalid, InputInvalid, WorkflowInvalid
from bayou.models import Definition, find_model
from bayou.models.expressions import NAMES, EvaluationScope, check, evaluate, has_expression, uses
from bayou.models.expressions.check import Where, compiled, keys_used
from bayou.models.expressions.evaluate import redact
from bayou.models.expressions.scan import texts
from bayou.models.prepare import RunRequest, request_problems
from bayou.models.types import coerce, problems
from bayou.models.types.validation import schema_findings
from bayou.repo import Repo
from bayou.workflows.definition import Job, Step, Workflow
from bayou.workflows.find import examine, find_workflow, invalid, workflow_names
from bayou.workflows.read import WorkflowProblem, before, nearest_hint
from bayou.workflows.state import elements

_KNOWN_LATER = frozenset({"steps", "each", "data"})
_STEP_NAMES = ("inputs", "env", "run", "data", "steps", "each")


def validate_workflows(repo: Repo, name: str | None = None) -> tuple[list[str], list[WorkflowProblem]]:
    """Check one workflow, or (None) all; return their names, and everything that is wrong with them."""
    names = workflow_names(repo)
    if name is not None and name not in names:
        names = [find_workflow(repo, name).name]  # by its id; or it raises
    elif name is not None:
        names = [name]
    return names, [problem for each in names for problem in _examined(repo, each)[1]]


def find_checked(repo: Repo, text: str) -> Workflow:
    """Return the workflow with this name or id, which has no problems; nothing of it is run.

    `WorkflowNotFound`, or `WorkflowInvalid` with the first problem, and how many more `validate_workflows` returns.
    """
    name = text if text in workflow_names(repo) else find_workflow(repo, text).name
    workflow, problems = _examined(repo, name)
    if problems:
        raise invalid(name, problems, all_known=True)
    assert workflow is not None  # else there is a problem
    return workflow


def problems_of(repo: Repo, workflow: Workflow) -> Iterator[WorkflowProblem]:
    """Yield the problems of a workflow's inputs, expressions, models, methods and arguments.

    What the file alone shows is left out: a key that is missing is no second problem here.
    """
    yield from check_schemas(workflow)
    models: dict[str, Definition] = {}
    for job in workflow.jobs:
        no_step = Step("", job.name, job.key_path)
        yield from _expressions(workflow, job, no_step, {("guard",): job.guard}, each=False)
        for step in job.steps:
            yield from _step(repo, workflow, job, step, models)


def check_schemas(workflow: Workflow) -> Iterator[WorkflowProblem]:
    """Yield the problems of the inputs' schemas and defaults."""
    if not workflow.inputs:
        return
    example = "like {type: string, default: localhost}"
    for name, schema in workflow.inputs.items():
        wrong_schema = schema_findings(schema)
        if wrong_schema:
            key_path, message = wrong_schema[0]
            where = workflow.source.where(("inputs", name, *key_path))
            yield WorkflowProblem(where, f"{name} is no JSON schema: {message}", example)
            continue
        if "default" not in schema:
            continue
        where = workflow.source.where(("inputs", name, "default"))
        if has_expression(schema["default"]):
            yield WorkflowProblem(
                where, f"the default of {name} is an expression", "inputs are given; steps may compute"
            )
            continue
        wrong = problems(_schema({name: schema}), {name: schema["default"]})
        if wrong:
            yield WorkflowProblem(where, f"the default does not fit: {wrong[0].message}", wrong[0].hint)


def resolve_inputs(
    workflow: Workflow, given: Mapping[str, Any], texts: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the value of every input: from `texts` (of a command line) or `given`, else its default.

    A text is converted to the number, boolean, list or mapping that its schema has. `InputInvalid` names an input that
    is missing, unknown, or of the wrong type. Values are never evaluated.
    """
    if not (workflow.inputs or given or texts):
        return {}
    schema = _schema(workflow.inputs)
    defaults = {name: each["default"] for name, each in workflow.inputs.items() if "default" in each}
    values = {**defaults, **given, **coerce(texts or {}, schema)}
    wrong = problems(schema, values)
    if wrong:
        key_path = workflow.source.where(("inputs", *wrong[0].path))
        hint = wrong[0].hint or f"see {key_path}; give it with --input NAME=VALUE"
        raise InputInvalid(f"inputs of {workflow.name}: {wrong[0].message}", hint=hint)
    return values


def evaluated_workflow(
    workflow: Workflow, inputs: Mapping[str, Any], run: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return a workflow with its expressions evaluated, and values from the environment redacted (V26).

    An expression whose value is known only when a step begins stays; the step's output records the value. Without a
    run, an expression that uses `run` stays as well, and an expression that fails is an error. In a run, such an
    expression stays, and fails its step, if that begins at all.
    """
    evaluator = _Evaluator(workflow.source.where, EvaluationScope(inputs=inputs, run=run or {}), in_run=run is not None)
    jobs = evaluator.value(workflow.source.value["jobs"], ("jobs",))
    found = {
        "id": workflow.id,
        "name": workflow.name,
        "inputs": dict(inputs),
        "tags": dict(workflow.tags),
        "concurrency": workflow.concurrency,
        "jobs": jobs,
    }
    hidden: dict[str, Any] = redact(found, evaluator.secrets)
    return hidden


def _examined(repo: Repo, name: str) -> tuple[Workflow | None, list[WorkflowProblem]]:
    """Read one workflow, and return everything that is wrong with it, by line."""
    try:
        workflow, problems = examine(repo, name)
    except WorkflowInvalid as error:
        where, _, message = error.message.partition(": ")
        return None, [WorkflowProblem(where, message, error.hint)]
    if workflow is None:
        return None, problems
    return workflow, sorted(dict.fromkeys([*problems, *problems_of(repo, workflow)]), key=_line)


def _line(problem: WorkflowProblem) -> int:
    number = problem.where.rpartition(" ")[2]
    return int(number) if number.isdecimal() else 0


def _step(
    repo: Repo, workflow: Workflow, job: Job, step: Step, models: dict[str, Definition]
) -> Iterator[WorkflowProblem]:
    outside: dict[KeyPath, Any] = {("for_each",): step.for_each}
    inside: dict[KeyPath, Any] = {
        ("guard",): step.guard,
        ("inputs",): step.inputs,
        ("assert",): list(step.asserts),
        ("message",): step.message,
    }
    each = step.for_each is not None
    wrong = list(_expressions(workflow, job, step, outside, each=False))
    wrong_model = list(_expressions(workflow, job, step, {("model",): step.model}, each=each))
    yield from wrong
    yield from wrong_model
    yield from _expressions(workflow, job, step, inside, each=each)
    if step.model is None or wrong_model or (wrong and has_expression(step.model)):
        return
    key_path = (*step.key_path, "model")
    try:
        names = _model_names(workflow, step)
    except BayouError as error:  # an expression that fails, or takes too long
        yield WorkflowProblem(
            workflow.source.where(key_path), error.message.partition(": ")[2] or error.message, error.hint
        )
        return
    for name in names:
        try:
            if name not in models:
                models[name] = find_model(repo, name)
            model = models[name]
        except BayouError as error:
            yield WorkflowProblem(workflow.source.where(key_path), error.message, error.hint)
            continue
        yield from _arguments(repo, workflow, step, model)


def _model_names(workflow: Workflow, step: Step) -> list[str]:
    """Return the models that a step names, as far as that is known before the elements of its loop are."""
    assert step.model is not None
    if not has_expression(step.model):
        return [step.model]
    used = [keys_used(name, found.source) for found in uses(step.model, str) for name in NAMES]
    if step.for_each is None or has_expression(step.for_each) or any(names != frozenset() for names in used):
        return []
    found = set()
    for each in elements(step.for_each, ""):
        scope = EvaluationScope(env={}, more={"each": each.fields()})
        found.add(evaluate(step.model, scope, lambda _: workflow.source.where((*step.key_path, "model"))).value)
    return sorted(name for name in found if isinstance(name, str))


def _arguments(repo: Repo, workflow: Workflow, step: Step, model: Definition) -> Iterator[WorkflowProblem]:
    """Yield the problems of a step's method and its arguments, with their lines in the workflow's file."""
    if step.method is None:
        return
    key_path = (*step.key_path, "method")
    try:
        found = request_problems(repo, RunRequest(model=model, method=step.method, inputs=step.inputs))
    except BayouError as error:
        yield WorkflowProblem(workflow.source.where(key_path), error.message, error.hint)
        return
    for problem in found:
        where = (*step.key_path, "inputs", *problem.path) if problem.path else key_path
        yield WorkflowProblem(workflow.source.where(where), problem.message, problem.hint)


def _expressions(
    workflow: Workflow, job: Job, step: Step, values: Mapping[KeyPath, Any], *, each: bool
) -> Iterator[WorkflowProblem]:
    """Yield the problems of expressions: syntax errors, and inputs or steps that do not exist."""
    names = (*NAMES, "each") if each else NAMES
    for key_path, value in values.items():
        if not has_expression(value):
            continue
        at: KeyPath = (*(step.key_path if step.name else job.key_path), *key_path)

        def where(inner: KeyPath, at: KeyPath = at) -> str:
            return workflow.source.where((*at, *inner))

        wrong = list(_wrong_expressions(value, where, names))
        yield from wrong
        if wrong:
            continue
        for found in uses(value, where):
            yield from _check_inputs_used(workflow, found.source, where(found.path))
            yield from _check_steps_used(workflow, job, step, found.source, where(found.path))


def _wrong_expressions(value: object, where: Where, names: Collection[str]) -> Iterator[WorkflowProblem]:
    """Yield a problem for each text whose expressions cannot be read, or use an unknown name."""
    for path, text in texts(value):
        try:
            check(text, lambda _, path=path: where(path), names)  # type: ignore[misc]
        except BayouError as error:
            location, _, message = error.message.partition(": ")
            yield WorkflowProblem(location, message, error.hint)


def _check_inputs_used(workflow: Workflow, source: str, where: str) -> Iterator[WorkflowProblem]:
    declared = workflow.source.value.get("inputs")
    for name in sorted(keys_used("inputs", source) or ()):
        if name not in workflow.inputs and not (isinstance(declared, dict) and name in declared):
            yield WorkflowProblem(where, f"there is no input {name}", nearest_hint(name, workflow.inputs, "inputs are"))


def _check_steps_used(workflow: Workflow, job: Job, step: Step, source: str, where: str) -> Iterator[WorkflowProblem]:
    earlier = before(workflow, job, step)
    for name in sorted(keys_used("steps", source) or ()):
        owners = [owner.name for owner, before_it in earlier if before_it.name == name]
        if not owners:
            known = any(other.name == name for _, other in workflow.steps())
            names = [before_it.name for _, before_it in earlier]
            hint = "name it in depends_on" if known else nearest_hint(name, names, "before it")
            message = f"{name} need not have ended by then" if known else f"there is no step {name}"
            yield WorkflowProblem(where, message, hint)
        elif len(owners) > 1 and job.name not in owners:
            yield WorkflowProblem(where, f"{name} is a step of {' and of '.join(owners)}", "rename one of them")


def _schema(inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    required = [name for name, schema in inputs.items() if "default" not in schema]
    return {"type": "object", "properties": dict(inputs), "required": required, "additionalProperties": False}


class _Evaluator:
    """Evaluates the values of a workflow, and collects the secrets that they used."""

    def __init__(self, where: Where, scope: EvaluationScope, *, in_run: bool) -> None:
        self._where = where
        self._scope = scope
        self._in_run = in_run
        self.secrets: set[str] = set()

    def value(self, value: Any, key_path: KeyPath) -> Any:
        match value:
            case dict():
                return {key: self.value(element, (*key_path, key)) for key, element in value.items()}
            case list():
                return [self.value(element, (*key_path, at)) for at, element in enumerate(value)]
            case str() if has_expression(value):
                return self._text(value, self._where(key_path))
        return value

    def _text(self, text: str, where: str) -> Any:
        used = {
            name
            for found in uses(text, lambda _: where)
            for name in compiled(found.source, where, _STEP_NAMES).variables()
        }
        if used & _KNOWN_LATER or ("run" in used and not self._in_run):
            return text
        try:
            found = evaluate(text, self._scope, lambda _: where)
        except ExpressionInvalid:
            if self._in_run:
                return text
            raise
        self.secrets |= found.secrets
        return found.value
