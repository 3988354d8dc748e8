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
from bayou.models.method_context import Leases, MethodContext, WriteSession
from bayou.models.prepare import Prepared, RunRequest, prepare

__all__ = ["CANCELLED", "FAILED", "SUCCEEDED", "Prepared", "RunRequest", "WriteSession", "prepare", "run_method"]

SUCCEEDED, FAILED, CANCELLED = "succeeded", "failed", "cancelled"

STOP_S = 3.0
"""How long a cancelled method may take to stop: more than its processes get, less than a command gets."""

_POLL_S = 0.1


def run_method(
    session: WriteSession,
    prepared: Prepared,
    *,
    cancel: threading.Event,
    progress: Callable[[bytes], None] | None = None,
) -> Output:
    """Run a method inside a write session that holds its model's lease, and return its output as it was recorded.

    The failure of a method is a status of its output, not an exception. Once `cancel` is set, or the session's lease is
    lost, the method is stopped with all processes that it has started. An interrupt (Ctrl-C) does the same, and is
    raised again once the output is recorded as cancelled. `progress` is called with what the method prints.
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
            running.wait(cancel, session.leases)
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

    def __init__(self, prepared: Prepared, work: MethodContext) -> None:
        self._prepared = prepared
        self._work = work
        self._ended = threading.Event()
        self.outcome = _Outcome(CANCELLED, "cancelled, and did not stop")
        threading.Thread(target=self._run, name="bayou-method", daemon=True).start()

    def wait(self, cancel: threading.Event, leases: Leases) -> None:
        """Wait until the method has ended, or was stopped because of `cancel` or a lost lease."""
        while not self._ended.wait(_POLL_S):
            if cancel.is_set() or leases.lost:  # V13: the tree's guard refuses writes without the lease
                self.stop()
                return

    def stop(self) -> None:
        """Cancel the method, and wait up to `STOP_S` for its end."""
        self._work.cancelled.set()
        self._ended.wait(STOP_S)

    def _run(self) -> None:
        try:
            self.outcome = self._outcome()
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
            import traceback  # noqa: PLC0415

            message = " ".join(work.redact(f"{type(error).__name__}: {error}").split())
            return _Outcome(FAILED, f"{message}\n{work.redact(''.join(traceback.format_exception(error)))}")
        return _Outcome(SUCCEEDED)


def _output(
    prepared: Prepared, begun: _Begun, outcome: _Outcome, saved: list[Metadata], tags: Mapping[str, str]
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
