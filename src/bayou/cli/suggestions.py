"""What a user may have meant by a command that does not exist: a similar name, or a name of another group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import click

from bayou.core.text import similar_names

_MOST = 3
_CLOSE = 0.75
"""How similar a name must be to come before, or from, another group."""

_HABITS: Mapping[str, Sequence[str]] = {
    "add": ("data put",),
    "cp": ("data put", "data get"),
    "upload": ("data put", "datastore sync --push"),
    "download": ("data get", "datastore sync --pull"),
    "show": ("data get",),
    "ls": ("data list",),
    "rm": ("data delete",),
    "remove": ("data delete",),
    "mv": ("data rename",),
    "restore": ("data undelete",),
    "recover": ("data undelete",),
    "undo": ("data undelete",),
    "history": ("data versions", "datastore log"),
    "push": ("datastore sync --push",),
    "pull": ("datastore sync --pull",),
    "fetch": ("datastore sync --pull", "datastore hydrate"),
    "clone": ("datastore setup",),
    "connect": ("datastore setup",),
    "remote": ("datastore setup", "datastore status"),
    "share": ("datastore setup",),
    "fsck": ("datastore verify",),
    "check": ("workflow validate", "datastore verify"),
    "start": ("workflow run",),
    "rerun": ("workflow resume",),
    "runs": ("workflow run search",),
    "failed": ("workflow run search --status failed",),
}
"""Words of other programs, and what does that here."""

_GROUPS = ("data", "datastore", "workflow", "model")
"""In this order, the groups whose commands are offered first."""


def suggest(context: click.Context, word: str) -> str | None:
    """Return a hint for a word that is no command of a group; None if nothing is similar.

    A very similar command of this group comes first, then one of that very name elsewhere, then other programs' words,
    a very similar name elsewhere, and last what is roughly similar in this group.
    """
    below = suggest_below(context, word, _CLOSE)
    if below is not None:
        return below
    here = context.command_path
    root = context.find_root()
    everywhere = dict(_commands(root))
    same = [path for path, name in everywhere.items() if name == word]
    found = [path for path in same if path.startswith(f"{here} ")] or same
    if not found and word in _HABITS:
        # The habit that belongs to this group, if one does: `data rm` means `data delete`.
        own = [line for line in _HABITS[word] if f"{root.info_name} {line}".startswith(f"{here} ")]
        found = [f"{root.info_name} {line}" for line in own or _HABITS[word]]
    if not found:
        similar = set(similar_names(word, set(everywhere.values()), _MOST, _CLOSE))
        found = [path for path, name in everywhere.items() if name in similar]
    return _question(found[:_MOST]) if found else suggest_below(context, word)


def suggest_below(context: click.Context, word: str, cutoff: float = 0.6) -> str | None:
    """Return a hint with the commands of a group that are similar to a word; None if none is."""
    group = context.command
    assert isinstance(group, click.Group)
    found = {name: group.get_command(context, name) for name in group.list_commands(context)}
    shown = [name for name, command in found.items() if command is None or not command.hidden]
    near = similar_names(word, shown, _MOST, cutoff)
    return _question([f"{context.command_path} {name}" for name in near]) if near else None


def _commands(root: click.Context) -> Iterator[tuple[str, str]]:
    """Yield the commands of all groups: their words, and the last of these."""
    top = root.command
    assert isinstance(top, click.Group)
    names = sorted(top.list_commands(root), key=lambda name: _GROUPS.index(name) if name in _GROUPS else len(_GROUPS))
    for name in names:
        yield from _below(root, top.get_command(root, name), name)


def _below(parent: click.Context, group: click.Command | None, name: str) -> Iterator[tuple[str, str]]:
    if not isinstance(group, click.Group):
        return
    context = click.Context(group, info_name=name, parent=parent)
    found = {below: group.get_command(context, below) for below in group.list_commands(context)}
    shown = [below for below, command in found.items() if command is not None and not command.hidden]
    yield from ((f"{context.command_path} {below}", below) for below in shown)
    for below in shown:
        yield from _below(context, found[below], below)


def _question(lines: Sequence[str]) -> str:
    quoted = [f"`{line}`" for line in lines]
    return f"did you mean {' or '.join([', '.join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)}?"
