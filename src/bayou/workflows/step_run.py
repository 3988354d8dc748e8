"""Running one task: a method in a write session of its own, or an assertion.

A method that fails runs again as often as its step says, each attempt in a session of its own: a step that
waits for its next attempt holds no lease.

`Worker` runs tasks; `Scopes` provides what the expressions of a step can use: inputs, the run, the steps before it, and
the element of its loop.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import asdict, replace

from bayou.core.documents import KeyPath
from bayou.core.errors import AssertionFailed, BayouError, Cancelled
from bayou.data.outputs import Output
from bayou.data.runs import Run
from bayou.data.runs import StepRecord as Record
from bayou.models.expressions import DataLookup, EvaluationScope, evaluate, uses
from bayou.models.expressions.check import keys_used
from bayou.models.prepare import PreparedRun, RunRequest, prepare
from bayou.models.run import WriteSession, run_method
from bayou.state.connection import Connection
from bayou.sync.plan.policy import ModelRef
from bayou.sync.report import SyncReport
from bayou.workflows.definition import Job, Step, Workflow
from bayou.workflows.read import before
from bayou.workflows.recorder import Recorder
from bayou.workflows.state import (
    CANCELLED,
    FAILED,
    MAX_ATTEMPTS,
    RUNNING,
    SUCCEEDED,
    Key,
    LoopElement,
    Task,
    attempt_of,
    blank,
    has_ended,
)

Records = Callable[[Key], Mapping[str, Record]]
"""Returns the records of a step so far, by the name of each execution."""


class StepSession(WriteSession, Protocol):
    """A write session: after its block, `pulled` and `pushed` are the reports of its syncs."""

    @property
    def pulled(self) -> SyncReport | None: ...

    @property
    def pushed(self) -> SyncReport | None: ...


OnOutput = Callable[[str, str, bytes], None]
"""Called, from any thread, with the job, the name of a step's execution, and what its method has printed."""

OpenSession = Callable[[ModelRef], AbstractContextManager[StepSession]]
"""Opens a write session that holds a model's lease, pulls, and pushes once at its end."""


