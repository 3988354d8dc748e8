"""The command line: it parses, calls the library and renders. No other package prints.

`commands/` has one file for each group of commands, `render/` the text and JSON of their results. A group is imported
when a user names it, and the packages that a command needs when it runs: a sync with nothing to do takes one request,
not the import of an engine (V16).
"""

from __future__ import annotations

import gc
import io
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, NoReturn

import click

from bayou.cli import errors, signals
from bayou.cli.options import Common, LazyGroup
from bayou.core import kept
from bayou.engine import select

if TYPE_CHECKING:
    from bayou.spark.executor import SparkEngines

_COMPLETE = "_BAYOU_COMPLETE"


def _show_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or context.resilient_parsing:
        return
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415  (20 ms: only here)

    try:
        click.echo(f"bayou {version('bayou')}")
    except PackageNotFoundError:
        click.echo("bayou, not installed: run from its source")
    context.exit()


@click.group(
    "bayou",
    cls=LazyGroup,
    lazy={
        "init": ("init", "Make a directory a Bayou repo."),
        "model": ("model", "Define who owns data and what makes it: create, list, look at, run, delete."),
        "data": ("data", "Keep versions of data: put, get, list, query, rename, delete, collect."),
        "workflow": ("workflow", "Run models' methods in order: create, validate, run, see why a run failed, resume."),
        "datastore": ("datastore", "Share a repo's data: set up, sync, verify, collect."),
        "trust": ("trust", "Look at, allow and revoke what a cloned repo needs your permission for."),
        "spark": ("spark", "Look at, start and stop the Spark that bulk work runs on."),
        "completion": ("init", "Print a script that completes commands in a shell."),
        "help": ("init:help_", "Show the help of a command."),
    },
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show the version."
)
def app() -> None:
    """Versioned, catalogued data for automation, shared by a team through a bucket."""


def _spark_engines() -> SparkEngines:
    from bayou.spark.executor import SparkEngines  # noqa: PLC0415

    return SparkEngines()


select.install(_spark_engines)


def _open_missing_streams() -> None:
    """Replace standard streams that the caller has closed, or the next file that is opened would take their number.

    To read stdin, or write to stdout, is then an error, as it was; what goes to stderr is lost.
    """
    for name, flags, mode in (("stdin", os.O_WRONLY, "r"), ("stdout", os.O_RDONLY, "w"), ("stderr", os.O_WRONLY, "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.open(os.devnull, flags), mode))  # noqa: SIM115  (open until the process ends)


def run(args: Sequence[str]) -> int:
    """Run one command and return its exit code; every exception becomes an exit code here."""
    common = Common(json=errors.asks_for_json(args))
    kept.begin(shlex.join(["bayou", *args]))
    try:
        with closing(common), app.make_context("bayou", list(args), obj=common) as context:
            code: int | None = app.invoke(context)
            sys.stdout.flush()
            return code or 0
    except click.exceptions.Exit as request:
        return request.exit_code
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  (the one place that turns exceptions into exit codes)
        return errors.report(error, json=common.json, verbose=common.verbose)


def main() -> NoReturn:
    """Run the command that `sys.argv` names, and end the process."""
    _open_missing_streams()
    if instruction := os.environ.get(_COMPLETE):
        from click.shell_completion import shell_complete  # noqa: PLC0415

        sys.exit(shell_complete(app, {"obj": Common()}, "bayou", _COMPLETE, instruction))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name that stdout cannot encode must not fail the command
    # A sync makes very many records and no reference cycles, so frequent collections would find nothing.
    gc.set_threshold(50_000, 20, 100)
    args = sys.argv[1:]
    signals.install(json=errors.asks_for_json(args))
    signals.exit_process(run(args))
