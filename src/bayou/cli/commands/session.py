"""How a command that writes runs: in one session, with its result shown whatever becomes of the push.

How a command that reads runs: without a lease, and without a request unless content must be fetched (V15).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, TypeVar

from bayou.cli.options import Common
from bayou.cli.output import Line, Part, note, warn
from bayou.cli.render import datastore as render_datastore
from bayou.cli.render.datastore import Document

if TYPE_CHECKING:
    from bayou.data.engine import CatalogEngine, Choice
    from bayou.data.records import Records
    from bayou.repo import Repo
    from bayou.session import Session
    from bayou.sync.plan.policy import ModelRef
    from bayou.sync.report import SyncReport

T = TypeVar("T")
Rendered = tuple[Document, Iterable[Part]]


def write(
    common: Common,
    repo: Repo,
    body: Callable[[Records], T],
    render: Callable[[T], Rendered],
    *,
    models: Sequence[ModelRef] = (),
    store_wide: bool = False,
    deletes: bool = False,
    engine: Choice = "auto",
) -> int:
    """Run `body` in a write session, show what it returned, and return the exit code of pull and push.

    `deletes`: it deletes what somebody has agreed to, however much that is. `engine` says who does the work.
    """
    return write_in_session(
        common,
        repo,
        lambda session: body(session.records),
        render,
        models=models,
        store_wide=store_wide,
        deletes=deletes,
        engine=engine,
    )


def write_in_session(
    common: Common,
    repo: Repo,
    body: Callable[[Session], T],
    render: Callable[[T], Rendered],
    *,
    models: Sequence[ModelRef] = (),
    store_wide: bool = False,
    deletes: bool = False,
    engine: Choice = "auto",
) -> int:
    """Do what `write` does, for a body that needs more of the session than its records.

    F100, V17: what was done here is told also if it could not be pushed; the error that follows says that.
    """
    from bayou.session import write_session  # noqa: PLC0415

    done: list[T] = []
    with common.output.progress() as progress:
        try:
            with write_session(
                repo,
                models=models,
                store_wide=store_wide,
                progress=progress,
                on_wait=common.output.tell,
                allow_mass_delete=deletes,
                engine=engine,
                connection=common.connect(repo),
            ) as session:
                done.append(body(session))
        except BaseException:
            if done:
                common.output.emit(*render(done[0]))
            raise
    reports = [report for report in (session.pulled, session.pushed) if report is not None]
    told = dict.fromkeys(line for report in reports for line in _worth_a_word(common, report))
    document, parts = render(done[0])
    said = [*parts, *told]
    common.output.emit(annotated(document, said), said)
    codes = {report.exit_code for report in reports}
    return 1 if 1 in codes else max(codes, default=0)


def annotated(document: Document, parts: Iterable[Part]) -> Document:
    """Add what people are warned of, or told besides the result, if there is anything."""
    lines = [part for part in parts if isinstance(part, Line)]
    beyond = {
        "warnings": [line.text for line in lines if line.label in ("warning", "error", "conflict")],
        "notes": [line.text for line in lines if line.label == "note"],
    }
    return {**document, **{name: said for name, said in beyond.items() if said}}


def _worth_a_word(common: Common, report: SyncReport) -> Iterable[Line]:
    for part in render_datastore.sync_text(report, verbose=common.verbose > 0):
        if isinstance(part, Line) and part.label is not None:
            yield part
    if report.pushed.renumbered:
        yield warn("somebody else has made the same version meanwhile; yours has the next number now")


@contextmanager
def reading(common: Common, engine: CatalogEngine | None = None) -> Iterator[tuple[Records, list[Line]]]:
    """Open the records, with a catalog that is up to date; also give what there is to say about that.

    A record that cannot be read is named (F121), and a catalog that had to be mended says so (F115). Without an
    `engine`, a bar shows how far a rebuild is, and is gone before anything else is printed.
    """
    repo = common.open_repo()
    from bayou.data.engine import CatalogEngine  # noqa: PLC0415
    from bayou.data.records import Records  # noqa: PLC0415

    with ExitStack() as opened:
        with ExitStack() as waiting:
            chosen = engine or CatalogEngine(progress=waiting.enter_context(common.output.progress()))
            records = opened.enter_context(Records(repo, engine=chosen, connection=common.connect(repo)))
            mended = records.catalog.refresh()
        told = [note(mended.line)] if mended.line is not None else []
        told += map(warn, mended.warnings)
        yield records, [*told, *(warn(bad.why) for bad in records.catalog.bad())]
