"""`bayou model types`, `describe`, `run` and `outputs`: what models can do, and what they have done."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bayou.cli import model_documents, model_sentences, parameters
from bayou.cli.common import Command, Common
from bayou.cli.inputs import input_options, read_file
from bayou.cli.reading import reading
from bayou.cli.writing import Rendered, annotated, write_in_session

if TYPE_CHECKING:
    from bayou.data.outputs import Output

_FAILED = 1


@click.command(cls=Command)
@click.pass_obj
def types(common: Common) -> int:
    """List the types that models may have, and their methods.

    Those that are built in, those of extensions/models/*.py, and those of installed packages.
    """
    repo = common.open_repo()
    from bayou.models.types import load_types  # noqa: PLC0415

    found = load_types(repo)
    common.output.emit(model_documents.types(found), model_sentences.types(found))
    return _FAILED if found.bad else 0


@click.command(cls=Command)
@click.argument("kind", metavar="TYPE")
@click.pass_obj
def describe(common: Common, kind: str) -> None:
    """Show what a type's methods take, and what they make."""
    repo = common.open_repo()
    from bayou.models.types import find_type  # noqa: PLC0415

    found = find_type(repo, kind)
    common.output.emit(model_documents.type_(found), model_sentences.type_(found))


@click.command(cls=Command, writes=True)
@click.argument("name", metavar="MODEL")
@click.argument("method")
@input_options
@click.pass_obj
def run(common: Common, name: str, method: str, texts: tuple[tuple[str, str], ...], file: Path | None) -> int:
    """Run a method of a model, and keep what it makes.

    MODEL is its name or id. Inputs go over the arguments of the definition, and its expressions find them as inputs.
    With -v, what the method prints is shown as it prints it. Exit code 1 if the method failed.
    """
    given, named = read_file(file), parameters.named_once("--input", texts)
    repo = common.open_repo()
    from bayou.core.deadline import stop_event  # noqa: PLC0415
    from bayou.models import find_model  # noqa: PLC0415
    from bayou.models.run import SUCCEEDED, RunRequest, prepare, run_method  # noqa: PLC0415
    from bayou.models.types import coerce, find_type  # noqa: PLC0415
    from bayou.models.types.schema import find_method  # noqa: PLC0415

    model = find_model(repo, name)
    wanted = find_method(find_type(repo.running(), model.type), method)
    inputs = {**given, **(coerce(named, wanted.arguments) if named else {})}
    prepared = prepare(repo, RunRequest(model, method, inputs), common.connect(repo))
    cancel = stop_event()
    came_of: list[Output] = []

    def rendered(output: Output) -> Rendered:
        came_of.append(output)
        return model_documents.ran(output), list(model_sentences.ran(output))

    code = write_in_session(
        common,
        repo,
        lambda session: run_method(session, prepared, cancel=cancel, progress=_printer(common)),
        rendered,
        models=[model.ref],
    )
    return _FAILED if came_of[0].status != SUCCEEDED else code


@click.command(cls=Command)
@click.argument("name", metavar="MODEL")
@click.pass_obj
def outputs(common: Common, name: str) -> None:
    """List what came of running a model's methods, the newest first.

    MODEL is its name or id.
    """
    with reading(common) as (records, told):
        from bayou.models import resolve_model  # noqa: PLC0415

        rows = records.outputs.list(resolve_model(records.repo, name, records))
    common.output.emit(annotated(model_documents.outputs(rows), told), [*model_sentences.outputs(rows), *told])


def _printer(common: Common) -> Callable[[bytes], None] | None:
    """Show what a method prints to a user who passed -v: its lines, with what a terminal would obey made visible."""
    if not common.verbose or common.json:
        return None
    from bayou.core.text import VisibleStream  # noqa: PLC0415

    stream = VisibleStream()

    def show(data: bytes) -> None:
        sys.stderr.write(stream.add(data))
        sys.stderr.flush()

    return show
