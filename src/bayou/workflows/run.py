"""`WorkflowRun`: one run of a workflow, new (`new_run`) or resumed (`resumed_run`)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from bayou.core.clock import now
from bayou.core.errors import BayouError, NothingToResume
from bayou.core.file_lock import FileLock, is_locked
from bayou.core.ids import ulid
from bayou.core.kept import now as keep_now
from bayou.data.records import Records
from bayou.data.runs import Run
from bayou.repo import Repo
from bayou.state.connection import Connection
from bayou.sync.context import identity
from bayou.sync.report import SyncReport
from bayou.workflows.check import evaluated_workflow, find_checked, resolve_inputs
from bayou.workflows.definition import Workflow, WorkflowRef
from bayou.workflows.recorder import EVERY_S, OnStep, Recorder
from bayou.workflows.schedule import Scheduler, TaskFinder
from bayou.workflows.state import RUNNING, SUCCEEDED, State
from bayou.workflows.step_run import OnOutput, OpenSession, Scopes, Worker


class Outcome(Struct, frozen=True):
    """The result of a run. `unpushed` is the error of a push that failed; `reports` are those of its syncs."""

    run: Run
    duration_s: float
    reports: tuple[SyncReport, ...]
    unpushed: BayouError | None


class WorkflowRun:
    """A run that is checked and ready. Nothing is written before `run`."""

    def __init__(self, repo: Repo, workflow: Workflow, run: Run, earlier: Run | None = None) -> None:
        self._repo = repo
        self._workflow = workflow
        self._earlier = earlier
        self._begun = time.monotonic()
        self._recorder: Recorder | None = None
        self._run = run

    @property
    def run_id(self) -> str:
        return self._run.run_id

    @property
    def has_several_steps(self) -> bool:
        """Whether more than one method may run: several steps, or one for each element."""
        steps = [step for _, step in self._workflow.steps() if step.model is not None]
        return len(steps) > 1 or any(step.for_each is not None for step in steps)

    @property
    def is_recorded(self) -> bool:
        """Whether the run has begun: its record is saved, and can be resumed."""
        return self._recorder is not None and self._recorder.is_saved

    @property
    def outcome(self) -> Outcome:
        """The result so far, also after `run` has raised."""
        recorder = self._recorder
        return Outcome(
            recorder.run if recorder else self._run,
            round(time.monotonic() - self._begun, 3),
            tuple(recorder.reports) if recorder else (),
            recorder.unpushed if recorder else None,
        )

    def run(
        self,
        connection: Connection,
        sessions: OpenSession,
        *,
        on_step: OnStep | None = None,
        on_output: OnOutput | None = None,
        every_s: float = EVERY_S,
    ) -> Outcome:
        """Run every step, each in a session that `sessions` opens; return when all is done and pushed.

        An exception that ends the run, such as a signal's, leaves a record with the status `cancelled`.
        """
        with _marked_as_running(self._repo, self.run_id), Records(self._repo, connection=connection) as records:
            pulled = records.sync.pull_changed()
            state = State(self._workflow)
            kept = state.keep(self._earlier) if self._earlier else {}
            state.skip_unreachable()
            recorder = self._recorder = Recorder(records, state, self._run, every_s=every_s, on_step=on_step)
            recorder.reports.append(pulled)
            fields = run_fields(self._run)
            evaluated = evaluated_workflow(self._workflow, self._run.inputs, fields)
            scopes = Scopes(connection, self._workflow, self._run.inputs, fields, recorder.records_of)
            worker = Worker(connection, self._run, recorder, scopes, sessions, on_output)
            try:
                records.evaluated.save_workflow(self._workflow.id, self.run_id, evaluated)
                recorder.begin()
                keep_now(f"run {self.run_id} keeps its finished steps", go_on=f"bayou workflow resume {self.run_id}")
                Scheduler(TaskFinder(self._repo, recorder, scopes, kept), worker, self._workflow.concurrency).run()
                recorder.finish()
            except BaseException:
                recorder.cancel()
                if recorder.run.status == SUCCEEDED:  # only its push is left
                    keep_now(f"run {self.run_id} has succeeded here", go_on="bayou datastore sync --push")
                raise
        return self.outcome


def new_run(
    repo: Repo,
    name: str,
    given: Mapping[str, Any] | None = None,
    texts: Mapping[str, str] | None = None,
    tags: Mapping[str, str] | None = None,
) -> WorkflowRun:
    """Return a new run of a workflow, with inputs as values, or as texts of a command line.

    Every problem of the workflow or its inputs is raised here, with its file and line, before anything is written.
    """
    workflow = find_checked(repo.running(), name)
    inputs = resolve_inputs(workflow, given or {}, texts)
    run = Run(
        run_id=ulid(),
        workflow_id=workflow.id,
        workflow=workflow.name,
        status=RUNNING,
        started_at=now(),
        inputs=inputs,
        tags={**workflow.tags, **(tags or {})},
        by=identity(),
    )
    return WorkflowRun(repo, workflow, run)


def run_owner(connection: Connection, text: str) -> tuple[WorkflowRef, str]:
    """Return the workflow of a run, for the session that resumes it, and the run's id; `text` as for `runs.find`.

    Records of other machines are pulled first.
    """
    with Records(connection.repo, connection=connection) as records:
        records.sync.pull_changed()
        run = records.runs.find(text)
    return WorkflowRef("workflow", run.workflow_id, run.workflow), run.run_id


def resumed_run(repo: Repo, records: Records, run_id: str, *, abandoned: bool = False) -> WorkflowRun:
    """Return a run that continues where an earlier attempt ended, with its inputs, and the workflow as it is now.

    Call this in a session of the workflow (`Workflow.ref`): the record that it saves keeps others from resuming too.
    """
    earlier = records.runs.get(run_id)
    _check_resumable(earlier, abandoned=abandoned)
    workflow = find_checked(repo.running(), earlier.workflow_id)
    inputs = resolve_inputs(workflow, earlier.inputs)
    run = replace(earlier, status=RUNNING, finished_at=None, failed_step=None, inputs=inputs, by=identity())
    records.runs.save(run)
    return WorkflowRun(repo, workflow, run, earlier)


def runs_here(repo: Repo, run_id: str) -> bool:
    """Return whether a process works on this run now, in this repo on this machine."""
    return is_locked(_lock_file(repo, run_id))


@contextmanager
def _marked_as_running(repo: Repo, run_id: str) -> Iterator[None]:
    """Hold a lock for the block, so that a reader can tell a run in progress from one whose process was killed."""
    lock = FileLock(_lock_file(repo, run_id))
    lock.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock.acquire()  # only a run that was resumed as abandoned, and was not, has it already
    try:
        yield
    finally:
        lock.path.unlink(missing_ok=True)
        lock.release()


def _lock_file(repo: Repo, run_id: str) -> Path:
    return repo.state / "runs" / f"{run_id}.lock"


def run_fields(run: Run) -> dict[str, Any]:
    """Return the value of `run` in expressions."""
    return {"id": run.run_id, "workflow": run.workflow, "workflow_id": run.workflow_id, "started_at": run.started_at}


def _check_resumable(run: Run, *, abandoned: bool) -> None:
    if run.status == SUCCEEDED:
        raise NothingToResume(f"the run {run.run_id} has succeeded", hint="run it anew with `bayou workflow run NAME`")
    if run.status == RUNNING and not abandoned:
        raise NothingToResume(
            f"the run {run.run_id} goes on: {run.by or 'another user'} began it at {run.started_at}",
            hint=f"if its process is gone for good, `bayou workflow resume {run.run_id} --abandoned`",
        )
