"""What a shell completes besides commands and options: models, data, workflows, runs and files.

Completion reads only names of files and the catalog as it is: it sends no request, refreshes nothing, asks nothing and
writes nothing. Whatever goes wrong, it offers nothing, and never prints an error into the line that a user types.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

import click
from click.shell_completion import BashComplete, CompletionItem

_MOST = 200
"""The most names that are offered: a user cannot choose from a longer list."""

_BUSY_S = 0.2


class BashScript(BashComplete):
    """Click's script for bash, but a directory, which ends with a slash, gets no space: the path goes on behind it."""

    source_template = """\
%(complete_func)s() {
    local IFS=$'\\n'
    local response completion type value

    response=$(env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD %(complete_var)s=bash_complete $1)

    for completion in $response; do
        IFS=',' read -r type value <<< "$completion"

        if [[ $type == 'dir' ]]; then
            COMPREPLY=()
            compopt -o dirnames
        elif [[ $type == 'file' ]]; then
            COMPREPLY=()
            compopt -o default
        elif [[ $type == 'plain' ]]; then
            COMPREPLY+=("$value")
            if [[ $value == */ ]]; then
                compopt -o nospace
            fi
        fi
    done

    return 0
}

%(complete_func)s_setup() {
    complete -o nosort -F %(complete_func)s %(prog_name)s
}

%(complete_func)s_setup;
"""


def complete(context: click.Context, what: str, incomplete: str) -> list[CompletionItem]:
    """Return what an argument or option, by its name in the usage line, can be completed to; [] if anything fails."""
    label = what.strip("[].").upper()
    if label in _FILES:
        return [CompletionItem(incomplete, type=_FILES[label])]
    find = _SOURCES.get(label)
    if find is None:
        return []
    try:
        found = {name for name in find(context, incomplete) if name.startswith(incomplete) and _is_typeable(name)}
    except Exception:  # noqa: BLE001  (a completion never fails loudly)
        return []
    return [CompletionItem(name) for name in sorted(found)[:_MOST]]


def _is_typeable(name: str) -> bool:
    """Whether a shell and a terminal take the name as it is: no space, no control character."""
    return name.isprintable() and not any(char in name for char in " \"'\\$`!*?;&|<>()")


def _root(context: click.Context) -> Path:
    from bayou.cli.options import Common  # noqa: PLC0415
    from bayou.repo import find_repo  # noqa: PLC0415

    common = context.find_object(Common)
    return find_repo(os.curdir, common.named_repo if common is not None else None)


def _select(context: click.Context, statement: str, *parameters: object) -> Iterator[str]:
    """Yield the first column of a query of the catalog, which is opened to read only."""
    import sqlite3  # noqa: PLC0415
    from urllib.parse import quote  # noqa: PLC0415

    from bayou.config.ownership import find_own_catalog  # noqa: PLC0415
    from bayou.repo import LOCAL  # noqa: PLC0415

    file = find_own_catalog(_root(context) / LOCAL)
    if file is not None:
        uri = f"file:{quote(os.fsencode(file))}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_S)) as db:
            yield from (str(value) for (value, *_) in db.execute(statement, parameters))


def _definitions(context: click.Context, folder: str) -> Iterator[str]:
    """Yield the names of definitions, as their files have them."""
    for _folder, _folders, files in os.walk(_root(context) / folder):
        yield from (name.removesuffix(".yaml") for name in files if name.endswith(".yaml"))


def _models(context: click.Context, _: str) -> Iterator[str]:
    yield from _definitions(context, "models")
    yield from _select(context, "SELECT DISTINCT model FROM version WHERE NOT deleted LIMIT ?", _MOST)


def _names(context: click.Context, incomplete: str) -> Iterable[str]:
    """NAME is data's name after a model; in `workflow` a workflow's, but not where a new one is made."""
    if "model" in context.params:
        return (_deleted_items if context.command.name == "undelete" else _items)(context, incomplete)
    group = context.parent.command.name if context.parent is not None else None
    if context.command.name == "create" or group == "model":
        return ()
    return _definitions(context, "workflows")


def _items(context: click.Context, incomplete: str) -> Iterator[str]:
    model = context.params.get("model")
    statement = """SELECT DISTINCT name FROM version
        WHERE (model = ? OR model_id = ?) AND NOT deleted AND substr(name, 1, ?) = ? LIMIT ?"""
    return _select(context, statement, model, model, len(incomplete), incomplete, _MOST)


def _deleted_items(context: click.Context, incomplete: str) -> Iterator[str]:
    """Yield data of which a version is deleted: its last one is marked so, and of others the number is missing."""
    model = context.params.get("model")
    statement = """SELECT name FROM version
        WHERE (model = ? OR model_id = ?) AND substr(name, 1, ?) = ? GROUP BY type, model_id, name
        HAVING max(renamed_to) IS NULL AND (max(deleted) OR count(*) < max(version)) LIMIT ?"""
    return _select(context, statement, model, model, len(incomplete), incomplete, _MOST)


def _runs(context: click.Context, incomplete: str) -> Iterator[str]:
    statement = "SELECT run_id FROM run WHERE substr(run_id, 1, ?) = ? ORDER BY started_at DESC LIMIT ?"
    yield from _select(context, statement, len(incomplete), incomplete, _MOST - 1)
    yield from _select(context, "SELECT 'latest' FROM run LIMIT 1")


def _types(context: click.Context, _incomplete: str) -> Iterator[str]:
    """Types that are built in or that models have here: loading the others would run code (V23)."""
    from bayou.models.types.registry import BUILT_IN  # noqa: PLC0415

    yield from BUILT_IN
    models = _root(context) / "models"
    for folder, _folders, files in os.walk(models):
        if any(name.endswith(".yaml") for name in files):
            yield os.path.relpath(folder, models)


def _paths(context: click.Context, incomplete: str) -> Iterator[str]:
    """Yield the paths of the tree with one more segment than is typed; a directory ends with a slash."""
    from bayou.repo import LOCAL, leads_out  # noqa: PLC0415

    root = _root(context)
    folder = incomplete.rpartition("/")[0]
    if leads_out(root, f"{LOCAL}/tree/{folder}"):
        return
    with closing(os.scandir(root / LOCAL / "tree" / folder)) as entries:
        for entry in entries:
            path = f"{folder}/{entry.name}" if folder else entry.name
            if not entry.name.startswith("."):
                yield f"{path}/" if entry.is_dir(follow_symlinks=False) else path


def _models_and_paths(context: click.Context, incomplete: str) -> Iterator[str]:
    yield from _models(context, incomplete)
    yield from _paths(context, incomplete)


def _workflows_and_runs(context: click.Context, incomplete: str) -> Iterator[str]:
    yield from _definitions(context, "workflows")
    yield from _runs(context, incomplete)


_FILES = {"FILE|-": "file", "FILE|DIR|-": "file"}
_SOURCES: Mapping[str, Callable[[click.Context, str], Iterable[str]]] = {
    "MODEL": _models,
    "NAME": _names,
    "OLD": _items,
    "RUN": _runs,
    "NAME|RUN": _workflows_and_runs,
    "--WORKFLOW": lambda context, _: _definitions(context, "workflows"),
    "TYPE": _types,
    "--TYPE": _types,
    "PATH": _paths,
    "--PREFIX": _paths,
    "--FORGET": _paths,
    "MODEL|PATH": _models_and_paths,
}
"""By the name of an argument in the usage line, or by an option."""
