"""`bayou workflow`: methods of models in order, as a workflow defines it.

Only `run`, `resume`, `evaluate` and `delete` send requests.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bayou.cli import options
from bayou.cli.options import Common, Group, confirm, input_options, read_input_file, yes_option
from bayou.cli.output import Line
from bayou.cli.render import workflow as render_workflow
from bayou.cli.session import Rendered, exit_code, reading, sync_remarks, with_remarks, write
from bayou.core.clock import format_ms

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from bayou.data.runs import Run, StepRecord
    from bayou.repo import Repo
    from bayou.session import Session
    from bayou.sync.plan.policy import ModelRef
    from bayou.workflows.find import DeletedWorkflow
    from bayou.workflows.run import WorkflowRun

_FAILED = 1

_START = "NAME"
"""The internal name of the command that runs a workflow; no user types it."""

_STATUSES = ("pending", "running", "succeeded", "failed", "cancelled")


class RunGroup(Group):
    """Reads `search` and `get` as commands, and any other word as the name of a workflow."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing and self._first(args) not in self.commands:
            args = [_START, *args]
        return super().parse_args(ctx, args)

    def _first(self, args: Sequence[str]) -> str | None:
        """Return the first word after the common options."""
        words = iter(args)
        for word in words:
            if word == "--repo":
                next(words, None)
            elif not word.startswith("-"):
                return word
            elif not any(word.partition("=")[0] in option.opts for option in self.common):
                return None
        return None


@click.group(cls=Group)
def workflow() -> None:
    """Run models' methods in order: create, validate, run, search runs, resume."""


@workflow.command(writes=True)
@click.argument("name")
@click.pass_obj
def create(common: Common, name: str) -> None:
    """Make a workflow.

    It is workflows/NAME.yaml, and runs as it is; fill in its steps, and commit it.
    """
    repo = common.open_repo()
    from bayou.workflows.find import create_workflow  # noqa: PLC0415

    created = create_workflow(repo, name)
    common.output.emit(render_workflow.created_json(created), render_workflow.created_text(created))


@workflow.command("list")
@click.pass_obj
def list_(common: Common) -> int:
    """List the workflows that are defined here."""
    repo = common.open_repo()
    from bayou.workflows.find import list_workflows  # noqa: PLC0415

    found = list_workflows(repo)
    common.output.emit(render_workflow.workflows_json(found), render_workflow.workflows_text(found))
    return _FAILED if found.bad else 0


@workflow.command()
@click.argument("name")
@click.pass_obj
def get(common: Common, name: str) -> None:
    """Show a workflow as its file has it.

    NAME is its name or id.
    """
    repo = common.open_repo()
    from bayou.workflows.find import find_workflow  # noqa: PLC0415

    found = find_workflow(repo, name)
    common.output.emit(render_workflow.workflow_json(found), render_workflow.evaluated_text(found.source.value))


@workflow.command()
@click.argument("name", required=False)
@click.pass_obj
def validate(common: Common, name: str | None) -> int:
    """Tell everything that is wrong with a workflow, or with all of them: file, line and what to do.

    Nothing is run, nothing written, and no request sent.
    """
    repo = common.open_repo()
    from bayou.workflows.check import validate_workflows  # noqa: PLC0415

    names, problems = validate_workflows(repo, name)
    common.output.emit(render_workflow.validated_json(problems), render_workflow.validated_text(names, problems))
    return _FAILED if problems else 0


@click.group("run", cls=RunGroup, invoke_without_command=True)
def run() -> None:
    """Run a workflow, or look at runs: `run search`, `run get`."""


workflow.add_command(run)


@run.command(_START, writes=True, hidden=True)
@click.argument("name")
@input_options
@click.option("tags", "--tag", type=options.assignment, multiple=True, metavar="K=V", help="A tag of the run.")
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
    given, named = read_input_file(file), options.named_once("--input", texts)
    labels = options.named_once("--tag", tags)
    repo = common.open_repo()
    from bayou.workflows.run import new_run  # noqa: PLC0415

    return _execute(common, repo, new_run(repo, name, given, named, labels))


@run.command()
@click.argument("text", required=False)
@click.option("--status", type=click.Choice(_STATUSES), help="Only runs that have come to this.")
@click.option("--since", type=options.duration, metavar="AGE", help="Only runs that began within this time, as 7d.")
@click.option("name", "--workflow", metavar="NAME", help="Only runs of this workflow, by name or id.")
@click.option("tags", "--tag", type=options.assignment, multiple=True, metavar="K=V", help="Only runs so tagged.")
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
    labels = options.named_once("--tag", tags)
    with reading(common) as (records, remarks):
        rows, total = records.runs.search(
            text, status=status, since=_ago(since), workflow=name, tags=labels, limit=limit
        )
        parts = [*render_workflow.runs_text(rows, total), *remarks]
        common.output.emit(with_remarks(render_workflow.runs_json(rows, total), remarks), parts)


