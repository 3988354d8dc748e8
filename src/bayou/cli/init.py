"""`bayou init`."""

from __future__ import annotations

from pathlib import Path

import click

from bayou.cli import documents, sentences
from bayou.cli.common import Command, Common


@click.command(cls=Command, writes=True)
@click.argument("directory", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@click.pass_obj
def init(common: Common, directory: Path | None) -> None:
    """Make a directory a Bayou repo.

    DIR is made if it is not there; without it, this directory becomes the repo.
    """
    from bayou.repo import init_repo  # noqa: PLC0415

    if directory is not None and common.repo is not None:
        raise click.UsageError("DIR and --repo name the same thing; give one of them")
    repo = init_repo(directory or common.named_repo or Path.cwd())
    common.output.emit(documents.init(repo), sentences.init(repo))
