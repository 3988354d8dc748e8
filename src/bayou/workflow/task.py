"""One time that a step runs."""

from __future__ import annotations

from bayou.model import Definition
from bayou.quick import dataclass
from bayou.workflow.definition import Job, Step
from bayou.workflow.each import Each
from bayou.workflow.state import Key


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A step, one of the times that its `for_each` makes of it, and the model whose method it is (None: it asserts)."""

    job: Job
    step: Step
    name: str
    each: Each | None
    model: Definition | None

    @property
    def key(self) -> Key:
        return self.job.name, self.step.name
