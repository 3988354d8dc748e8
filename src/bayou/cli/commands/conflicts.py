"""`bayou datastore conflicts`: list and compare the copies that sync kept, take one back or drop it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bayou.cli.options import Common, Group
from bayou.cli.output import Part, hint, say, show, size
from bayou.cli.render import datastore as render_datastore
from bayou.core.errors import UsageError

if TYPE_CHECKING:
    from bayou.repo import Repo
    from bayou.sync.report import KeptCopy

_MAX_DIFF = 1 << 20


@click.group(cls=Group, invoke_without_command=True)
@click.pass_context
def conflicts(context: click.Context) -> None:
    """List the copies that were kept when two sides changed one path."""
    if context.invoked_subcommand is not None:
        return
    common = context.ensure_object(Common)
    repo = common.open_repo()
    from bayou.sync.conflicts.copies import conflicts  # noqa: PLC0415

    copies = conflicts(repo)
    common.output.emit(render_datastore.conflicts_json(copies), render_datastore.conflicts_text(copies))


@conflicts.command("show")
@click.argument("path")
@click.pass_obj
def show_copy(common: Common, path: str) -> None:
    """Compare a kept copy with what has its path now."""
    repo = common.open_repo()
    from bayou.sync.conflicts.copies import conflicts  # noqa: PLC0415

    copies = [copy for copy in conflicts(repo) if path in (copy.path, copy.copy)]
    if not copies:
        raise UsageError(f"no copy of {path} was kept", hint="list them with `bayou datastore conflicts`")
    common.output.emit(render_datastore.conflicts_json(copies), _comparisons(repo, copies))


@conflicts.command(writes=True)
@click.argument("path")
@click.pass_obj
def take(common: Common, path: str) -> None:
    """Put a kept copy back in its place; the next push carries it."""
    repo = common.open_repo()
    from bayou.sync.conflicts.copies import take_conflict  # noqa: PLC0415

    copy = take_conflict(repo, path)
    parts = [say(f"{copy.path} has the kept bytes again"), hint("share it with `bayou datastore sync`")]
    common.output.emit(render_datastore.conflicts_json([copy]), parts)


@conflicts.command(writes=True)
@click.argument("path")
@click.pass_obj
def drop(common: Common, path: str) -> None:
    """Delete a kept copy."""
    repo = common.open_repo()
    from bayou.sync.conflicts.copies import drop_conflict  # noqa: PLC0415

    copy = drop_conflict(repo, path)
    common.output.emit(
        render_datastore.conflicts_json([copy]), [say(f"deleted the kept copy of {copy.path} ({size(copy.size)})")]
    )


def _comparisons(repo: Repo, copies: list[KeptCopy]) -> Iterator[Part]:
    for copy in copies:
        yield show(f"{copy.path}: kept as {copy.copy} ({size(copy.size)})")
        here, kept = _text(repo.tree_root / copy.path), _text(repo.root / copy.copy)
        if here is None or kept is None:
            yield show("not both are short texts, so there is nothing to compare by line")
        else:
            yield from _difference(copy, here, kept)
    yield hint("put it in its place with `bayou datastore conflicts take PATH`, or delete it with `drop`")


def _text(file: Path) -> str | None:
    """Return the text of a file that is short and is text, else None."""
    try:
        if file.stat().st_size > _MAX_DIFF:
            return None
        text = file.read_bytes().decode()
    except (OSError, UnicodeDecodeError):
        return None
    return None if "\0" in text else text


def _difference(copy: KeptCopy, here: str, kept: str) -> Iterator[Part]:
    import difflib  # noqa: PLC0415

    lines = difflib.unified_diff(here.splitlines(), kept.splitlines(), copy.path, copy.copy, lineterm="")
    yield from map(show, lines)
