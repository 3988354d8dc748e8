"""Spooled inputs on their way into a datastore (V22): used by a session of their model, each once.

`use_abandoned` is part of every session: it uses the inputs that killed or disconnected processes left, before the
session's own work, so that appends keep their order. `empty_spool` opens sessions for all models that have inputs.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from bayou.core.errors import (
    OUTAGES,
    BayouError,
    ContentDamaged,
    LeaseTimeout,
    NotPushed,
    RecordDamaged,
    RecordError,
    UsageError,
    keeping,
)
from bayou.data.changes import exclusive_change
from bayou.data.spool import SpooledInput, abandoned_inputs
from bayou.sync.plan.policy import ModelRef
from bayou.sync.report import SyncReport

if TYPE_CHECKING:
    from bayou.core.progress import Progress
    from bayou.data.records import Records
    from bayou.repo import Repo
    from bayou.state.connection import Connection

_WAIT = "they are kept here, so do not repeat them: the next write or `bayou datastore sync` uses them"


def use_abandoned(
    records: Records, models: Collection[ModelRef] | None, *, appends: bool = True, name: str | None = None
) -> list[str]:
    """Use the inputs of these models (None: of all) whose processes are gone; return sentences for the user.

    Without `appends`, only new versions are made: without the store's latest version, an append becomes a conflict if
    another machine has appended too. With `name`, only the inputs of that item are used. An input that can never be
    used, as one for data that is not streaming any more, is kept in `.bayou/state/spool/refused`.
    """
    remarks = []
    wanted = None if models is None else {(model.type, model.id) for model in models}
    for spooled in abandoned_inputs(records.repo):
        record = spooled.record
        mine = (wanted is None or (record.type, record.model_id) in wanted) and name in (None, record.name)
        if not mine or (record.command == "append" and not appends):
            continue
        with exclusive_change(records.context):
            pass  # a change set that a killed process left may be about this very input; now it is finished
        if spooled.waits:
            remarks += _use(records, spooled, alone=not appends)
    return remarks


def empty_spool(
    repo: Repo,
    connection: Connection,
    report: SyncReport,
    *,
    timeout: float | None = None,
    wait_s: float | None = None,
    progress: Progress | None = None,
) -> None:
    """Use every input whose process is gone, each in a session of its model; add to the report what the sessions moved.

    The report's warnings say what was done with each input. Where another process has the lease of a model, the inputs
    of the others are used all the same. Any other failure of the store ends this: the other inputs would wait for the
    same store. `NotPushed` says in the end that inputs still wait.
    """
    if repo.offline:
        return
    from bayou.session.write_session import write_session  # noqa: PLC0415  (which imports this module)

    failure: BayouError | None = None
    for model in dict.fromkeys(spooled.record.ref for spooled in abandoned_inputs(repo)):
        sessions = []
        try:
            with write_session(
                repo, models=[model], connection=connection, timeout=timeout, progress=progress, wait_s=wait_s
            ) as session:
                sessions.append(session)  # the session itself uses the inputs
        except OUTAGES as error:
            failure = error
        finally:
            for session in sessions:
                for moved in (session.pulled, session.pushed):
                    if moved is not None:
                        report.include(moved)
                report.warnings += session.remarks
        if failure is not None and not isinstance(failure, LeaseTimeout):
            break
    if failure is not None:
        message = f"inputs of earlier commands still wait: {failure.message}"
        raise NotPushed(message, failure, hint=keeping(_WAIT, failure))


def is_fault_of_input(error: BayouError) -> bool:
    """Return whether an input can never be used because of what its command asked for, whatever becomes of the data."""
    return isinstance(error, UsageError | RecordError) and not isinstance(error, RecordDamaged | ContentDamaged)


def _use(records: Records, spooled: SpooledInput, *, alone: bool) -> list[str]:
    record = spooled.record
    what = f"input for {record.model} {record.name} of {record.at}"
    try:
        saved = records.data.use_input(spooled, alone=alone)
    except (UsageError, RecordError) as error:
        if records.repo.offline or not is_fault_of_input(error):  # the store may have what it needs
            return [f"the {what} still waits: {error.message}"]
        return [f"the {what} cannot be used: {error.message}; it is kept as {spooled.refuse()}"]
    done = "saved as" if record.command == "put" else "appended to"
    return [f"the {what}, which an earlier command left, is {done} version {saved.metadata.version}"]
