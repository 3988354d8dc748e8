"""Make the reference of the command line from the program itself: every command, argument, option and example."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import click

from bayou.cli import app

_INTRODUCTION = """\
# Command line

This page is made from the program: it says what `--help` of each command says. All commands also take the
[common options](#common-options), before or after their names.

Commands print text for people, or exactly one JSON document with `--json`; errors go to stderr, with `--json` as one
JSON document too. A page lists the [errors by code](../errors.md) and the [exit codes](../errors.md#exit-codes).
"""


class Recorder(click.HelpFormatter):
    """Takes what a command writes into its help, and keeps it by sections instead of laying it out."""

    def __init__(self) -> None:
        super().__init__(width=10_000)
        self.sections: dict[str, Section] = {}
        self._current = Section([], [])

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        self._current = self.sections.setdefault(name, Section([], []))
        yield

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        self._current.rows.extend(rows)

    def write(self, string: str) -> None:
        self._current.lines.append(string.strip("\n"))


class Section(NamedTuple):
    """A section of a command's help: a list of names with their meanings, or lines of text."""

    rows: list[tuple[str, str]]
    lines: list[str]


def sections(context: click.Context) -> dict[str, Section]:
    """Return the sections of a command's help after its description."""
    recorder = Recorder()
    context.command.format_options(context, recorder)
    context.command.format_epilog(context, recorder)
    return recorder.sections


def page() -> str:
    """Return the page in Markdown."""
    root = click.Context(app, info_name="bayou")
    groups = "\n".join(line for name in app.list_commands(root) for line in _section(_child(app, root, name), 2))
    shared = "\n".join(_table("Common options", sections(root)["Common options"].rows))
    return "\n".join([_INTRODUCTION, "## Common options\n", shared, groups])


def commands(context: click.Context | None = None) -> Iterator[click.Context]:
    """Yield the contexts of all commands and groups below `bayou`."""
    context = context or click.Context(app, info_name="bayou")
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            child = _child(context.command, context, name)
            if not child.command.hidden:
                yield child
                yield from commands(child)


def _child(group: click.Group, context: click.Context, name: str) -> click.Context:
    command = group.get_command(context, name)
    assert command is not None
    return click.Context(command, info_name=name, parent=context)


def _section(context: click.Context, level: int) -> Iterator[str]:
    command = context.command
    if command.hidden:
        return
    yield f"{'#' * min(level, 4)} {context.command_path}\n"
    yield from _prose(command.help or "")
    if not isinstance(command, click.Group) or command.invoke_without_command:
        yield f"```text\n{context.command_path} {' '.join(command.collect_usage_pieces(context))}\n```\n"
    for heading, found in sections(context).items():
        if heading not in ("Common options", "Commands"):
            yield from _table(heading, [row for row in found.rows if row[1] and "--help" not in row[0]])
            yield from _lines(heading, found.lines)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            yield from _section(_child(command, context, name), level + 1)


def _prose(text: str) -> Iterator[str]:
    """Yield paragraphs; what click keeps as it stands (after a \\b) is a block of code."""
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text).replace("\f", "")):
        kept, _, rest = paragraph.partition("\n")
        if kept.strip() == "\b":
            yield f"```text\n{rest}\n```\n"
        elif paragraph.strip():
            yield _escaped(paragraph) + "\n"


def _table(heading: str, rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    if rows:
        yield f"| {heading.lower().removesuffix('s')} | |\n|---|---|"
        yield from (f"| `{_bar(names)}` | {_cell(text)} |" for names, text in rows)
        yield ""


def _lines(heading: str, lines: Sequence[str]) -> Iterator[str]:
    """Yield the text of a section: lines of a terminal, as in its examples."""
    if any(line.strip() for line in lines):
        yield f"{heading}:\n"
        yield "```sh\n" + inspect.cleandoc("\n".join(lines)) + "\n```\n"


def _bar(text: str) -> str:
    return text.replace("|", "\\|")


def _cell(text: str) -> str:
    return _bar(_escaped(" ".join(text.split())))


def _escaped(text: str) -> str:
    """Keep Markdown and HTML from reading signs that click prints as they are."""
    return re.sub(r"(?<!`)([<*_\[\]])(?!`)", r"\\\1", text)


if __name__ == "__main__":
    print(page())
