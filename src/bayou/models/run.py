"""Running a method: save its evaluated definition, run it, then record its data and its output."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping

from msgspec import Struct

from bayou.core.clock import now
from bayou.core.errors import BayouError, Cancelled, MethodFailed
from bayou.data.catalog.rows import SavedVersion
from bayou.data.layout import Owner
from bayou.data.metadata import Metadata
from bayou.data.outputs import Output
from bayou.models.expressions.evaluate import redact
from bayou.models.method_context import HeldLeases, MethodContext, WriteSession
from bayou.models.prepare import PreparedRun, RunRequest, prepare

__all__ = ["CANCELLED", "FAILED", "SUCCEEDED", "PreparedRun", "RunRequest", "WriteSession", "prepare", "run_method"]

SUCCEEDED, FAILED, CANCELLED = "succeeded", "failed", "cancelled"

STOP_S = 3.0
"""How long a cancelled method may take to stop: more than its processes get, less than a command gets."""

_POLL_S = 0.1


def run_method(
    session: WriteSession,
    prepared: PreparedRun,
    *,
    cancel: threading.Event,
    progress: Callable[[bytes], None] | None = None,
    timeout_s: float | None = None,
) -> Output:
    """Run a method inside a write session that holds its model's lease, and return its output as it was recorded.

    The failure of a method is a status of its output, not an exception. Once `cancel` is set, or the session's lease is
    lost, the method is stopped with all processes that it has started. An interrupt (Ctrl-C) does the same, and is
    raised again once the output is recorded as cancelled. After `timeout_s` the method is stopped, too, and has failed.
    `progress` is called with what the method prints.
    """
    request, model = prepared.request, prepared.request.model.ref
    output_id = str(uuid.uuid4())
    records = session.records
    records.evaluated.save_definition(model, output_id, prepared.to_document())
    owner = Owner.of(
        model,
        records.repo.config.repo_id,
        output=output_id,
        run=request.run,
        workflow=request.workflow,
        job=request.job,
        step=request.step,
    )
    tags = {**request.model.tags, **request.tags}
    begun = _Begun(output_id, now(), time.monotonic())
    stop = threading.Event()  # of this method alone: its lost lease stops no other method
    with MethodContext(
        session,
        prepared,
        owner,
        tags=tags,
        cancelled=stop,
        printed=progress,
    ) as work:
        running = _Running(prepared, work)
        try:
            running.wait(cancel, session.leases, timeout_s)
        except BaseException:
            running.stop()
            records.outputs.save(model, _output(prepared, begun, running.outcome, work.end(), tags))
            raise
        return records.outputs.save(model, _output(prepared, begun, running.outcome, work.end(), tags))


class _Begun(Struct, frozen=True):
    output_id: str
    at: str
    clock: float


class _Outcome(Struct, frozen=True):
    status: str
    error: str | None = None


class _Running:
    """A method in a thread of its own, so that an interrupt reaches the waiting thread, and not the method."""

    def __init__(self, prepared: PreparedRun, work: MethodContext) -> None:
        self._prepared = prepared
        self._work = work
        self._ended = threading.Event()
        self._abandoned = False
        self.outcome = _Outcome(CANCELLED, "cancelled, and did not stop")
        threading.Thread(target=self._run, name="bayou-method", daemon=True).start()

    def wait(self, cancel: threading.Event, leases: HeldLeases, timeout_s: float | None) -> None:
        """Wait until the method has ended, or was stopped because of `cancel`, a lost lease or the timeout."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._ended.wait(_POLL_S if until is None else max(0.0, min(_POLL_S, until - time.monotonic()))):
            if cancel.is_set() or leases.lost:  # V13: the tree's guard refuses writes without the lease
                self.stop()
                return
            if until is not None and time.monotonic() >= until:
                self.stop()
                if self.outcome.status == CANCELLED:
                    stopped = "was stopped" if self._ended.is_set() else "did not stop"
                    self.outcome = _Outcome(FAILED, f"took longer than its timeout of {timeout_s:g} s, and {stopped}")
                return

    def stop(self) -> None:
        """Cancel the method, and wait up to `STOP_S` for its end."""
        self._work.cancelled.set()
        self._abandoned = not self._ended.wait(STOP_S)

    def _run(self) -> None:
        try:
            outcome = self._outcome()
            if not self._abandoned:
                self.outcome = outcome
        finally:
            self._ended.set()

    def _outcome(self) -> _Outcome:
        prepared, work = self._prepared, self._work
        try:
            prepared.type.run(prepared.method.name, prepared.arguments, work)
            if work.cancelled.is_set():
                return _Outcome(CANCELLED, "cancelled")
            work.publish()
        except Cancelled:
            return _Outcome(CANCELLED, "cancelled")
        except MethodFailed as error:
            details = f"\n{error.details}" if error.details else ""
            return _Outcome(FAILED, f"{error.message}{details}")
        except BayouError as error:
            return _Outcome(FAILED, error.message)
        except (Exception, SystemExit) as error:  # noqa: BLE001  (a type is foreign code; every exception is its failure)
            return _Outcome(FAILED, _explained(error, work))
        return _Outcome(SUCCEEDED)


def _explained(error: BaseException, work: MethodContext) -> str:
    """Return the message of an exception with the file and line of the foreign code, and then the traceback."""
    from bayou.models.types.python_child import details_of, place_of  # noqa: PLC0415

    message = " ".join(work.redact(f"{type(error).__name__}: {error}").split())
    where = place_of(error, work.root)
    details = details_of(error)
    work.log_failure(details)
    return f"{message}{f' ({work.redact(where)})' if where else ''}\n{work.redact(details)}"


def _output(
    prepared: PreparedRun, begun: _Begun, outcome: _Outcome, saved: list[Metadata], tags: Mapping[str, str]
) -> Output:
    request = prepared.request
    return Output(
        id=begun.output_id,
        method=prepared.method.name,
        status=outcome.status,
        started_at=begun.at,
        finished_at=now(),
        duration_s=round(time.monotonic() - begun.clock, 3),
        inputs=prepared.inputs,
        data=tuple(SavedVersion(metadata.name, metadata.version, metadata.size, metadata.sha256) for metadata in saved),
        error=redact(outcome.error, prepared.secrets) if outcome.error is not None else None,
        run=request.run,
        workflow=request.workflow,
        job=request.job,
        step=request.step,
        tags=tags,
    )
