"""`bayou workflow`: methods of models in order, as a workflow defines it.

Only `run`, `resume`, `evaluate` and `delete` send requests.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bayou.cli import options
from bayou.cli.options import (
    Command,
    Common,
    Group,
    confirm,
    input_options,
    limit_rate_option,
    read_input_file,
    yes_option,
)
from bayou.cli.output import Document, Line, warn
from bayou.cli.render import workflow as render_workflow
from bayou.cli.session import (
    Rendered,
    emit_with_remarks,
    exit_code,
    push_state,
    reading,
    sync_remarks,
    waiting_remarks,
    with_remarks,
    write,
)
from bayou.core.clock import format_ms
from bayou.core.errors import OUTAGES, NotPushed, RecordNotFound, UsageError, WorkflowNotFound

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from click.shell_completion import CompletionItem

    from bayou.cli.logs import StepPrinter
    from bayou.cli.output import Part
    from bayou.data.records import Records
    from bayou.data.runs import Run, StepRecord
    from bayou.repo import Repo
    from bayou.session import Session
    from bayou.sync.plan.policy import ModelRef
    from bayou.workflows.find import DeletedWorkflow
    from bayou.workflows.graph import Graph
    from bayou.workflows.run import WorkflowRun

_FAILED = 1
_NOT_RUN = "no method was run; with --offline they run here, and the next sync pushes their results"

_START = "NAME"
"""The internal name of the command that runs a workflow; no user types it."""

_STATUSES = ("pending", "running", "succeeded", "failed", "cancelled")


class StartCommand(Command):
    """`workflow run NAME`: its own name in the group is no word that a user types."""

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        assert ctx.parent is not None
        formatter.write_usage(ctx.parent.command_path, " ".join(self.collect_usage_pieces(ctx)))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        typed = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:  # as for `workflow run log latest`
            meant = _meant(ctx, next((word for word in typed if not word.startswith("-")), ""))
            if meant is None or isinstance(error, click.BadParameter):
                raise
            message = error.format_message()
            raise UsageError(f"{message[:1].lower()}{message[1:]}", hint=meant) from None


class RunGroup(Group):
    """Reads `search`, `get` and `logs` as commands, and any other word as the name of a workflow."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing and self._first(args) not in self.commands:
            args = [_START, *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from bayou.cli.completion import complete  # noqa: PLC0415

        return [*super().shell_complete(ctx, incomplete), *complete(ctx, "NAME", incomplete)]

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


def _meant(context: click.Context, word: str) -> str | None:
    """Return a hint for a word that is no workflow but similar to a command about runs; None if it is not."""
    from bayou.cli.suggestions import suggest_below  # noqa: PLC0415

    assert context.parent is not None
    return suggest_below(context.parent, word)


@click.group(cls=Group)
def workflow() -> None:
    """Run models' methods in order: create, validate, run, see why a run failed, resume."""


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
    """Run a workflow, or look at runs and their logs."""


workflow.add_command(run)


@run.command(_START, cls=StartCommand, writes=True, hidden=True)
@click.argument("name")
@input_options
@click.option("tags", "--tag", type=options.assignment, multiple=True, metavar="K=V", help="A tag of the run.")
@limit_rate_option
@click.pass_obj
def start(
    common: Common,
    name: str,
    texts: tuple[tuple[str, str], ...],
    file: Path | None,
    tags: tuple[tuple[str, str], ...],
) -> int:
    """Run a workflow: each step holds its model's lease, and pushes what it made.

    NAME is its name or id. With -v, what the steps print is shown as they print it. To look at runs:

    \b
      bayou workflow run search --status failed   find runs
      bayou workflow run get RUN                  what each step came to
      bayou workflow run logs RUN [STEP]          what steps printed, and why they failed

    RUN is a run's id, the beginning of it, or latest.
    """
    given, named = read_input_file(file), options.named_once("--input", texts)
    labels = options.named_once("--tag", tags)
    repo = common.open_repo()
    from bayou.workflows.run import new_run  # noqa: PLC0415

    try:
        workflow_run = new_run(repo, name, given, named, labels)
    except WorkflowNotFound as error:
        if not (error.hint or "").startswith("did you mean"):
            error.hint = _meant(click.get_current_context(), name) or error.hint
        raise
    return _execute(common, repo, workflow_run)


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
        document = render_workflow.runs_json(rows, total)
        emit_with_remarks(common, document, render_workflow.runs_text(rows, total), remarks)


@run.command("get")
@click.argument("text", metavar="RUN")
@click.pass_obj
def get_run(common: Common, text: str) -> None:
    """Show a run: its inputs, and what each step came to, with its model and its log.

    RUN is a run's id, the beginning of it, or latest.
    """
    with reading(common) as (records, remarks):
        from bayou.cli.logs import reference  # noqa: PLC0415
        from bayou.data.logs import logs_of_run  # noqa: PLC0415

        found = records.runs.get(text)
        logs = {key: [reference(log) for log in rows] for key, rows in logs_of_run(records, found.run_id).items()}
        document = render_workflow.run_json(found, logs)
        emit_with_remarks(common, document, render_workflow.run_text(found, logs), remarks)


@run.command()
@click.argument("text", metavar="RUN")
@click.argument("step", required=False)
@click.option("--follow", is_flag=True, help="Go on showing what the steps print, until the run has ended.")
@click.option("lines", "-n", "--lines", type=click.IntRange(min=0), metavar="N", help="Only the last N lines of each.")
@click.pass_obj
def logs(common: Common, text: str, step: str | None, follow: bool, lines: int | None) -> None:
    """Show what the steps of a run printed, and why steps failed.

    RUN is a run's id, the beginning of it, or latest. STEP is a step's name, or job/step; of a loop all executions, or
    one, as step[key]. A step has a log for each attempt. Runs of other machines: `datastore sync --pull` first.
    """
    if follow and lines is not None:
        raise click.UsageError("--follow shows all lines: leave out --lines")
    with reading(common) as (records, remarks):
        from bayou.cli import logs as cli_logs  # noqa: PLC0415
        from bayou.core.deadline import stop_event  # noqa: PLC0415

        found = records.runs.get(text)
        if step is not None and not follow:
            _check_step(found, step)
        if follow:
            follower = cli_logs.Follower(records, found.run_id, step)
            found = follower.follow(stop_event(), silent=common.json)
        steps = cli_logs.steps_with_logs(records, found, step)
        if common.json:
            common.output.emit(with_remarks(cli_logs.run_json(records, found, steps, lines), remarks), ())
            return
        if not follow:
            cli_logs.write_logs(records, steps, lines)
        common.output.emit({}, [*render_workflow.logs_end_text(found, steps, follow=follow), *remarks])


@workflow.command()
@click.argument("text", metavar="NAME|RUN")
@click.option(
    "form",
    "--format",
    type=click.Choice(["text", "mermaid"]),
    default="text",
    show_default=True,
    help="How to show it.",
)
@click.pass_obj
def graph(common: Common, text: str, form: str) -> None:
    """Show which steps a workflow has, and which wait for which; of a run, also what came of each.

    It takes the name or id of a workflow; or the id of a run, the beginning of it, or latest. A run's graph is that of
    the workflow when it ran. Mermaid is a language for diagrams that many web pages draw.
    """
    from bayou.cli.render import graph as render_graph  # noqa: PLC0415

    with reading(common) as (records, remarks):
        found = _graph(records, text)
    parts = render_graph.graph_mermaid(found) if form == "mermaid" else render_graph.graph_text(found)
    emit_with_remarks(common, render_graph.graph_json(found), parts, remarks)


@workflow.command(writes=True)
@click.argument("text", metavar="RUN")
@click.option("abandoned", "--abandoned", is_flag=True, help="It is marked as running, but its process is gone.")
@limit_rate_option
@click.pass_obj
def resume(common: Common, text: str, abandoned: bool) -> int:
    """Go on with a run that failed or was cancelled: what succeeded is not repeated.

    RUN is a run's id, the beginning of it, or latest. It has the inputs of the first attempt; the workflow is as it is
    now.
    """
    repo = common.open_repo()
    from bayou.session import write_session  # noqa: PLC0415
    from bayou.workflows.run import resumed_run, run_owner  # noqa: PLC0415

    connection = common.connect(repo)
    run_id = text
    try:
        owner, run_id = run_owner(connection, text)
        # A session of its own claims the run, so that every clone sees that the run goes on.
        with write_session(repo, models=[owner], on_wait=common.output.notify, connection=connection) as session:
            workflow_run = resumed_run(repo, session.records, run_id, abandoned=abandoned)
    except NotPushed as error:
        error.cause.hint = f"no step was run; once the store is back, `bayou workflow resume {run_id} --abandoned`"
        raise error.cause from None
    except OUTAGES as error:
        error.hint = f"{_NOT_RUN}; {error.hint}" if error.hint else _NOT_RUN
        raise
    return _execute(common, repo, workflow_run)


@workflow.command(writes=True)
@click.argument("name")
@input_options
@click.pass_obj
def evaluate(common: Common, name: str, texts: tuple[tuple[str, str], ...], file: Path | None) -> int:
    """Print a workflow with its expressions evaluated for these inputs, and keep the result.

    NAME is its name or id. Expressions that need what a step makes stay as they are. Nothing is run.
    """
    given, named = read_input_file(file), options.named_once("--input", texts)
    repo = common.open_repo()
    from bayou.workflows.check import evaluated_workflow, find_checked, resolve_inputs  # noqa: PLC0415

    found = find_checked(repo, name)
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
    """Delete a workflow, with the records of its runs; data and outputs that they made stay.

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

    After a signal, or if a push fails, the outcome is printed all the same, and the error follows it (F100, V17). Of a
    run that has not begun there is no outcome.
    """
    from bayou.session import write_session  # noqa: PLC0415

    connection = common.connect(repo)

    def sessions(model: ModelRef) -> AbstractContextManager[Session]:
        return write_session(repo, models=[model], on_wait=common.output.notify, connection=connection)

    printer = _printer(common, workflow_run)
    begun: set[tuple[str, str]] = set()

    def on_step(job: str, record: StepRecord) -> None:
        if printer is not None and record.status != "running":
            printer.end(job, record.name)
        again = (job, record.name) in begun  # attempts of a run that is resumed here are no news
        begun.add((job, record.name))
        common.output.notify(render_workflow.step_text(job, record, again=again))

    on_output = printer.show if printer is not None else None
    try:
        with common.output.progress() if printer is None else nullcontext():  # what steps print would be drawn over
            outcome = workflow_run.run(connection, sessions, on_step=on_step, on_output=on_output)
    except OUTAGES as error:
        # The first pull failed: nothing was run, and nothing recorded.
        error.hint = f"{_NOT_RUN}; {error.hint}" if error.hint else _NOT_RUN
        raise
    except BaseException:
        if not workflow_run.is_recorded:
            raise
        partial = workflow_run.outcome
        state = push_state(common, repo, pushed=False)
        common.output.emit(*_rendered(partial.run, partial.duration_s, [], state))
        raise
    remarks = sync_remarks(common, outcome.reports)
    failed = outcome.run.status != "succeeded"
    state = push_state(common, repo, pushed=outcome.unpushed is None and not repo.offline)
    unpushed = None if outcome.unpushed is None else NotPushed.of(outcome.unpushed)
    if unpushed is not None:
        remarks += waiting_remarks(state)
        if failed:
            remarks.append(warn(unpushed.message))
    failures = _failures(common, repo, outcome.run) if not common.json else []
    common.output.emit(*_rendered(outcome.run, outcome.duration_s, remarks, state, failures))
    if unpushed is not None and not failed:
        raise unpushed
    return _FAILED if failed else exit_code(outcome.reports)


def _printer(common: Common, workflow_run: WorkflowRun) -> StepPrinter | None:
    """With -v, return what prints the output of steps; a line names its step unless there is only one."""
    if not common.verbose or common.json:
        return None
    from bayou.cli.logs import StepPrinter  # noqa: PLC0415

    return StepPrinter(prefixed=workflow_run.has_several_steps)


def _failures(common: Common, repo: Repo, run: Run) -> list[Part]:
    """Return why steps of a run failed, with the ends of their logs."""
    if run.status == "succeeded":
        return []
    from bayou.cli.logs import run_failures  # noqa: PLC0415
    from bayou.data.records import Records  # noqa: PLC0415

    with Records(repo, connection=common.connect(repo)) as records:
        return list(run_failures(records, run, seen=common.verbose > 0))


def _check_step(run: Run, step: str) -> None:
    """Raise an error that names the steps of a run, unless one of them is meant."""
    from bayou.cli.logs import matches  # noqa: PLC0415

    names = [(job.name, record.name) for job in run.jobs for record in job.steps]
    if not any(matches(job, name, step) for job, name in names):
        from bayou.core.text import did_you_mean  # noqa: PLC0415

        steps = [name for _, name in names]
        raise RecordNotFound(
            f"the run {run.run_id} has no step {step}",
            hint=did_you_mean(step, steps, f"its steps: {', '.join(dict.fromkeys(steps)) or 'none'}"),
        )


def _graph(records: Records, text: str) -> Graph:
    """Return the graph of the workflow with this name or id, or of a run."""
    from bayou.workflows.find import find_workflow, workflow_names  # noqa: PLC0415
    from bayou.workflows.graph import graph_of_run, graph_of_workflow  # noqa: PLC0415

    if text in workflow_names(records.repo):
        return graph_of_workflow(find_workflow(records.repo, text))
    try:
        return graph_of_run(records, records.runs.get(text))
    except RecordNotFound:
        if text == "latest":
            raise
        return graph_of_workflow(find_workflow(records.repo, text))  # by its id; or it names the nearest workflow


def _rendered(
    run: Run, duration_s: float, remarks: list[Line], state: Document, failures: Sequence[Part] = ()
) -> Rendered:
    parts = [*render_workflow.outcome_text(run, duration_s, failures), *remarks]
    return with_remarks({**render_workflow.outcome_json(run, duration_s), **state}, remarks), parts


def _ago(seconds: float | None) -> str | None:
    return None if seconds is None else format_ms(int(max(0.0, time.time() - seconds) * 1000))  # 1970, or later
