"""One time that a step runs."""

from __future__ import annotations

from msgspec import Struct

from bayou.models import Definition
from bayou.workflow.definition import Job, Step
from bayou.workflow.each import Each
from bayou.workflow.state import Key


class Task(Struct, frozen=True, eq=False):
    """A step, one of the times that its `for_each` makes of it, and the model whose method it is (None: it asserts)."""

    job: Job
    step: Step
    name: str
    each: Each | None
    model: Definition | None

    @property
    def key(self) -> Key:
        return self.job.name, self.step.name
