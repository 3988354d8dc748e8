"""`bayou completion`."""

from __future__ import annotations

import click

from bayou.cli.common import Command, Common
from bayou.cli.output import show_text


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script that completes commands in a shell.

    Put it where your shell reads it, for example: bayou completion bash > ~/.bash_completion.d/bayou
    """
    from click.shell_completion import get_completion_class  # noqa: PLC0415

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"no completion for {shell}")
    script = kind(context.find_root().command, {}, "bayou", "_BAYOU_COMPLETE").source()
    context.ensure_object(Common).output.emit({"shell": shell, "script": script}, [show_text(script.rstrip("\n"))])