class Worker:
    """Runs the tasks of one run, in many threads."""

    def __init__(
        self,
        connection: Connection,
        run: Run,
        recorder: Recorder,
        scopes: Scopes,
        sessions: OpenSession,
        on_output: OnOutput | None = None,
    ) -> None:
        self._connection = connection
        self._run = run
        self._recorder = recorder
        self._scopes = scopes
        self._sessions = sessions
        self._on_output = on_output
        self._lock = threading.Lock()
        self._stopped = False
        self._running: set[threading.Event] = set()

    def stop(self) -> None:
        """Cancel the running tasks, and those that begin later."""
        with self._lock:
            self._stopped = True
            for event in self._running:
                event.set()

    def work(self, task: Task, done: Callable[[], None]) -> None:
        """Run a task, and record its result; then call `done`, since only its push is left to do.

        This raises only after a signal, or because of a bug.
        """
        begun = time.monotonic()
        record = blank(task.step, task.name, task.model.name if task.model else None)
        record = replace(record, attempts=self._recorder.state.earlier_attempts(task.key, task.name))
        self._recorder.started(task.key, record)
        try:
            if task.model is None:
                self._assert(task)
                self._recorder.ended(task.key, replace(record, status=SUCCEEDED, duration_s=_since(begun)))
                return
            prepared = self._prepare(task)
        except BayouError as error:
            failed = replace(record, status=FAILED, error=error.message, duration_s=_since(begun))
            self._recorder.ended(task.key, failed)
            return
        self._method(task, prepared, record, done)

    def _method(self, task: Task, prepared: PreparedRun, record: Record, done: Callable[[], None]) -> None:
        """Run a method until it succeeds, or no retry is left."""
        cancel = threading.Event()
        with self._cancelled_by(cancel):
            for retries_left in range(task.step.retries, -1, -1):
                record = self._attempt(task, prepared, record, cancel, retries_left, done)
                if has_ended(record.status):
                    return
                if cancel.wait(task.step.retry_delay_s):  # V12
                    self._recorder.ended(
                        task.key, replace(record, status=CANCELLED, error="cancelled between attempts")
                    )
                    return

    def _attempt(
        self,
        task: Task,
        prepared: PreparedRun,
        record: Record,
        cancel: threading.Event,
        retries_left: int,
        done: Callable[[], None],
    ) -> Record:
        """Run a method in a session; return the step's record, which has not ended if the method is to run again.

        The record is saved inside the session, so that the session's push has it.
        """
        begun = time.monotonic()
        change: int | None = None
        try:
            with self._sessions(prepared.request.model.ref) as session:
                output = run_method(
                    session, prepared, cancel=cancel, progress=self._printer(task), timeout_s=task.step.timeout_s
                )
                record = _with_output(record, output)
                if record.status == FAILED and retries_left:
                    record = self._next_attempt(record)
                    change = self._recorder.retrying(task.key, record)
                else:
                    change = self._recorder.ended(task.key, record)
                    done()
                if self._stopped:
                    raise KeyboardInterrupt  # after a signal nothing is pushed; the changes stay journaled
        except BayouError as error:
            if change is not None:
                self._recorder.push_failed(error)
                return record
            status = CANCELLED if self._stopped or isinstance(error, Cancelled) else FAILED
            record = replace(record, status=status, error=error.message, duration_s=_since(begun))
            if status == FAILED and retries_left:
                record = self._next_attempt(record)
                self._recorder.retrying(task.key, record)
            else:
                self._recorder.ended(task.key, record)
            return record
        self._recorder.pushed(change or 0, session.pulled, session.pushed)
        return record

    def _next_attempt(self, failed: Record) -> Record:
        """Return the record of a step that is to run again: what it came to is an earlier attempt now."""
        attempts = (*failed.attempts, attempt_of(failed, self._recorder.secrets))
        return replace(
            failed, status=RUNNING, output=None, duration_s=None, error=None, data=(), attempts=attempts[-MAX_ATTEMPTS:]
        )

    def _printer(self, task: Task) -> Callable[[bytes], None] | None:
        on_output = self._on_output
        if on_output is None:
            return None
        return lambda data: on_output(task.job.name, task.name, data)

    def _prepare(self, task: Task) -> PreparedRun:
        """Evaluate the inputs of a step, and check them against the method's schema."""
        assert task.model is not None
        step, model = task.step, task.model
        used = [step.inputs, dict(model.arguments), dict(model.methods)]
        with self._scopes.of_step(task.job, step, used, task.each) as scope:
            inputs, secrets = evaluated_in(step.inputs, scope, self._scopes.workflow, (*step.key_path, "inputs"))
            self._recorder.add_secrets(secrets)
            request = RunRequest(
                model=model,
                method=step.method or "",
                inputs=inputs,
                scope=scope,
                run=self._run.run_id,
                workflow=self._run.workflow,
                job=task.job.name,
                step=task.name,
                tags=self._run.tags,
                secrets=secrets,
            )
            prepared = prepare(self._connection, request)
        self._recorder.add_secrets(prepared.secrets)
        return prepared

    def _assert(self, task: Task) -> None:
        """Raise `AssertionFailed` for the first assertion that does not hold."""
        step = task.step
        key_path = (*step.key_path, "assert")
        with self._scopes.of_step(task.job, step, [*step.asserts, step.message], task.each) as scope:
            for at, expression in enumerate(step.asserts):
                found, secrets = evaluated_in(expression, scope, self._scopes.workflow, (*key_path, at))
                self._recorder.add_secrets(secrets)
                if found is True:
                    continue
                message, secrets = evaluated_in(step.message, scope, self._scopes.workflow, (*step.key_path, "message"))
                self._recorder.add_secrets(secrets)
                raise AssertionFailed(message or f"{expression} evaluates to {json.dumps(found)}")

    @contextmanager
    def _cancelled_by(self, event: threading.Event) -> Iterator[None]:
        """Let `stop` set this event during the block."""
        with self._lock:
            self._running.add(event)
            if self._stopped:
                event.set()
        try:
            yield
        finally:
            with self._lock:
                self._running.discard(event)


