"""`bayou workflow run NAME`, `run search` and `run get`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bayou.cli import parameters, sentences, workflow_documents, workflow_sentences
from bayou.cli.common import Common, Group
from bayou.cli.inputs import input_options, read_file
from bayou.cli.output import Line
from bayou.cli.reading import reading
from bayou.cli.writing import annotated

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from bayou.data.runs import StepRecord
    from bayou.repo import Repo
    from bayou.session import Session
    from bayou.sync.plan.policy import ModelRef
    from bayou.sync.report import SyncReport
    from bayou.workflows.run import WorkflowRun

_START = "NAME"
"""What the command that runs a workflow is called inside: nobody types it."""

_STATUSES = ("pending", "running", "succeeded", "failed", "cancelled")


class RunGroup(Group):
    """Takes `search` and `get` for commands, and anything else for the name of a workflow."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing and self._first(args) not in self.commands:
            args = [_START, *args]
        return super().parse_args(ctx, args)

    def _first(self, args: Sequence[str]) -> str | None:
        """Return the first word, past options that every command takes."""
        words = iter(args)
        for word in words:
            if word == "--repo":
                next(words, None)
            elif not word.startswith("-"):
                return word
            elif not any(word.partition("=")[0] in option.opts for option in self.common):
                return None
        return None


@click.group("run", cls=RunGroup, invoke_without_command=True)
def run() -> None:
    """Run a workflow, or look at runs: `run search`, `run get`."""


@run.command(_START, writes=True, hidden=True)
@click.argument("name")
@input_options
@click.option("tags", "--tag", type=parameters.assignment, multiple=True, metavar="K=V", help="A tag of the run.")
@click.pass_obj
def start(
    common: Common,
    name: str,
    texts: tuple[tuple[str, str], ...],
    file: Path | None,
    tags: tuple[tuple[str, str], ...],
) -> int:
    """Run a workflow: each step holds its model's lease, and pushes what it made.

    NAME is its name or id. `run search` and `run get` look at runs.
    """
    given, named = read_file(file), parameters.named_once("--input", texts)
    labels = parameters.named_once("--tag", tags)
    repo = common.open_repo()
    from bayou.workflows.run import new_run  # noqa: PLC0415

    return carry_out(common, repo, new_run(repo, name, given, named, labels))


@run.command()
@click.argument("text", required=False)
@click.option("--status", type=click.Choice(_STATUSES), help="Only runs that have come to this.")
@click.option("--since", type=parameters.duration, metavar="AGE", help="Only runs that began within this time, as 7d.")
@click.option("name", "--workflow", metavar="NAME", help="Only runs of this workflow, by name or id.")
@click.option("tags", "--tag", type=parameters.assignment, multiple=True, metavar="K=V", help="Only runs so tagged.")
@click.option("--limit", type=click.IntRange(min=0), default=50, show_default=True, help="At most so many.")
@click.pass_obj
def search(
    common: Common,
    text: str | None,
    status: str | None,
    since: float | None,
    name: str | None,
    tags: tuple[tuple[str, str], ...],
    limit: int,
) -> None:
    """List runs, the newest first.

    TEXT stands in a run's id, workflow, inputs, tags, steps or errors. No file is opened, and no request sent.
    """
    labels = parameters.named_once("--tag", tags)
    with reading(common) as (records, told):
        rows, total = records.runs.search(
            text, status=status, since=_ago(since), workflow=name, tags=labels, limit=limit
        )
        parts = [*workflow_sentences.runs(rows, total), *told]
        common.output.emit(annotated(workflow_documents.runs(rows, total), told), parts)


@run.command()
@click.argument("run_id")
@click.pass_obj
def get(common: Common, run_id: str) -> None:
    """Show a run: its inputs, and what each step came to."""
    with reading(common) as (records, told):
        found = records.runs.get(run_id)
        document = annotated(workflow_documents.run(found), told)
        common.output.emit(document, [*workflow_sentences.run(found), *told])


def carry_out(common: Common, repo: Repo, going: WorkflowRun) -> int:
    """Run a workflow, telling each step as it begins and ends; show what came of it, and return the exit code.

    F100, V17: what was done is told also after a signal, or if it could not be pushed; the error follows.
    """
    from bayou.session import write_session  # noqa: PLC0415

    connection = common.connect(repo)

    def sessions(model: ModelRef) -> AbstractContextManager[Session]:
        return write_session(repo, models=[model], on_wait=common.output.tell, connection=connection)

    def on_step(job: str, record: StepRecord) -> None:
        common.output.tell(workflow_sentences.step(job, record))

    try:
        outcome = going.go(sessions, on_step=on_step, connection=connection)
    except BaseException:
        left = going.outcome
        common.output.emit(*_rendered(left.run, left.duration_s, []))
        raise
    told = dict.fromkeys(line for report in outcome.reports for line in _worth_a_word(common, report))
    common.output.emit(*_rendered(outcome.run, outcome.duration_s, list(told)))
    if outcome.unpushed is not None:
        raise outcome.unpushed
    codes = {report.exit_code for report in outcome.reports}
    return 1 if outcome.run.status != "succeeded" or 1 in codes else max(codes, default=0)


def _rendered(run: Any, duration_s: float, told: list[Line]) -> Any:
    parts = [*workflow_sentences.outcome(run, duration_s), *told]
    return annotated(workflow_documents.outcome(run, duration_s), told), parts


def _worth_a_word(common: Common, report: SyncReport) -> list[Line]:
    parts = sentences.sync(report, verbose=common.verbose > 0)
    return [part for part in parts if isinstance(part, Line) and part.label is not None]


def _ago(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    import time  # noqa: PLC0415

    from bayou.core.clock import format_ms  # noqa: PLC0415

    return format_ms(int((time.time() - seconds) * 1000))
