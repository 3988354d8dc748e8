"""`bayou workflow`: models' methods in order. All but `run`, `resume`, `evaluate` and `delete` stay on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bayou.cli import parameters, workflow_documents, workflow_sentences
from bayou.cli.common import Common, Group
from bayou.cli.confirm import confirm, yes_option
from bayou.cli.inputs import input_options, read_file
from bayou.cli.workflow_run import carry_out, run
from bayou.cli.writing import Rendered, write

if TYPE_CHECKING:
    from bayou.data.records import Records
    from bayou.workflows.find import DeletedWorkflow

_FAILED = 1


@click.group(cls=Group)
def workflow() -> None:
    """Run models' methods in order: create, validate, run, search runs, resume."""


workflow.add_command(run)


@workflow.command(writes=True)
@click.argument("name")
@click.pass_obj
def create(common: Common, name: str) -> None:
    """Make a workflow.

    It is workflows/NAME.yaml, and runs as it is; fill in its steps, and commit it.
    """
    repo = common.open_repo()
    from bayou.workflows.find import create_workflow  # noqa: PLC0415

    made = create_workflow(repo, name)
    common.output.emit(workflow_documents.made(made), workflow_sentences.made(made))


@workflow.command("list")
@click.pass_obj
def list_(common: Common) -> int:
    """List the workflows that are defined here."""
    repo = common.open_repo()
    from bayou.workflows.find import list_workflows  # noqa: PLC0415

    found = list_workflows(repo)
    common.output.emit(workflow_documents.workflows(found), workflow_sentences.workflows(found))
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
    common.output.emit(workflow_documents.workflow(found), workflow_sentences.evaluated(found.source.value))


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
    common.output.emit(workflow_documents.validated(problems), workflow_sentences.validated(names, problems))
    return _FAILED if problems else 0


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
    # The claim is a session of its own: whoever looks afterwards, anywhere, sees that the run goes on.
    with write_session(repo, models=[owner], on_wait=common.output.tell, connection=connection) as session:
        going = resumed_run(repo, session.records, run_id, abandoned=abandoned)
    return carry_out(common, repo, going)


@workflow.command(writes=True)
@click.argument("name")
@input_options
@click.pass_obj
def evaluate(common: Common, name: str, texts: tuple[tuple[str, str], ...], file: Path | None) -> int:
    """Write and print what a workflow comes to with these inputs, as far as that is known before it runs.

    NAME is its name or id.
    """
    given, named = read_file(file), parameters.named_once("--input", texts)
    repo = common.open_repo()
    from bayou.workflows.check import check_workflow, evaluated_workflow, resolve_inputs  # noqa: PLC0415
    from bayou.workflows.find import find_workflow  # noqa: PLC0415

    found = find_workflow(repo, name)
    check_workflow(repo, found)
    document = evaluated_workflow(found, resolve_inputs(found, given, named))

    def save(records: Records) -> dict[str, Any]:
        records.evaluated.save_workflow(found.id, None, document)
        return document

    def rendered(saved: dict[str, Any]) -> Rendered:
        return saved, workflow_sentences.evaluated(saved)

    # F079: what is saved here is saved under a lease, like everything.
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
        return workflow_documents.deleted(deleted), workflow_sentences.deleted(found, deleted)

    return write(
        common,
        repo,
        lambda records: delete_workflow(records, found),
        rendered,
        models=[found.ref],
        deletes=True,
    )