class Scopes(Struct, frozen=True):
    """Provides the evaluation scopes of the steps and jobs of one run."""

    connection: Connection
    workflow: Workflow
    inputs: Mapping[str, Any]
    run: Mapping[str, Any]
    records: Records

    @contextmanager
    def of_step(
        self, job: Job, step: Step, value: object, each: LoopElement | None = None
    ) -> Iterator[EvaluationScope]:
        """Yield the scope for evaluating a `value` of a step; data lookups work during the block."""
        with DataLookup(self.connection) as data:
            earlier = before(self.workflow, job, step)
            yield self._scope(data, self._steps(earlier, value, data), each)

    @contextmanager
    def of_job(self, job: Job, value: object) -> Iterator[EvaluationScope]:
        """Yield the scope of a job's guard: it has the steps of the jobs before it."""
        with DataLookup(self.connection) as data:
            no_step = Step("", job.name, job.key_path)
            yield self._scope(data, self._steps(before(self.workflow, job, no_step), value, data), None)

    def _scope(self, data: DataLookup, steps: Mapping[str, Any], each: LoopElement | None) -> EvaluationScope:
        more = {"each": each.fields()} if each is not None else {}
        return EvaluationScope(inputs=self.inputs, run=self.run, steps=steps, more=more, data=data)

    def _steps(self, earlier: list[tuple[Job, Step]], value: object, data: DataLookup) -> dict[str, Any]:
        """Return the steps that a value's expressions use; content is read only if an expression uses it."""
        sources = [found.source for found in uses(value, lambda _: "") if "steps" in found.source]
        if not sources:
            return {}
        content = any("content" in source or "attributes" in source for source in sources)
        used = [keys_used("steps", source) for source in sources]
        named = None if None in used else {name for names in used for name in names or ()}
        return {
            step.name: self._step(job, step, data, content=content)
            for job, step in earlier
            if named is None or step.name in named
        }

    def _step(self, job: Job, step: Step, data: DataLookup, *, content: bool) -> dict[str, Any]:
        records = self.records((job.name, step.name))
        if step.for_each is None:
            return _step_fields(records[step.name], data, content=content)
        each = {
            name.removeprefix(f"{step.name}[").removesuffix("]"): _step_fields(record, data, content=content)
            for name, record in records.items()
        }
        return {"each": each}


def evaluated_in(
    value: object, scope: EvaluationScope, workflow: Workflow, key_path: KeyPath
) -> tuple[Any, frozenset[str]]:
    """Evaluate a value at a key path of the file; return it, and the secrets that it used."""
    found = evaluate(value, scope, lambda inner: workflow.source.where((*key_path, *inner)))
    return found.value, found.secrets


def _step_fields(record: Record, data: DataLookup, *, content: bool) -> dict[str, Any]:
    """Return a step as expressions see it."""
    saved = {}
    for version in record.data:
        fields: dict[str, Any] = asdict(version)
        if content and record.model is not None:
            fields = data.version(record.model, version.name, version.version, content=True)
        saved[version.name] = {**fields, "model": record.model}
    return {"status": record.status, "error": record.error, "output": record.output, "data": saved}


def _since(begun: float) -> float:
    return round(time.monotonic() - begun, 3)


def _with_output(record: Record, output: Output) -> Record:
    """Return the record of a step with the result of its method."""
    return replace(
        record,
        status=output.status,
        output=output.id,
        duration_s=output.duration_s,
        error=output.error,
        data=output.data,
    )
