"""What a command gives to a workflow: `--input name=value`, and files of inputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from bayou.cli import parameters
from bayou.core import limits
from bayou.core.documents import Unreadable, read_at_most, read_yaml

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
    try:
        with file.open("rb") as opened:
            found = read_yaml(read_at_most(opened, limits.DEFINITION_BYTES), limits.DEFINITION_BYTES)
    except Unreadable as error:
        where = f", line {error.line}" if error.line is not None else ""
        raise click.UsageError(f"{file}{where}: {error}") from None
    except OSError as error:
        raise click.UsageError(f"{file}: {error.strerror}") from None
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise click.UsageError(f"{file} is no mapping of names to values")
    return found
