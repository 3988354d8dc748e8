"""Running the steps of a workflow side by side, as far as they do not wait for each other.

One thread decides; each task runs in a thread of a pool, in a write session of its own. A task's successors begin as
soon as its work is done and recorded: its push goes on meanwhile. Two tasks of one run never work on one model at
once, so none waits for a lease that this very process holds.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor, wait
from queue import SimpleQueue

from bayou.workflow.ready import Ready
from bayou.workflow.state import Key
from bayou.workflow.task import Task
from bayou.workflow.work import Worker

_OVERLAP = 2
"""Sessions that may be open, for each task that may be at work: the others push."""

_STOP_S = 3.0
"""How long to wait for tasks that were told to stop: the process has five seconds in all (V12)."""


class Engine:
    """Runs what is ready until nothing is left."""

    def __init__(self, ready: Ready, worker: Worker, concurrency: int) -> None:
        self._ready = ready
        self._worker = worker
        self._limit = concurrency
        self._waiting: list[Task] = []
        self._open: dict[Future[None], Task] = {}
        self._at_work: set[Task] = set()
        self._news: SimpleQueue[Task | Future[None]] = SimpleQueue()

    def run(self) -> None:
        """Run everything; return when every session is closed. On a signal, tasks at work are told to stop."""
        pool = ThreadPoolExecutor(self._limit * _OVERLAP, thread_name_prefix="bayou-step")
        try:
            while True:
                self._waiting += self._ready.tasks()
                self._start(pool)
                if not self._open:
                    break
                self._hear(self._news.get())
        except BaseException:
            self._worker.stop()
            for future in self._open:
                future.cancel()
            wait(self._open, timeout=_STOP_S)
            raise
        finally:
            pool.shutdown(wait=False)

    def _start(self, pool: ThreadPoolExecutor) -> None:
        """Start what may run beside what is at work already."""
        busy = {task.model.id for task in self._open.values() if task.model is not None}
        by_job = Counter(task.job.name for task in self._at_work)
        by_step = Counter(task.key for task in self._at_work)
        for task in list(self._waiting):
            if len(self._at_work) >= self._limit or len(self._open) >= self._limit * _OVERLAP:
                return
            if (task.model is not None and task.model.id in busy) or _full(task, by_job, by_step):
                continue
            self._waiting.remove(task)
            self._at_work.add(task)
            by_job[task.job.name] += 1
            by_step[task.key] += 1
            if task.model is not None:
                busy.add(task.model.id)
            future = pool.submit(self._worker.work, task, lambda done=task: self._news.put(done))  # type: ignore[misc]
            self._open[future] = task
            future.add_done_callback(self._news.put)

    def _hear(self, news: Task | Future[None]) -> None:
        if isinstance(news, Task):
            self._at_work.discard(news)
            return
        task = self._open.pop(news)
        self._at_work.discard(task)
        news.result()  # whatever a task raises is a bug, or a signal


def _full(task: Task, by_job: Counter[str], by_step: Counter[Key]) -> bool:
    job, step = task.job.concurrency, task.step.concurrency
    return (job is not None and by_job[task.job.name] >= job) or (step is not None and by_step[task.key] >= step)
