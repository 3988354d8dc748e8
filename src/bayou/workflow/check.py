"""Everything that can be told of a workflow before it runs. Nothing is run, nothing written, no request sent (F094)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bayou.core.documents import Place
from bayou.core.errors import BayouError, WorkflowInvalid
from bayou.models import Definition, find_model
from bayou.models.expressions import NAMES, EvaluationScope, check, evaluate, has_expression, uses
from bayou.models.expressions.check import asked_of
from bayou.models.prepare import RunRequest, request_problems
from bayou.repo import Repo
from bayou.workflow.definition import Job, Step, Workflow
from bayou.workflow.each import elements
from bayou.workflow.find import examine, find_workflow, invalid, workflow_names
from bayou.workflow.graph import before
from bayou.workflow.inputs import check_schemas
from bayou.workflow.read import Problem, nearest


def validate_workflows(repo: Repo, name: str | None = None) -> tuple[list[str], list[Problem]]:
    """Return the names of the workflows that were looked at (one, or all), and everything that is wrong with them."""
    names = workflow_names(repo)
    if name is not None and name not in names:
        names = [find_workflow(repo, name).name]  # by its id; or it raises
    elif name is not None:
        names = [name]
    return names, [problem for one in names for problem in _problems(repo, one)]


def check_workflow(repo: Repo, workflow: Workflow) -> None:
    """Raise `WorkflowInvalid` with the first thing that is wrong with a workflow that could be read."""
    problems = list(problems_of(repo, workflow))
    if problems:
        raise invalid(workflow.name, problems)


def problems_of(repo: Repo, workflow: Workflow) -> Iterator[Problem]:
    """Yield what is wrong with the inputs, expressions, models, methods and arguments of a workflow."""
    yield from check_schemas(workflow)
    models: dict[str, Definition] = {}
    for job in workflow.jobs:
        nobody = Step("", job.name, job.place)
        yield from _expressions(workflow, job, nobody, {("guard",): job.guard}, each=False)
        for step in job.steps:
            yield from _step(repo, workflow, job, step, models)


def _problems(repo: Repo, name: str) -> list[Problem]:
    try:
        workflow, problems = examine(repo, name)
    except WorkflowInvalid as error:
        where, _, message = error.message.partition(": ")
        return [Problem(where, message, error.hint)]
    if problems or workflow is None:
        return problems
    return list(problems_of(repo, workflow))


def _step(repo: Repo, workflow: Workflow, job: Job, step: Step, models: dict[str, Definition]) -> Iterator[Problem]:
    outside: dict[Place, Any] = {("for_each",): step.for_each}
    inside: dict[Place, Any] = {
        ("guard",): step.guard,
        ("model",): step.model,
        ("inputs",): step.inputs,
        ("assert",): list(step.asserts),
        ("message",): step.message,
    }
    wrong = list(_expressions(workflow, job, step, outside, each=False))
    wrong += _expressions(workflow, job, step, inside, each=step.for_each is not None)
    yield from wrong
    if step.model is None or wrong:
        return
    place = (*step.place, "model")
    try:
        names = _model_names(workflow, step)
    except BayouError as error:  # an expression that comes to nothing, or takes too long
        yield Problem(workflow.source.where(place), error.message.partition(": ")[2] or error.message, error.hint)
        return
    for name in names:
        try:
            if name not in models:
                models[name] = find_model(repo, name)
            model = models[name]
        except BayouError as error:
            yield Problem(workflow.source.where(place), error.message, error.hint)
            continue
        yield from _arguments(repo, workflow, step, model)


def _model_names(workflow: Workflow, step: Step) -> list[str]:
    """Return the models that a step is known to name: where a loop is not written out, that shows when it runs."""
    assert step.model is not None  # whoever has none is not asked
    if not has_expression(step.model):
        return [step.model]
    asked = [asked_of(name, found.source) for found in uses(step.model, str) for name in NAMES]
    if step.for_each is None or has_expression(step.for_each) or any(names != frozenset() for names in asked):
        return []
    found = set()
    for each in elements(step.for_each, ""):
        scope = EvaluationScope(env={}, more={"each": each.fields()})
        found.add(evaluate(step.model, scope, lambda _: workflow.source.where((*step.place, "model"))).value)
    return sorted(name for name in found if isinstance(name, str))


def _arguments(repo: Repo, workflow: Workflow, step: Step, model: Definition) -> Iterator[Problem]:
    """Yield what is wrong with a step's method and its arguments, where its file says so."""
    place = (*step.place, "method")
    try:
        found = request_problems(repo, RunRequest(model=model, method=step.method or "", inputs=step.inputs))
    except BayouError as error:
        yield Problem(workflow.source.where(place), error.message, error.hint)
        return
    for one in found:
        where = (*step.place, "inputs", *one.path) if one.path else place
        yield Problem(workflow.source.where(where), one.message, one.hint)


def _expressions(
    workflow: Workflow, job: Job, step: Step, values: Mapping[Place, Any], *, each: bool
) -> Iterator[Problem]:
    """Yield the expressions that cannot be read, or that ask for inputs or steps that are not there."""
    names = (*NAMES, "each") if each else NAMES
    for place, value in values.items():
        if not has_expression(value):
            continue
        at: Place = (*(step.place if step.name else job.place), *place)

        def where(inner: Place, at: Place = at) -> str:
            return workflow.source.where((*at, *inner))

        try:
            check(value, where, names)
        except BayouError as error:
            said, _, message = error.message.partition(": ")
            yield Problem(said, message, error.hint)
            continue
        for found in uses(value, where):
            yield from _inputs_asked(workflow, found.source, where(found.path))
            yield from _steps_asked(workflow, job, step, found.source, where(found.path))


def _inputs_asked(workflow: Workflow, source: str, where: str) -> Iterator[Problem]:
    for name in sorted(asked_of("inputs", source) or ()):
        if name not in workflow.inputs:
            yield Problem(where, f"there is no input {name}", nearest(name, workflow.inputs, "inputs are"))


def _steps_asked(workflow: Workflow, job: Job, step: Step, source: str, where: str) -> Iterator[Problem]:
    earlier = before(workflow, job, step)
    for name in sorted(asked_of("steps", source) or ()):
        owners = [one.name for one, each in earlier if each.name == name]
        if not owners:
            known = any(one.name == name for _, one in workflow.steps())
            hint = "name it in depends_on" if known else nearest(name, [one.name for _, one in earlier], "before it")
            message = f"{name} need not have ended by then" if known else f"there is no step {name}"
            yield Problem(where, message, hint)
        elif len(owners) > 1 and job.name not in owners:
            yield Problem(where, f"{name} is a step of {' and of '.join(owners)}", "rename one of them")
