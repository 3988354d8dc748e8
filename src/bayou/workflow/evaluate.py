"""What a workflow comes to: its inputs, and every expression that does not wait for data or for a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bayou.core.documents import Place
from bayou.core.errors import ExpressionInvalid
from bayou.models.expressions import EvaluationScope, evaluate, has_expression, uses
from bayou.models.expressions.check import Where, compiled
from bayou.models.expressions.evaluate import redact
from bayou.workflow.definition import Workflow

_LATER = frozenset({"steps", "each", "data"})
_NAMES = ("inputs", "env", "run", "data", "steps", "each")


def evaluated_workflow(
    workflow: Workflow, inputs: Mapping[str, Any], run: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return a workflow as it is to run, with what comes from the environment redacted.

    What is known only when a step begins stays an expression; what that came to is kept with the step's output. Without
    a run, so does what asks for `run`; and an expression that comes to nothing is an error then. In a run it is that of
    its step, if that begins at all.
    """
    walk = _Walk(workflow.source.where, EvaluationScope(inputs=inputs, run=run or {}), in_run=run is not None)
    jobs = walk.value(workflow.source.value["jobs"], ("jobs",))
    found = {
        "id": workflow.id,
        "name": workflow.name,
        "inputs": dict(inputs),
        "tags": dict(workflow.tags),
        "concurrency": workflow.concurrency,
        "jobs": jobs,
    }
    hidden: dict[str, Any] = redact(found, walk.secrets)
    return hidden


class _Walk:
    """One way through a workflow's values."""

    def __init__(self, where: Where, scope: EvaluationScope, *, in_run: bool) -> None:
        self._where = where
        self._scope = scope
        self._in_run = in_run
        self.secrets: set[str] = set()

    def value(self, value: Any, place: Place) -> Any:
        match value:
            case dict():
                return {key: self.value(one, (*place, key)) for key, one in value.items()}
            case list():
                return [self.value(one, (*place, at)) for at, one in enumerate(value)]
            case str() if has_expression(value):
                return self._text(value, self._where(place))
        return value

    def _text(self, text: str, where: str) -> Any:
        asked = {
            name for found in uses(text, lambda _: where) for name in compiled(found.source, where, _NAMES).variables()
        }
        if asked & _LATER or ("run" in asked and not self._in_run):
            return text
        try:
            found = evaluate(text, self._scope, lambda _: where)
        except ExpressionInvalid:
            if self._in_run:
                return text
            raise
        self.secrets |= found.secrets
        return found.value
