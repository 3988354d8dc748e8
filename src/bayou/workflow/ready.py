"""From steps that may begin to tasks: guards are asked, loops expanded, models found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from bayou.core.errors import BayouError, WorkflowInvalid
from bayou.data.runs import StepRecord as Record
from bayou.models import Definition, find_model
from bayou.models.expressions import EvaluationScope, has_expression
from bayou.repo import Repo
from bayou.workflow.definition import Job, Step
from bayou.workflow.each import Each, elements, names
from bayou.workflow.recorder import Recorder
from bayou.workflow.scope import Scopes, evaluated_in
from bayou.workflow.state import FAILED, PENDING, SKIPPED, SUCCEEDED, Key, blank
from bayou.workflow.task import Task


class Ready:
    """Finds what may begin, each task once. `kept` is what an earlier attempt has done already."""

    def __init__(self, repo: Repo, recorder: Recorder, scopes: Scopes, kept: Mapping[tuple[Key, str], Record]) -> None:
        self._repo = repo
        self._recorder = recorder
        self._scopes = scopes
        self._kept = kept
        self._taken: set[Key] = set()
        self._begun: set[str] = set()
        self._models: dict[str, Definition] = {}

    def tasks(self) -> Iterator[Task]:
        """Yield the tasks that may begin now and have not been yielded before."""
        state = self._recorder.state
        for job in state.workflow.jobs:
            waiting = [step for step in job.steps if self._waits((job.name, step.name))]
            if not waiting or state.job_verdict(job) != "go" or not self._job_begins(job, waiting):
                continue
            for step in waiting:
                if self._waits((job.name, step.name)) and state.step_verdict(job, step) == "go":
                    self._taken.add((job.name, step.name))
                    yield from self._expanded(job, step)

    def _waits(self, key: Key) -> bool:
        return key not in self._taken and self._recorder.state.step_status(key) == PENDING

    def _job_begins(self, job: Job, waiting: list[Step]) -> bool:
        """Ask a job's guard, once."""
        if job.name in self._begun or job.guard is None:
            return True
        self._begun.add(job.name)
        try:
            with self._scopes.of_job(job, job.guard) as scope:
                goes = self._asked(job.guard, scope, (*job.place, "guard"))
        except BayouError as error:
            for step in waiting:
                self._recorder.ended((job.name, step.name), replace(blank(step), status=FAILED, error=error.message))
            return False
        if not goes:
            for step in waiting:
                self._recorder.skip((job.name, step.name))
        return goes

    def _expanded(self, job: Job, step: Step) -> Iterator[Task]:
        """Yield each time that a step runs."""
        key = job.name, step.name
        if step.for_each is None:
            yield from self._task(job, step, step.name, None)
            return
        try:
            with self._scopes.of_step(job, step, step.for_each) as scope:
                found = elements(self._evaluated(step.for_each, scope, (*step.place, "for_each")), self._where(step))
        except BayouError as error:
            self._recorder.ended(key, replace(blank(step), status=FAILED, error=error.message))
            return
        if not found:
            self._recorder.ended(key, replace(blank(step), status=SUCCEEDED))
            return
        labels = names(step.name, found, self._recorder.secrets)
        self._recorder.expand(key, [self._kept.get((key, label)) or blank(step, label) for label in labels])
        for label, each in zip(labels, found, strict=True):
            if (key, label) not in self._kept:
                yield from self._task(job, step, label, each)

    def _task(self, job: Job, step: Step, name: str, each: Each | None) -> Iterator[Task]:
        """Yield the task, unless its guard says no, or the guard or the model comes to nothing."""
        key = job.name, step.name
        model = None
        try:
            with self._scopes.of_step(job, step, [step.guard, step.model], each) as scope:
                if step.guard is not None and not self._asked(step.guard, scope, (*step.place, "guard")):
                    self._recorder.ended(key, replace(blank(step, name), status=SKIPPED))
                    return
                if step.model is not None:
                    model = self._model(self._evaluated(step.model, scope, (*step.place, "model")), step)
        except BayouError as error:
            self._recorder.ended(key, replace(blank(step, name), status=FAILED, error=error.message))
            return
        yield Task(job, step, name, each, model)

    def _model(self, text: Any, step: Step) -> Definition:
        if not isinstance(text, str):
            raise WorkflowInvalid(f"{self._where(step)}: {text} is not the name of a model")
        if text not in self._models:
            self._models[text] = find_model(self._repo, text)
        return self._models[text]

    def _asked(self, guard: str | bool, scope: EvaluationScope, place: tuple[str | int, ...]) -> bool:
        found = self._evaluated(guard, scope, place)
        if not isinstance(found, bool):
            where = self._scopes.workflow.source.where(place)
            raise WorkflowInvalid(f"{where}: guard has come to {found!r}, which is neither true nor false")
        return found

    def _evaluated(self, value: Any, scope: EvaluationScope, place: tuple[str | int, ...]) -> Any:
        if not has_expression(value):
            return value
        found, secrets = evaluated_in(value, scope, self._scopes.workflow, place)
        self._recorder.hide(secrets)
        return found

    def _where(self, step: Step) -> str:
        return self._scopes.workflow.source.where(step.place)
