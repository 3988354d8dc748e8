"""`bayou model`: define models (what owns data), and run the methods that make data.

Only `delete` and `run` send requests (F094).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bayou.cli import options
from bayou.cli.options import (
    Common,
    Group,
    confirm,
    input_options,
    limit_rate_option,
    read_input_file,
    yes_option,
)
from bayou.cli.render import model as render_model
from bayou.cli.session import Rendered, emit_with_remarks, reading, with_remarks, write
from bayou.core import kept
from bayou.core.errors import NotPushed, TypeNotFound

if TYPE_CHECKING:
    from bayou.cli.output import Part
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
@click.option("--data-only", is_flag=True, help="Take TYPE as it is: the model has no methods, and only owns data.")
@click.pass_obj
def create(common: Common, kind: str, name: str, arguments: tuple[tuple[str, str], ...], data_only: bool) -> None:
    """Define a model.

    If TYPE is one of `model types`, the model has its methods, and Bayou checks the arguments. A model that only owns
    data may have any other TYPE, for example network or aws/ec2/vpc. The definition is models/TYPE/NAME.yaml; commit
    it.
    """
    given = options.named_once("--arg", arguments)
    repo = common.open_repo()
    from bayou.models import create_model  # noqa: PLC0415

    found = _type(repo, kind, data_only=data_only)
    definition = create_model(repo, kind, name, _coerced(found, given), type_of=found)
    common.output.emit(render_model.created_json(definition), render_model.created_text(definition, found))


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
@limit_rate_option
@click.pass_obj
def run(common: Common, name: str, method: str, texts: tuple[tuple[str, str], ...], file: Path | None) -> int:
    """Run a method of a model, and keep what it makes.

    MODEL is its name or id. Inputs override the arguments of the definition; its expressions use them as inputs.NAME.
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
    prepared = prepare(common.connect(repo), RunRequest(definition, method, inputs))
    cancel = stop_event()
    outputs: list[Output] = []

    def work(session: Session) -> tuple[Output, list[Part]]:
        kept.now("a method that was running is recorded here as cancelled")
        output = run_method(session, prepared, cancel=cancel, progress=_printer(common))
        if output.error is None or common.json:
            return output, []
        from bayou.cli.logs import model_failure  # noqa: PLC0415

        return output, model_failure(session.records, output, seen=common.verbose > 0)

    def rendered(found: tuple[Output, list[Part]]) -> Rendered:
        output, failure = found
        outputs.append(output)
        return render_model.ran_json(output), [*render_model.ran_text(output), *failure]

    try:
        code = write(
            common,
            repo,
            work,
            rendered,
            models=[definition.ref],
            refusal="no method was run; with --offline it runs here, and the next sync pushes its results",
        )
    except NotPushed as error:
        if outputs[0].status == SUCCEEDED:
            raise
        common.output.notify(f"warning: {error.message}")  # the method's failure comes first
        return _FAILED
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
    emit_with_remarks(common, render_model.outputs_json(rows), render_model.outputs_text(rows), remarks)


@model.command()
@click.argument("name", metavar="MODEL")
@click.argument("output", default="latest")
@click.option("lines", "-n", "--lines", type=click.IntRange(min=0), metavar="N", help="Only the last N lines.")
@click.pass_obj
def logs(common: Common, name: str, output: str, lines: int | None) -> None:
    """Show what a method printed, and after a failure why it failed.

    MODEL is its name or id. OUTPUT is the id of an output (`model outputs` lists them), the beginning of it, or latest,
    which is the default. The log is the model's data `log`, so `datastore sync --pull` brings what others ran.
    """
    with reading(common) as (records, remarks):
        from bayou.cli.logs import output_json, write_log  # noqa: PLC0415
        from bayou.data.logs import log_of_output  # noqa: PLC0415
        from bayou.models import resolve_model  # noqa: PLC0415

        found = records.outputs.find(resolve_model(records.repo, name, records), output)
        if common.json:
            common.output.emit(with_remarks(output_json(records, found, lines), remarks), ())
            return
        log = log_of_output(records, found)
        if log is not None:
            write_log(records, log, lines)
        common.output.emit({}, [*render_model.log_end_text(found, log), *remarks])


def _type(repo: Repo, kind: str, *, data_only: bool) -> ModelType | None:
    """Return a type, or None if it is not defined: a model that merely owns data needs no type.

    `TypeNotFound` if the type is probably a defined one, misspelt, and the user has not said that it is not.
    """
    from bayou.models.types import find_type, load_types  # noqa: PLC0415

    try:
        return find_type(repo, kind)
    except TypeNotFound:
        meant = None if data_only else _meant(kind, load_types(repo))
        if meant is None:
            return None
        raise TypeNotFound(
            f"there is no type {kind}",
            hint=f"did you mean {meant}? A model without methods, which owns data: --data-only",
        ) from None


def _meant(kind: str, types: Iterable[str]) -> str | None:
    """Return the defined type that a user probably means: one that is almost spelt so, or has this word."""
    from bayou.core.text import similar_names  # noqa: PLC0415

    known = list(types)
    words = {word: name for name in reversed(known) for word in name.split("/")}
    near = [*similar_names(kind, known, 1, 0.85), *similar_names(kind, words, 1, 0.85)]
    return words.get(near[0], near[0]) if near else None


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
