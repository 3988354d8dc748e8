"""What the expressions of a step can ask for: inputs, the run, the steps before it, the element of its loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from msgspec import Struct

from bayou.core.documents import Place
from bayou.data.runs import StepRecord as Record
from bayou.models.expressions import DataLookup, EvaluationScope, evaluate, uses
from bayou.models.expressions.check import asked_of
from bayou.state.connection import Connection
from bayou.workflow.definition import Job, Step, Workflow
from bayou.workflow.each import Each
from bayou.workflow.graph import before
from bayou.workflow.state import Key

Records = Callable[[Key], Mapping[str, Record]]
"""Returns what a step has come to so far, by the name of each time that it ran."""


class Scopes(Struct, frozen=True):
    """Makes the scope of each step of one run."""

    connection: Connection
    workflow: Workflow
    inputs: Mapping[str, Any]
    run: Mapping[str, Any]
    records: Records

    @contextmanager
    def of_step(self, job: Job, step: Step, value: object, each: Each | None = None) -> Iterator[EvaluationScope]:
        """Give the scope in which a step's `value` is evaluated; data is open as long as the block lasts."""
        with DataLookup(self.connection.repo, self.connection) as data:
            earlier = before(self.workflow, job, step)
            yield self._scope(data, self._steps(earlier, value, data), each)

    @contextmanager
    def of_job(self, job: Job, value: object) -> Iterator[EvaluationScope]:
        """Give the scope of a job's guard: the steps of the jobs before it."""
        with DataLookup(self.connection.repo, self.connection) as data:
            nobody = Step("", job.name, job.place)
            yield self._scope(data, self._steps(before(self.workflow, job, nobody), value, data), None)

    def _scope(self, data: DataLookup, steps: Mapping[str, Any], each: Each | None) -> EvaluationScope:
        more = {"each": each.fields()} if each is not None else {}
        return EvaluationScope(inputs=self.inputs, run=self.run, steps=steps, more=more, data=data)

    def _steps(self, earlier: list[tuple[Job, Step]], value: object, data: DataLookup) -> dict[str, Any]:
        """Return the steps that are asked for; content is read only if somebody asks for it."""
        sources = [found.source for found in uses(value, lambda _: "") if "steps" in found.source]
        if not sources:
            return {}
        content = any("content" in source or "attributes" in source for source in sources)
        asked = [asked_of("steps", source) for source in sources]
        named = None if None in asked else {name for names in asked for name in names or ()}
        return {
            step.name: self._step(job, step, data, content=content)
            for job, step in earlier
            if named is None or step.name in named
        }

    def _step(self, job: Job, step: Step, data: DataLookup, *, content: bool) -> dict[str, Any]:
        records = self.records((job.name, step.name))
        if step.for_each is None:
            return _seen(records[step.name], data, content=content)
        each = {
            name.removeprefix(f"{step.name}[").removesuffix("]"): _seen(record, data, content=content)
            for name, record in records.items()
        }
        return {"each": each}


def _seen(record: Record, data: DataLookup, *, content: bool) -> dict[str, Any]:
    """Return a step as expressions see it."""
    made = {}
    for one in record.data:
        shown: dict[str, Any] = {"name": one.name, "version": one.version, "size": one.size, "sha256": one.sha256}
        if content and record.model is not None:
            shown = data.version(record.model, one.name, one.version, content=True)
        made[one.name] = {**shown, "model": record.model}
    return {"status": record.status, "error": record.error, "output": record.output, "data": made}


def evaluated_in(value: object, scope: EvaluationScope, workflow: Workflow, place: Place) -> tuple[Any, frozenset[str]]:
    """Evaluate a value that stands at a place of the file; return it, and the secrets that went into it."""
    found = evaluate(value, scope, lambda inner: workflow.source.where((*place, *inner)))
    return found.value, found.secrets
