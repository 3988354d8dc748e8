"""`bayou init`, which makes a repo, `bayou completion`, which sets up a shell, and `bayou help`."""

from __future__ import annotations

from pathlib import Path

import click

from bayou.cli.options import Command, Common, FilePath
from bayou.cli.output import show_text
from bayou.cli.render import datastore as render_datastore


@click.command(cls=Command, writes=True)
@click.argument("directory", metavar="[DIR]", required=False, type=FilePath())
@click.pass_obj
def init(common: Common, directory: Path | None) -> None:
    """Make a directory a Bayou repo.

    DIR is made if it is not there; without it, this directory becomes the repo.
    """
    from bayou.repo import init_repo  # noqa: PLC0415

    if directory is not None and common.repo is not None:
        raise click.UsageError("DIR and --repo name the same thing; give one of them")
    repo = init_repo(directory or common.named_repo or Path.cwd())
    common.output.emit(render_datastore.init_json(repo), render_datastore.init_text(repo))


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script that completes commands in a shell.

    It completes commands, options, models, data, workflows, runs and files. Put it where your shell reads it, for
    example: bayou completion bash > ~/.bash_completion.d/bayou
    """
    from click.shell_completion import get_completion_class  # noqa: PLC0415

    from bayou.cli.completion import BashScript  # noqa: PLC0415

    kind = BashScript if shell == "bash" else get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"no completion for {shell}")
    script = kind(context.find_root().command, {}, "bayou", "_BAYOU_COMPLETE").source()
    context.ensure_object(Common).output.emit({"shell": shell, "script": script}, [show_text(script.rstrip("\n"))])


@click.command("help", cls=Command)
@click.argument("words", metavar="[COMMAND]...", nargs=-1)
@click.pass_context
def help_(context: click.Context, words: tuple[str, ...]) -> None:
    """Show the help of a command.

    Every command shows its help with --help, too.
    """
    at = context.find_root()
    for word in words:
        if not isinstance(at.command, click.Group):
            raise click.UsageError(f"{at.command_path} has no command {word}", at)
        name, command, _ = at.command.resolve_command(at, [word])
        if command is None:
            raise click.UsageError(f"{at.command_path} has no command {word}", at)
        at = click.Context(command, info_name=name, parent=at)
    text = at.get_help()
    context.ensure_object(Common).output.emit({"command": at.command_path, "help": text}, [show_text(text)])
