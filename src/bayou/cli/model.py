"""`bayou model`: who owns data, and what makes it. All but `delete` and `run` send nothing (F094)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from bayou.cli import parameters, records_documents, records_sentences
from bayou.cli.common import Common, Group
from bayou.cli.confirm import confirm, yes_option
from bayou.cli.model_run import describe, outputs, run, types
from bayou.cli.writing import Rendered, write
from bayou.core.errors import TypeNotFound

if TYPE_CHECKING:
    from bayou.models.types import ModelType
    from bayou.repo import Repo

_FAILED = 1


@click.group(cls=Group)
def model() -> None:
    """Define who owns data and what makes it: create, list, look at, run, delete."""


for _command in (types, describe, run, outputs):
    model.add_command(_command)


@model.command(writes=True)
@click.argument("kind", metavar="TYPE")
@click.argument("name")
@click.option("arguments", "--arg", type=parameters.assignment, multiple=True, metavar="K=V", help="An argument.")
@click.pass_obj
def create(common: Common, kind: str, name: str, arguments: tuple[tuple[str, str], ...]) -> None:
    """Define a model.

    TYPE says what it is, as network, aws/ec2/vpc or @team/report. The definition is models/TYPE/NAME.yaml; commit it.
    """
    given = parameters.named_once("--arg", arguments)
    repo = common.open_repo()
    from bayou.models import create_model  # noqa: PLC0415

    found = _type(repo, kind)
    made = create_model(repo, kind, name, _as_wanted(found, given))
    methods = list(found.methods) if found is not None else []
    common.output.emit(records_documents.made_model(made), records_sentences.made_model(made, methods))


def _type(repo: Repo, kind: str) -> ModelType | None:
    """Return a type, if there is one: models that merely own data need none."""
    from bayou.models.types import find_type  # noqa: PLC0415

    try:
        return find_type(repo, kind)
    except TypeNotFound:
        return None


def _as_wanted(found: ModelType | None, given: Mapping[str, str]) -> Mapping[str, object]:
    """Return arguments as the type's methods want them: a number where they want one."""
    if not given:
        return given
    from bayou.models.types import coerce  # noqa: PLC0415

    wanted: dict[str, object] = {}
    for method in found.methods.values() if found is not None else ():
        wanted |= {name: said for name, said in method.arguments.get("properties", {}).items() if name not in wanted}
    return coerce(given, {"properties": wanted})


@model.command("list")
@click.pass_obj
def list_(common: Common) -> int:
    """List the models that are defined here."""
    repo = common.open_repo()
    from bayou.models import list_models  # noqa: PLC0415

    found = list_models(repo)
    document = records_documents.models(found)
    common.output.emit(document, records_sentences.models(found))
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

    document = records_documents.model(find_model(repo, name))
    common.output.emit(document, records_sentences.fields(document))


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
        return records_documents.deleted_model(deleted), records_sentences.deleted_model(definition, deleted)

    return write(
        common,
        repo,
        lambda records: delete_model(records, definition, with_data=with_data),
        rendered,
        models=[definition.ref],
        deletes=True,
    )
