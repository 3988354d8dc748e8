"""Running a method: what is evaluated is kept first, then it runs, then its data and its output are recorded."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from bayou.core.clock import now
from bayou.core.errors import BayouError, Cancelled, MethodFailed
from bayou.data.catalog.rows import SavedVersion
from bayou.data.layout import Owner
from bayou.data.metadata import Metadata
from bayou.data.outputs import Output
from bayou.models.expressions.evaluate import redact
from bayou.models.method_context import MethodContext
from bayou.models.prepare import Prepared, RunRequest, prepare

if TYPE_CHECKING:
    from bayou.data.records import Records

__all__ = ["CANCELLED", "FAILED", "SUCCEEDED", "Prepared", "RunRequest", "WriteSession", "prepare", "run_method"]

SUCCEEDED, FAILED, CANCELLED = "succeeded", "failed", "cancelled"

STOP_S = 3.0
"""How long a method that is cancelled may take to stop: more than its processes have, less than a command has."""

_LOOK_S = 0.1


class HeldData(Protocol):
    """Leases; `lost` once one of them is somebody else's."""

    @property
    def lost(self) -> bool: ...


class WriteSession(Protocol):
    """What is needed of a session: its records, its leases, and what children need to work under those."""

    @property
    def records(self) -> Records: ...

    @property
    def leases(self) -> HeldData: ...

    @property
    def environment(self) -> Mapping[str, str]: ...


def run_method(
    session: WriteSession,
    prepared: Prepared,
    *,
    cancel: threading.Event,
    progress: Callable[[bytes], None] | None = None,
) -> Output:
    """Run a method inside a write session that holds its model's lease, and return its output as it was recorded.

    A method that fails is an output that says so, not an exception. Once `cancel` is set, or the session's lease is
    lost, the method is stopped, with all processes that it has started; so it is when this is interrupted (Ctrl-C),
    and then the interruption goes on once `cancelled` is recorded. `progress` is told what the method prints.
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
    stop = threading.Event()  # of this method alone: a lease that is lost ends no other
    with MethodContext(
        records,
        model,
        prepared.method,
        owner,
        tags=tags,
        secrets=prepared.secrets,
        environment=session.environment,
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
    """A method in a thread of its own, so that whoever waits for it can be interrupted, and it cannot."""

    def __init__(self, prepared: Prepared, work: MethodContext) -> None:
        self._prepared = prepared
        self._work = work
        self._over = threading.Event()
        self.outcome = _Outcome(CANCELLED, "cancelled, and did not stop")
        threading.Thread(target=self._run, name="bayou-method", daemon=True).start()

    def wait(self, cancel: threading.Event, leases: HeldData) -> None:
        """Wait until the method has ended, or has been told to and does not."""
        while not self._over.wait(_LOOK_S):
            if cancel.is_set() or leases.lost:  # V13: the tree's guard refuses what is written without the lease
                self.stop()
                return

    def stop(self) -> None:
        """Tell the method to stop, and wait for that, but not for ever."""
        self._work.cancelled.set()
        self._over.wait(STOP_S)

    def _run(self) -> None:
        try:
            self.outcome = self._outcome()
        finally:
            self._over.set()

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
        except (Exception, SystemExit) as error:  # noqa: BLE001  (a type is code of others; whatever it raises is its failure)
            import traceback  # noqa: PLC0415

            message = " ".join(work.redact(f"{type(error).__name__}: {error}").split())
            return _Outcome(FAILED, f"{message}\n{work.redact(''.join(traceback.format_exception(error)))}")
        return _Outcome(SUCCEEDED)


def _output(
    prepared: Prepared, begun: _Begun, outcome: _Outcome, made: list[Metadata], tags: Mapping[str, str]
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
        data=tuple(SavedVersion(one.name, one.version, one.size, one.sha256) for one in made),
        error=redact(outcome.error, prepared.secrets) if outcome.error is not None else None,
        run=request.run,
        workflow=request.workflow,
        job=request.job,
        step=request.step,
        tags=tags,
    )
