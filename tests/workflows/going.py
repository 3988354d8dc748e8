"""Running workflows in this process, and looking at what they leave."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from bayou.data.records import Records
from bayou.data.runs import Run, StepRecord
from bayou.session import Session, write_session
from bayou.state.connection import Connection
from bayou.sync.plan.policy import ModelRef
from bayou.workflows.definition import WorkflowRef
from bayou.workflows.run import Outcome, new_run, resumed_run
from tests import api
from tests.sync.conftest import Clone
from tests.workflows.scene import ID

NEVER_S = 600.0
"""No push of the record alone while a test looks: what arrives has ridden on a step's push."""


def sessions(clone: Clone) -> Callable[[ModelRef], AbstractContextManager[Session]]:
    return lambda model: write_session(clone.repo, models=[model])


def go(clone: Clone, name: str = "nightly", every_s: float = NEVER_S, **inputs: Any) -> Outcome:
    return new_run(clone.repo, name, inputs).run(Connection(clone.repo), sessions(clone), every_s=every_s)


def resume(clone: Clone, run_id: str, *, abandoned: bool = False) -> Outcome:
    owner = WorkflowRef("workflow", ID, "nightly")
    with write_session(clone.repo, models=[owner]) as session:
        going = resumed_run(clone.repo, session.records, run_id, abandoned=abandoned)
    return going.run(Connection(clone.repo), sessions(clone), every_s=NEVER_S)


def statuses(run: Run) -> dict[str, str]:
    return {step.name: step.status for job in run.jobs for step in job.steps}


def step(run: Run, name: str) -> StepRecord:
    return next(step for job in run.jobs for step in job.steps if step.name == name)


def recorded(clone: Clone, run_id: str) -> Run:
    with Records(clone.repo) as records:
        return records.runs.get(run_id)


def commits(clone: Clone) -> int:
    return len(api.log(clone.repo, 1000))


def payload(clone: Clone, *roots: str) -> dict[str, bytes]:
    """Return the files of a clone below some payload roots."""
    return {path: data for path, data in clone.files.items() if path.partition("/")[0] in roots}
