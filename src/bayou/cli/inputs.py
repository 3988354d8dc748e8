"""What a command gives to a workflow: `--input name=value`, and files of inputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from bayou.cli import parameters

F = TypeVar("F", bound=Callable[..., Any])


def input_options(command: F) -> F:
    """Add `--input` and `--input-file`."""
    one = click.option(
        "texts",
        "--input",
        type=parameters.assignment,
        multiple=True,
        metavar="K=V",
        help="An input; numbers, lists and mappings as JSON.",
    )
    file = click.option(
        "file", "--input-file", type=click.Path(path_type=Path), metavar="FILE", help="Inputs, as YAML or JSON."
    )
    return one(file(command))


def read_file(file: Path | None) -> dict[str, Any]:
    """Return the inputs that a file has."""
    if file is None:
        return {}
    import yaml  # noqa: PLC0415

    try:
        found = yaml.load(file.read_bytes(), yaml.CSafeLoader)
    except yaml.YAMLError as error:
        raise click.UsageError(f"{file}: {' '.join(str(error).split())}") from None
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise click.UsageError(f"{file} is no mapping of names to values")
    return found
