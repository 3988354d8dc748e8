"""How a command gets at records: to write in one session, to read without a lease.

A command that writes runs its work in one write session (lease, pull, work, one push) and prints the result whatever
becomes of the push. A command that reads takes no lease and sends no request unless it must fetch content (V15).
Besides its result, a command has *remarks*: warnings, notes and hints about the pull, the push and the catalog. The
document of a command that writes has `pushed`: true, false (then `waiting` counts what waits here), or null for a
datastore that is a directory, where there is nothing to push.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from bayou.cli.options import Common
from bayou.cli.output import Document, Line, Part, age, count, note, warn
from bayou.cli.render import datastore as render_datastore
from bayou.core import kept

if TYPE_CHECKING:
    from bayou.core.errors import BayouError
    from bayou.data.engine import CatalogEngine, Choice
    from bayou.data.records import Records
    from bayou.data.spool import SpooledInput
    from bayou.data.staging import SaveResult
    from bayou.repo import Repo
    from bayou.session import Session
    from bayou.sync.plan.policy import ModelRef
    from bayou.sync.report import SyncReport

T = TypeVar("T")
Rendered = tuple[Document, Iterable[Part]]

_INPUT_KEPT = "is kept here, so do not repeat it: the next write or `bayou datastore sync` uses it"

_FETCH = "`bayou datastore sync --pull` fetches what others have pushed"

_FRESH_S = 600.0
"""A view that is not older than this is not mentioned."""


def write(
    common: Common,
    repo: Repo,
    work: Callable[[Session], T],
    render: Callable[[T], Rendered],
    *,
    models: Sequence[ModelRef] = (),
    store_wide: bool = False,
    deletes: bool = False,
    engine: Choice = "auto",
    alone: bool = False,
    refusal: str = "nothing was changed",
    spooled: bool = False,
) -> int:
    """Run `work` in a write session, print what it returned, and return the exit code of pull and push.

    `deletes`: the user has agreed to the deletes, so the guard against mass deletes does not apply. If the push fails,
    the result is printed all the same, and the error follows it (F100, V17). If the store cannot be had, work that may
    be done `alone` is done here; other work does not begin, and the error's hint says so by `refusal`, or, where the
    input of the work is `spooled`, that it is kept.
    """
    from bayou.core.errors import OUTAGES, keeping  # noqa: PLC0415
    from bayou.session import write_session  # noqa: PLC0415

    results: list[T] = []
    sessions: list[Session] = []
    if spooled:
        kept.now("the input is kept here: do not repeat it", go_on="bayou datastore sync")
    else:
        kept.now("nothing was deleted" if deletes else "nothing was saved")
    with common.output.progress() as progress:
        try:
            with write_session(
                repo,
                models=None if store_wide else models,
                progress=progress,
                on_wait=common.output.notify,
                allow_mass_delete=deletes,
                engine=engine,
                connection=common.connect(repo),
                alone=alone,
            ) as session:
                sessions.append(session)
                results.append(work(session))
                if repo.config.datastore.url is not None and not repo.offline:
                    done = "deleted" if deletes else "saved"
                    kept.now(f"it is {done} here, and not pushed yet", go_on="bayou datastore sync --push")
        except BaseException as error:
            if results:
                _emit(common, repo, render(results[0]), sessions[0], pushed=False)
            elif isinstance(error, OUTAGES) and not sessions:
                if spooled:
                    error.hint = keeping(f"it {_INPUT_KEPT}", error)
                else:
                    error.hint = f"{refusal}; {error.hint}" if error.hint else refusal
            raise
    left = _use_other_inputs(common, repo)
    reports = _emit(common, repo, render(results[0]), session, pushed=True, more=left)
    return exit_code(reports)


def _emit(
    common: Common, repo: Repo, rendered: Rendered, session: Session, *, pushed: bool, more: Sequence[Line] = ()
) -> list[SyncReport]:
    """Print the result of a session, with what its syncs report; return their reports."""
    reports = [report for report in (session.pulled, session.pushed) if report is not None]
    document, parts = rendered
    parts = [*parts, *sync_remarks(common, reports), *map(note, session.remarks), *more]
    if any(report.pushed.renumbered for report in reports):
        parts.append(warn("another clone has made the same version meanwhile; yours has the next number now"))
    state = push_state(common, repo, pushed=pushed and session.pushed is not None and not session.pushed.failed)
    if not pushed:
        parts += waiting_remarks(state)
    common.output.emit(with_remarks({**document, **state}, parts), parts)
    return reports


def push_state(common: Common, repo: Repo, *, pushed: bool) -> Document:
    """Return the fields `pushed` and, if that is false, `waiting` of a document."""
    if repo.config.datastore.url is None:
        return {"pushed": None}
    if pushed:
        return {"pushed": True}
    from bayou.state.freshness import freshness  # noqa: PLC0415

    return {"pushed": False, "waiting": freshness(common.connect(repo)).waiting}


def waiting_remarks(state: Document) -> list[Line]:
    """Return the note that says how much waits here, after a push that failed."""
    number = state.get("waiting")
    return [note(f"{count(number, 'change')} not pushed yet")] if isinstance(number, int) and number else []


def _use_other_inputs(common: Common, repo: Repo) -> list[Line]:
    """After a write that reached the store, use the inputs that earlier commands left for other models (V22).

    A failure is no failure of this command: the inputs stay, and are mentioned.
    """
    from bayou.state.freshness import pending_inputs  # noqa: PLC0415

    if repo.offline or not pending_inputs(repo):
        return []
    from bayou.core.errors import BayouError  # noqa: PLC0415
    from bayou.session.inputs import empty_spool  # noqa: PLC0415
    from bayou.sync.report import SyncReport  # noqa: PLC0415

    moved, failure = SyncReport(), []
    try:
        empty_spool(repo, common.connect(repo), moved, wait_s=0.0)
    except BayouError as error:
        failure = [warn(error.message)]
    return [*map(note, moved.warnings), *failure]


def write_input(
    common: Common,
    repo: Repo,
    spooled: SpooledInput,
    render: Callable[[SaveResult], Rendered],
    render_kept: Callable[[SpooledInput], Rendered],
) -> int:
    """Use a spooled input in a write session of its model (V22), and print what came of it.

    If the store cannot be had, a put is done here alone; an append stays in the spool, and so does a put if the
    datastore is a directory: `render_kept` prints it. All end with `NotPushed`. An error of the command itself drops
    the input, as if it had not been given; a signal and any other error keep it, and say so: a damaged index or a full
    disk is no fault of the input.
    """
    from bayou.cli import signals  # noqa: PLC0415
    from bayou.core.errors import OUTAGES, BayouError, Cancelled, NotPushed  # noqa: PLC0415
    from bayou.session.inputs import is_fault_of_input  # noqa: PLC0415

    begun = []
    appends = spooled.record.command == "append"
    alone = not appends and repo.config.datastore.url is not None

    def use(session: Session) -> SaveResult:
        begun.append(session)
        if repo.offline and appends:  # earlier appends first, although the store's version is not known
            from bayou.session.inputs import use_abandoned  # noqa: PLC0415

            session.remarks += use_abandoned(session.records, [spooled.record.ref], name=spooled.record.name)
        return session.records.data.use_input(spooled, alone=session.alone)

    with spooled:
        try:
            model = spooled.record.ref
            return write(common, repo, use, render, models=[model], alone=alone, spooled=True)
        except OUTAGES as error:
            if alone or begun:
                _say_kept(error, spooled)
                raise
            state = push_state(common, repo, pushed=False)
            document, parts = render_kept(spooled)
            parts = [*parts, *waiting_remarks(state)]
            common.output.emit(with_remarks({**document, **state}, parts), parts)
            done = "appended" if appends else "saved"
            raise NotPushed(f"the input is not {done} yet: {error.message}", error, hint=error.hint) from None
        except (KeyboardInterrupt, Cancelled) as error:
            if not spooled.waits:
                raise
            word = "terminated" if isinstance(error, signals.Terminated) else "interrupted"
            raise Cancelled(
                f"{word}; the input is kept here",
                hint="do not repeat it: the next write saves and pushes it; to go on: `bayou datastore sync`",
            ) from None
        except BayouError as error:
            if begun and is_fault_of_input(error):
                spooled.drop()
            else:
                _say_kept(error, spooled)
            raise


def _say_kept(error: BayouError, spooled: SpooledInput) -> None:
    """Say in an error's hint that its input waits, or its user would give it a second time."""
    from bayou.core.errors import keeping  # noqa: PLC0415

    if spooled.waits and "kept here" not in (error.hint or ""):
        error.hint = keeping(f"the input {_INPUT_KEPT}", error)


