"""`bayou model`: define models (what owns data), and run the methods that make data.

Only `delete` and `run` send requests (F094).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bayou.cli import options
from bayou.cli.options import Common, Group, confirm, input_options, read_input_file, yes_option
from bayou.cli.render import model as render_model
from bayou.cli.session import Rendered, reading, with_remarks, write
from bayou.core import kept
from bayou.core.errors import TypeNotFound

if TYPE_CHECKING:
    from bayou.data.outputs import Output
    from bayou.models.types import ModelType
    from bayou.repo import Repo
    from bayou.session import Session

_FAILED = 1


@click.group(cls=Group)
def model() -> None:
    """Define who owns data and what makes it: create, list, look at, run, delete."""


@model.command(writes=True)
@click.argument("kind", metavar="TYPE")
@click.argument("name")
@click.option("arguments", "--arg", type=options.assignment, multiple=True, metavar="K=V", help="An argument.")
@click.pass_obj
def create(common: Common, kind: str, name: str, arguments: tuple[tuple[str, str], ...]) -> None:
    """Define a model.

    TYPE says what it is, as network, aws/ec2/vpc or @team/report. The definition is models/TYPE/NAME.yaml; commit it.
    """
    given = options.named_once("--arg", arguments)
    repo = common.open_repo()
    from bayou.models import create_model  # noqa: PLC0415

    found = _type(repo, kind)
    definition = create_model(repo, kind, name, _coerced(found, given))
    methods = list(found.methods) if found is not None else []
    common.output.emit(render_model.created_json(definition), render_model.created_text(definition, methods))


@model.command("list")
@click.pass_obj
def list_(common: Common) -> int:
    """List the models that are defined here."""
    repo = common.open_repo()
    from bayou.models import list_models  # noqa: PLC0415

    found = list_models(repo)
    common.output.emit(render_model.models_json(found), render_model.models_text(found))
    return _FAILED if found.bad else 0


@model.command()
@click.argument("name", metavar="MODEL")
@click.pass_obj
def get(common: Common, name: str) -> None:
    """Show the definition of a model.

    MODEL is its name or id.
    """
    repo = common.open_repo()
    from bayou.models import find_model  # noqa: PLC0415

    document = render_model.model_json(find_model(repo, name))
    common.output.emit(document, render_model.model_text(document))


@model.command(writes=True)
@click.argument("name", metavar="MODEL")
@click.option("with_data", "--data", is_flag=True, help="Delete its data too.")
@yes_option
@click.pass_obj
def delete(common: Common, name: str, with_data: bool, yes: bool) -> int:
    """Delete a model, and note in the datastore that it is gone.

    MODEL is its name or id. While it has data, that takes --data.
    """
    repo = common.open_repo()
    from bayou.models import DeletedModel, delete_model, find_model  # noqa: PLC0415

    definition = find_model(repo, name)
    confirm(common, f"delete the model {definition.name}{' and all its data' if with_data else ''}?", yes=yes)

    def rendered(deleted: DeletedModel) -> Rendered:
        return render_model.deleted_json(deleted), render_model.deleted_text(definition, deleted)

    return write(
        common,
        repo,
        lambda session: delete_model(session.records, definition, with_data=with_data),
        rendered,
        models=[definition.ref],
        deletes=True,
    )


@model.command()
@click.pass_obj
def types(common: Common) -> int:
    """List the types that models may have, and their methods.

    Those that are built in, those of extensions/models/*.py, and those of installed packages.
    """
    repo = common.open_repo()
    from bayou.models.types import load_types  # noqa: PLC0415

    found = load_types(repo)
    common.output.emit(render_model.types_json(found), render_model.types_text(found))
    return _FAILED if found.bad else 0


@model.command()
@click.argument("kind", metavar="TYPE")
@click.pass_obj
def describe(common: Common, kind: str) -> None:
    """Show what a type's methods take, and what they make."""
    repo = common.open_repo()
    from bayou.models.types import find_type  # noqa: PLC0415

    found = find_type(repo, kind)
    common.output.emit(render_model.type_json(found), render_model.type_text(found))


@model.command(writes=True)
@click.argument("name", metavar="MODEL")
@click.argument("method")
@input_options
@click.pass_obj
def run(common: Common, name: str, method: str, texts: tuple[tuple[str, str], ...], file: Path | None) -> int:
    """Run a method of a model, and keep what it makes.

    MODEL is its name or id. Inputs go over the arguments of the definition, and its expressions find them as inputs.
    With -v, what the method prints is shown as it prints it. Exit code 1 if the method failed.
    """
    given, named = read_input_file(file), options.named_once("--input", texts)
    repo = common.open_repo()
    from bayou.core.deadline import stop_event  # noqa: PLC0415
    from bayou.models import find_model  # noqa: PLC0415
    from bayou.models.run import SUCCEEDED, RunRequest, prepare, run_method  # noqa: PLC0415
    from bayou.models.types import coerce, find_type  # noqa: PLC0415
    from bayou.models.types.schema import find_method  # noqa: PLC0415

    definition = find_model(repo, name)
    wanted = find_method(find_type(repo.running(), definition.type), method)
    inputs = {**given, **(coerce(named, wanted.arguments) if named else {})}
    prepared = prepare(repo, RunRequest(definition, method, inputs), common.connect(repo))
    cancel = stop_event()
    outputs: list[Output] = []

    def rendered(output: Output) -> Rendered:
        outputs.append(output)
        return render_model.ran_json(output), list(render_model.ran_text(output))

    def work(session: Session) -> Output:
        kept.now("a method that was running is recorded here as cancelled")
        return run_method(session, prepared, cancel=cancel, progress=_printer(common))

    code = write(
        common,
        repo,
        work,
        rendered,
        models=[definition.ref],
    )
    return _FAILED if outputs[0].status != SUCCEEDED else code


@model.command()
@click.argument("name", metavar="MODEL")
@click.pass_obj
def outputs(common: Common, name: str) -> None:
    """List what came of running a model's methods, the newest first.

    MODEL is its name or id.
    """
    with reading(common) as (records, remarks):
        from bayou.models import resolve_model  # noqa: PLC0415

        rows = records.outputs.list(resolve_model(records.repo, name, records))
    common.output.emit(
        with_remarks(render_model.outputs_json(rows), remarks), [*render_model.outputs_text(rows), *remarks]
    )


def _type(repo: Repo, kind: str) -> ModelType | None:
    """Return a type, or None if it is not defined: a model that merely owns data needs no type."""
    from bayou.models.types import find_type  # noqa: PLC0415

    try:
        return find_type(repo, kind)
    except TypeNotFound:
        return None


def _coerced(found: ModelType | None, given: Mapping[str, str]) -> Mapping[str, object]:
    """Return arguments with the types that the methods declare: a number where they want a number."""
    if not given:
        return given
    from bayou.models.types import coerce  # noqa: PLC0415

    wanted: dict[str, object] = {}
    for method in found.methods.values() if found is not None else ():
        wanted |= {
            name: schema for name, schema in method.arguments.get("properties", {}).items() if name not in wanted
        }
    return coerce(given, {"properties": wanted})


def _printer(common: Common) -> Callable[[bytes], None] | None:
    """With -v, return a function that prints the output of a method, with control characters made visible."""
    if not common.verbose or common.json:
        return None
    from bayou.core.text import VisibleStream  # noqa: PLC0415

    stream = VisibleStream()

    def show(data: bytes) -> None:
        sys.stderr.write(stream.add(data))
        sys.stderr.flush()

    return show
