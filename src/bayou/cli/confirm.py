"""A yes, before something is deleted."""

from __future__ import annotations

import sys

import click

from bayou.cli.common import Common
from bayou.core.errors import NotConfirmed
from bayou.core.text import visible

yes_option = click.option("yes", "-y", "--yes", is_flag=True, help="Do not ask.")


def check_can_ask(common: Common, *, yes: bool) -> None:
    """Raise `NotConfirmed` where nobody has said yes and nobody can be asked: only a person at a terminal can."""
    if not yes and (common.json or not (sys.stdin.isatty() and sys.stderr.isatty())):
        raise NotConfirmed("this deletes something, and there is nobody to ask", hint="say yes with -y")


def confirm(common: Common, question: str, *, yes: bool) -> None:
    """Return if somebody says yes, else raise `NotConfirmed`."""
    check_can_ask(common, yes=yes)
    if not yes and not click.confirm(visible(question), err=True):
        raise NotConfirmed("nothing was deleted")