@contextmanager
def reading(common: Common, engine: CatalogEngine | None = None) -> Iterator[tuple[Records, list[Line]]]:
    """Open the records with an up-to-date catalog; yield them, and remarks about the catalog.

    The remarks name each record that cannot be read (F121), and report a catalog that was repaired (F115). Without an
    `engine`, a bar shows how far a rebuild is; it disappears before the command prints anything.
    """
    repo = common.open_repo()
    from bayou.core.errors import DataNotFound, RecordNotFound  # noqa: PLC0415
    from bayou.data.engine import CatalogEngine  # noqa: PLC0415
    from bayou.data.records import Records  # noqa: PLC0415

    with ExitStack() as opened:
        with ExitStack() as refreshing:
            chosen = engine or CatalogEngine(progress=refreshing.enter_context(common.output.progress()))
            records = opened.enter_context(Records(repo, engine=chosen, connection=common.connect(repo)))
            refreshed = records.catalog.refresh()
        remarks = freshness_remarks(common, repo)
        remarks += [note(refreshed.line)] if refreshed.line is not None else []
        remarks += map(warn, refreshed.warnings)
        try:
            yield records, [*remarks, *(warn(bad.why) for bad in records.catalog.bad())]
        except (DataNotFound, RecordNotFound) as error:
            if _is_unseen(common, repo):
                error.hint = _FETCH
            elif repo.config.datastore.url is not None and isinstance(error, DataNotFound) and error.hint:
                error.hint += "" if "data undelete" in error.hint else f"; {_FETCH}"
            raise


