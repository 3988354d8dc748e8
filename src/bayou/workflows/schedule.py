"""Scheduling a run: `Scheduler` runs tasks concurrently, and `TaskFinder` turns the steps that may begin into tasks.

One thread schedules; each task runs in a thread of a pool, in a write session of its own. A task's successors begin as
soon as its work is done and recorded, while its push is still under way. Two tasks of a run never work on one model at
once, so no task waits for a lease that this process holds itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from queue import SimpleQueue
from typing import Any

from msgspec.structs import replace

from bayou.core.errors import BayouError, WorkflowInvalid
from bayou.data.runs import StepRecord as Record
from bayou.models import Definition, find_model
from bayou.models.expressions import EvaluationScope, has_expression
from bayou.repo import Repo
from bayou.workflows.definition import Job, Step
from bayou.workflows.recorder import Recorder
from bayou.workflows.state import FAILED, PENDING, SKIPPED, SUCCEEDED, Key, LoopElement, Task, blank, elements, names
from bayou.workflows.step_run import Scopes, Worker, evaluated_in

_OVERLAP = 2
"""Sessions that may be open for each task that may run: the others push."""

_STOP_S = 3.0
"""How long to wait for tasks to stop after a signal: the process has five seconds in all (V12)."""


class Scheduler:
    """Runs the tasks that are ready until none is left."""

    def __init__(self, ready: TaskFinder, worker: Worker, concurrency: int) -> None:
        self._ready = ready
        self._worker = worker
        self._limit = concurrency
        self._waiting: list[Task] = []
        self._open: dict[Future[None], Task] = {}
        self._running: set[Task] = set()
        self._events: SimpleQueue[Task | Future[None]] = SimpleQueue()

    def run(self) -> None:
        """Run everything; return when every session is closed. On a signal, stop the running tasks."""
        pool = ThreadPoolExecutor(self._limit * _OVERLAP, thread_name_prefix="bayou-step")
        try:
            while True:
                self._waiting += self._ready.tasks()
                self._start(pool)
                if not self._open:
                    break
                self._handle(self._events.get())
        except BaseException:
            self._worker.stop()
            for future in self._open:
                future.cancel()
            wait(self._open, timeout=_STOP_S)
            raise
        finally:
            pool.shutdown(wait=False)

    def _start(self, pool: ThreadPoolExecutor) -> None:
        """Start the waiting tasks that may run now."""
        busy = {task.model.id for task in self._open.values() if task.model is not None}
        by_job = Counter(task.job.name for task in self._running)
        by_step = Counter(task.key for task in self._running)
        for task in list(self._waiting):
            if len(self._running) >= self._limit or len(self._open) >= self._limit * _OVERLAP:
                return
            if (task.model is not None and task.model.id in busy) or _is_full(task, by_job, by_step):
                continue
            self._waiting.remove(task)
            self._running.add(task)
            by_job[task.job.name] += 1
            by_step[task.key] += 1
            if task.model is not None:
                busy.add(task.model.id)
            future = pool.submit(self._worker.work, task, lambda done=task: self._events.put(done))  # type: ignore[misc]
            self._open[future] = task
            future.add_done_callback(self._events.put)

    def _handle(self, event: Task | Future[None]) -> None:
        if isinstance(event, Task):
            self._running.discard(event)
            return
        task = self._open.pop(event)
        self._running.discard(task)
        event.result()  # a task raises only after a signal, or because of a bug


def _is_full(task: Task, by_job: Counter[str], by_step: Counter[Key]) -> bool:
    job, step = task.job.concurrency, task.step.concurrency
    return (job is not None and by_job[task.job.name] >= job) or (step is not None and by_step[task.key] >= step)


class TaskFinder:
    """Finds the tasks that may begin, each once: evaluates guards, expands loops, finds models.

    `kept` has the records of steps that succeeded in an earlier attempt.
    """

    def __init__(self, repo: Repo, recorder: Recorder, scopes: Scopes, kept: Mapping[tuple[Key, str], Record]) -> None:
        self._repo = repo
        self._recorder = recorder
        self._scopes = scopes
        self._kept = kept
        self._yielded: set[Key] = set()
        self._begun: set[str] = set()
        self._models: dict[str, Definition] = {}

    def tasks(self) -> Iterator[Task]:
        """Yield the tasks that may begin now and have not been yielded before."""
        state = self._recorder.state
        for job in state.workflow.jobs:
            waiting = [step for step in job.steps if self._is_waiting((job.name, step.name))]
            if not waiting or state.job_verdict(job) != "go" or not self._may_job_begin(job, waiting):
                continue
            for step in waiting:
                if self._is_waiting((job.name, step.name)) and state.step_verdict(job, step) == "go":
                    self._yielded.add((job.name, step.name))
                    yield from self._expand(job, step)

    def _is_waiting(self, key: Key) -> bool:
        return key not in self._yielded and self._recorder.state.step_status(key) == PENDING

    def _may_job_begin(self, job: Job, waiting: list[Step]) -> bool:
        """Evaluate a job's guard, once."""
        if job.name in self._begun or job.guard is None:
            return True
        self._begun.add(job.name)
        try:
            with self._scopes.of_job(job, job.guard) as scope:
                allowed = self._evaluate_guard(job.guard, scope, (*job.key_path, "guard"))
        except BayouError as error:
            for step in waiting:
                self._recorder.ended((job.name, step.name), replace(blank(step), status=FAILED, error=error.message))
            return False
        if not allowed:
            for step in waiting:
                self._recorder.skip((job.name, step.name))
        return allowed

    def _expand(self, job: Job, step: Step) -> Iterator[Task]:
        """Yield the tasks of a step: one, or one for each element of its `for_each`."""
        key = job.name, step.name
        if step.for_each is None:
            yield from self._task(job, step, step.name, None)
            return
        try:
            with self._scopes.of_step(job, step, step.for_each) as scope:
                found = elements(self._evaluated(step.for_each, scope, (*step.key_path, "for_each")), self._where(step))
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

    def _task(self, job: Job, step: Step, name: str, each: LoopElement | None) -> Iterator[Task]:
        """Yield the task, unless its guard is false, or evaluating the guard or the model fails."""
        key = job.name, step.name
        model = None
        try:
            with self._scopes.of_step(job, step, [step.guard, step.model], each) as scope:
                if step.guard is not None and not self._evaluate_guard(step.guard, scope, (*step.key_path, "guard")):
                    self._recorder.ended(key, replace(blank(step, name), status=SKIPPED))
                    return
                if step.model is not None:
                    model = self._model(self._evaluated(step.model, scope, (*step.key_path, "model")), step)
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

    def _evaluate_guard(self, guard: str | bool, scope: EvaluationScope, key_path: tuple[str | int, ...]) -> bool:
        found = self._evaluated(guard, scope, key_path)
        if not isinstance(found, bool):
            where = self._scopes.workflow.source.where(key_path)
            raise WorkflowInvalid(f"{where}: guard evaluates to {found!r}, which is neither true nor false")
        return found

    def _evaluated(self, value: Any, scope: EvaluationScope, key_path: tuple[str | int, ...]) -> Any:
        if not has_expression(value):
            return value
        found, secrets = evaluated_in(value, scope, self._scopes.workflow, key_path)
        self._recorder.add_secrets(secrets)
        return found

    def _where(self, step: Step) -> str:
        return self._scopes.workflow.source.where(step.key_path)
