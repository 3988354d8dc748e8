"""F098: every command and flag that a hint names exists, the flags belong to that command, and a repair repairs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from tests.maintenance.pack_damages import overwrite
from tests.sync.indexes import entries_of

import bayou
from bayou.cli import app

SOURCE = Path(bayou.__file__).resolve().parent

FOREIGN = {"--profile"}
"""Flags of other programs that hints name: `aws sso login --profile P`."""

# A command in running text ends where something other than words, flags and placeholders begins.
_COMMAND = re.compile(r"(?<![\w./-])bayou((?: +(?:-{0,2}[\w…][\w…|=.:/{}-]*))+)")
_QUOTED = re.compile(r"`(bayou [^`]*)`|^# +(bayou .*)$", re.MULTILINE)
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield every text in a module but docstrings; what an f-string puts in is `X`."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    inside = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in ast.walk(node)
        if part is not node
    }
    for node in ast.walk(tree):
        if id(node) in docstrings or id(node) in inside:
            continue
        if isinstance(node, ast.JoinedStr):
            yield (
                node.lineno,
                "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values),
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def hints(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the texts of every `hint=…`, every call of `hint(…)` and every `hint = …`."""
    for node in ast.walk(tree):
        value: ast.expr | None = None
        if isinstance(node, ast.keyword) and node.arg == "hint":
            value = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "hint":
            value = node.args[0]
        elif isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == "hint" for to in node.targets):
            value = node.value
        if value is not None:
            yield from texts(ast.Expression(value))


def named_commands(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield what stands behind `bayou` in hints, and in any other text where it is quoted or shown as an example."""
    for line, text in hints(tree):
        yield from ((line, found.strip()) for found in _COMMAND.findall(text))
    for line, text in texts(tree):
        yield from (
            (line, found.strip()) for quoted in _QUOTED.findall(text) for found in _COMMAND.findall(max(quoted))
        )


MODULES = {str(path.relative_to(SOURCE)): ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}
COMMANDS = [
    (f"{name}:{line}", found) for name, tree in MODULES.items() for line, found in sorted(set(named_commands(tree)))
]


def flags(command: click.Command) -> set[str]:
    found = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    return found | set(command.get_help_option_names(click.Context(command)))


def every_command(command: click.Command) -> Iterator[click.Command]:
    yield command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from every_command(command.get_command(context, name))


ALL_FLAGS = {flag for command in every_command(app) for flag in flags(command)}


def wrong_with(line: str) -> str | None:
    """Say what is wrong with the words behind `bayou`, or None."""
    command: click.Command = app
    for word in line.split():
        if word.startswith("-"):
            if word.partition("=")[0] not in flags(command):
                return f"{command.name} has no flag {word}"
        elif isinstance(command, click.Group):
            below = command.get_command(click.Context(command), word)
            if below is None:
                # After a whole command the sentence may go on: "bayou datastore conflicts lists them".
                return None if command.invoke_without_command else f"{command.name} has no command {word}"
            command = below
    if isinstance(command, click.Group) and not command.invoke_without_command and "--help" not in line:
        return f"{line} is not a whole command"
    return None


def test_the_search_finds_hints():
    assert len(COMMANDS) > 10
    assert any(place.startswith("repo.py") for place, _ in COMMANDS)


@pytest.mark.parametrize(("place", "line"), COMMANDS, ids=lambda value: value)
def test_every_command_that_a_text_names_exists(place, line):
    assert wrong_with(line) is None


@pytest.mark.parametrize("name", sorted(MODULES))
def test_f098_every_flag_that_a_hint_names_exists(name):
    named = {flag for _, text in hints(MODULES[name]) for flag in _FLAG.findall(text)}

    assert named - ALL_FLAGS - FOREIGN == set()


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("datastore snyc", "no command snyc"),
        ("dtastore sync", "no command dtastore"),
        ("datastore sync --force", "no flag --force"),
        ("datastore verify --adopt", "no flag --adopt"),
        ("datastore", "not a whole command"),
    ],
)
def test_a_command_that_does_not_exist_would_be_noticed(line, wrong):
    assert wrong in wrong_with(line)


@pytest.mark.parametrize("flags", [[], ["--deep"]], ids=["shallow", "deep"])
def test_the_repair_that_a_verify_names_removes_the_damage(team, command, monkeypatch, flags):
    """Bytes that are replaced by as many others are found by a deep verify only, and a lost pack by any."""
    clone = team.clone("a")
    clone.write_all({"files/a": b"a" * 100, "files/b": b"b" * 100})
    clone.push()
    store, entry = team.store(), entries_of(team.store())["files/a"]
    if flags:
        overwrite(store, entry)
    else:
        store.delete([entry.key])
    monkeypatch.chdir(clone.repo.root)

    found = command("datastore", "verify", *flags)
    named = re.search(r"where a tree has the content, `bayou ([^`]*)`", " ".join(found.err.split()))
    assert named is not None
    repaired = command(*named[1].split())

    assert found.code == 4
    assert (repaired.code, "repaired" in repaired.out) == (0, True)
    assert command("datastore", "verify", "--deep").code == 0
    fresh = team.clone("fresh")
    assert fresh.pull().exit_code == 0
    assert fresh.files == clone.files