def _is_unseen(common: Common, repo: Repo) -> bool:
    """Whether this clone has never seen its store: what it does not have, the store may have."""
    if repo.config.datastore.url is None:
        return False
    from bayou.state.freshness import freshness  # noqa: PLC0415

    return freshness(common.connect(repo)).age_s is None


def freshness_remarks(common: Common, repo: Repo) -> list[Line]:
    """Say how old the view of a reading command is, if it is not fresh, and what waits here; no request is sent (V15).

    A datastore that is a directory is always fresh.
    """
    if repo.config.datastore.url is None:
        return []
    from bayou.state.freshness import freshness  # noqa: PLC0415

    found = freshness(common.connect(repo))
    parts = []
    if found.age_s is None:
        parts.append(f"the store has not been seen yet: {_FETCH}")
    elif found.age_s > _FRESH_S:
        parts.append(f"as of {age(found.age_s)} ago")
    if found.waiting:
        parts.append(f"{count(found.waiting, 'change')} not pushed")
    return [note("; ".join(parts))] if parts else []


def with_remarks(document: Document, parts: Iterable[Part]) -> Document:
    """Add the warnings and notes among `parts` to a document, if there are any."""
    lines = [part for part in parts if isinstance(part, Line)]
    added = {
        "warnings": [line.text for line in lines if line.label in ("warning", "error", "conflict")],
        "notes": [line.text for line in lines if line.label == "note"],
    }
    return {**document, **{name: texts for name, texts in added.items() if texts}}


def emit_with_remarks(common: Common, document: Document, parts: Iterable[Part], remarks: Sequence[Line]) -> None:
    """Print the result of a command that reads, and its remarks after it."""
    common.output.emit(with_remarks(document, remarks), chain(parts, remarks))


def sync_remarks(common: Common, reports: Iterable[SyncReport]) -> list[Line]:
    """Return what the pulls and pushes of a command report besides their summaries, each line once."""
    remarks: dict[Line, None] = {}
    for report in reports:
        parts = render_datastore.findings_text(report, verbose=common.verbose > 0)
        remarks |= dict.fromkeys(part for part in parts if isinstance(part, Line) and part.label is not None)
    return list(remarks)


def exit_code(reports: Iterable[SyncReport]) -> int:
    """Return the exit code of several pulls and pushes: 1 if one of them failed, else the highest."""
    codes = {report.exit_code for report in reports}
    return 1 if 1 in codes else max(codes, default=0)