@run.command("get")
@click.argument("run_id")
@click.pass_obj
def get_run(common: Common, run_id: str) -> None:
    """Show a run: its inputs, and what each step came to."""
    with reading(common) as (records, remarks):
        found = records.runs.get(run_id)
        document = with_remarks(render_workflow.run_json(found), remarks)
        common.output.emit(document, [*render_workflow.run_text(found), *remarks])


@workflow.command(writes=True)
@click.argument("run_id")
@click.option("abandoned", "--abandoned", is_flag=True, help="It is marked as running, but its process is gone.")
@click.pass_obj
def resume(common: Common, run_id: str, abandoned: bool) -> int:
    """Go on with a run that failed or was cancelled: what succeeded is not repeated.

    It has the inputs of the first attempt; the workflow is as it is now.
    """
    repo = common.open_repo()
    from bayou.session import write_session  # noqa: PLC0415
    from bayou.workflows.run import resumed_run, run_owner  # noqa: PLC0415

    connection = common.connect(repo)
    owner = run_owner(repo, run_id, connection)
    # A session of its own claims the run, so that every clone sees that the run goes on.
    with write_session(repo, models=[owner], on_wait=common.output.notify, connection=connection) as session:
        workflow_run = resumed_run(repo, session.records, run_id, abandoned=abandoned)
    return _execute(common, repo, workflow_run)


@workflow.command(writes=True)
@click.argument("name")
@input_options
@click.pass_obj
def evaluate(common: Common, name: str, texts: tuple[tuple[str, str], ...], file: Path | None) -> int:
    """Write and print what a workflow comes to with these inputs, as far as that is known before it runs.

    NAME is its name or id.
    """
    given, named = read_input_file(file), options.named_once("--input", texts)
    repo = common.open_repo()
    from bayou.workflows.check import check_workflow, evaluated_workflow, resolve_inputs  # noqa: PLC0415
    from bayou.workflows.find import find_workflow  # noqa: PLC0415

    found = find_workflow(repo, name)
    check_workflow(repo, found)
    document = evaluated_workflow(found, resolve_inputs(found, given, named))

    def save(session: Session) -> dict[str, Any]:
        session.records.evaluated.save_workflow(found.id, None, document)
        return document

    def rendered(saved: dict[str, Any]) -> Rendered:
        return saved, render_workflow.evaluated_text(saved)

    # F079: the save holds the lease of the workflow, like every write.
    return write(common, repo, save, rendered, models=[found.ref])


@workflow.command(writes=True)
@click.argument("name")
@yes_option
@click.pass_obj
def delete(common: Common, name: str, yes: bool) -> int:
    """Delete a workflow, with the records of its runs. What they made is their models', and stays.

    NAME is its name or id.
    """
    repo = common.open_repo()
    from bayou.workflows.find import delete_workflow, find_workflow  # noqa: PLC0415

    found = find_workflow(repo, name)
    confirm(common, f"delete the workflow {found.name} and the records of its runs?", yes=yes)

    def rendered(deleted: DeletedWorkflow) -> Rendered:
        return render_workflow.deleted_json(deleted), render_workflow.deleted_text(found, deleted)

    return write(
        common,
        repo,
        lambda session: delete_workflow(session.records, found),
        rendered,
        models=[found.ref],
        deletes=True,
    )


def _execute(common: Common, repo: Repo, workflow_run: WorkflowRun) -> int:
    """Run a workflow, report each step as it begins and ends, print the outcome, and return the exit code.

    After a signal, or if a push fails, the outcome is printed all the same, and the error follows it (F100, V17).
    """
    from bayou.session import write_session  # noqa: PLC0415

    connection = common.connect(repo)

    def sessions(model: ModelRef) -> AbstractContextManager[Session]:
        return write_session(repo, models=[model], on_wait=common.output.notify, connection=connection)

    def on_step(job: str, record: StepRecord) -> None:
        common.output.notify(render_workflow.step_text(job, record))

    try:
        with common.output.progress():
            outcome = workflow_run.run(sessions, on_step=on_step, connection=connection)
    except BaseException:
        partial = workflow_run.outcome
        common.output.emit(*_rendered(partial.run, partial.duration_s, []))
        raise
    remarks = sync_remarks(common, outcome.reports)
    common.output.emit(*_rendered(outcome.run, outcome.duration_s, remarks))
    if outcome.unpushed is not None:
        raise outcome.unpushed
    return _FAILED if outcome.run.status != "succeeded" else exit_code(outcome.reports)


def _rendered(run: Run, duration_s: float, remarks: list[Line]) -> Rendered:
    parts = [*render_workflow.outcome_text(run, duration_s), *remarks]
    return with_remarks(render_workflow.outcome_json(run, duration_s), remarks), parts


def _ago(seconds: float | None) -> str | None:
    return None if seconds is None else format_ms(int((time.time() - seconds) * 1000))
