"""How a command gets at records: to write in one session, to read without a lease.

A command that writes runs its work in one write session (lease, pull, work, one push) and prints the result whatever
becomes of the push. A command that reads takes no lease and sends no request unless it must fetch content (V15).
Besides its result, a command has *remarks*: warnings, notes and hints about the pull, the push and the catalog.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, TypeVar

from bayou.cli.options import Common
from bayou.cli.output import Document, Line, Part, note, warn
from bayou.cli.render import datastore as render_datastore
from bayou.core import kept

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
    work: Callable[[Session], T],
    render: Callable[[T], Rendered],
    *,
    models: Sequence[ModelRef] = (),
    store_wide: bool = False,
    deletes: bool = False,
    engine: Choice = "auto",
) -> int:
    """Run `work` in a write session, print what it returned, and return the exit code of pull and push.

    `deletes`: the user has agreed to the deletes, so the guard against mass deletes does not apply. If the push fails,
    the result is printed all the same, and the error follows it (F100, V17).
    """
    from bayou.session import write_session  # noqa: PLC0415

    results: list[T] = []
    kept.now("nothing was deleted" if deletes else "nothing was saved")
    with common.output.progress() as progress:
        try:
            with write_session(
                repo,
                models=models,
                store_wide=store_wide,
                progress=progress,
                on_wait=common.output.notify,
                allow_mass_delete=deletes,
                engine=engine,
                connection=common.connect(repo),
            ) as session:
                results.append(work(session))
                if repo.config.datastore.url is not None and not repo.offline:
                    done = "deleted" if deletes else "saved"
                    kept.now(f"it is {done} here, and not pushed yet", go_on="bayou datastore sync --push")
        except BaseException:
            if results:
                common.output.emit(*render(results[0]))
            raise
    reports = [report for report in (session.pulled, session.pushed) if report is not None]
    document, rendered = render(results[0])
    parts = [*rendered, *sync_remarks(common, reports)]
    if any(report.pushed.renumbered for report in reports):
        parts.append(warn("another clone has made the same version meanwhile; yours has the next number now"))
    common.output.emit(with_remarks(document, parts), parts)
    return exit_code(reports)


@contextmanager
def reading(common: Common, engine: CatalogEngine | None = None) -> Iterator[tuple[Records, list[Line]]]:
    """Open the records with an up-to-date catalog; yield them, and remarks about the catalog.

    The remarks name each record that cannot be read (F121), and report a catalog that was repaired (F115). Without an
    `engine`, a bar shows how far a rebuild is; it disappears before the command prints anything.
    """
    repo = common.open_repo()
    from bayou.data.engine import CatalogEngine  # noqa: PLC0415
    from bayou.data.records import Records  # noqa: PLC0415

    with ExitStack() as opened:
        with ExitStack() as refreshing:
            chosen = engine or CatalogEngine(progress=refreshing.enter_context(common.output.progress()))
            records = opened.enter_context(Records(repo, engine=chosen, connection=common.connect(repo)))
            refreshed = records.catalog.refresh()
        remarks = [note(refreshed.line)] if refreshed.line is not None else []
        remarks += map(warn, refreshed.warnings)
        yield records, [*remarks, *(warn(bad.why) for bad in records.catalog.bad())]


def with_remarks(document: Document, parts: Iterable[Part]) -> Document:
    """Add the warnings and notes among `parts` to a document, if there are any."""
    lines = [part for part in parts if isinstance(part, Line)]
    added = {
        "warnings": [line.text for line in lines if line.label in ("warning", "error", "conflict")],
        "notes": [line.text for line in lines if line.label == "note"],
    }
    return {**document, **{name: texts for name, texts in added.items() if texts}}


def sync_remarks(common: Common, reports: Iterable[SyncReport]) -> list[Line]:
    """Return what the pulls and pushes of a command report besides their summaries, each line once."""
    remarks: dict[Line, None] = {}
    for report in reports:
        parts = render_datastore.sync_text(report, verbose=common.verbose > 0)
        remarks |= dict.fromkeys(part for part in parts if isinstance(part, Line) and part.label is not None)
    return list(remarks)


def exit_code(reports: Iterable[SyncReport]) -> int:
    """Return the exit code of several pulls and pushes: 1 if one of them failed, else the highest."""
    codes = {report.exit_code for report in reports}
    return 1 if 1 in codes else max(codes, default=0)
