"""`bayou data`: put, look at, rename and delete versions of data.

Commands that read take no lease, and send nothing unless content must be fetched (V15); those that write run in one
session, which pulls before and pushes after.

Content on its way in, from a file or the standard input, and out, to a file or the standard output.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NoReturn, cast

import click

from bayou.cli import options as parameters
from bayou.cli.commands.data_gc import gc, prune
from bayou.cli.commands.session import annotated, reading, write
from bayou.cli.commands.sql import sql
from bayou.cli.options import Common, Group, confirm, yes_option
from bayou.cli.render import data as render_data
from bayou.core.atomic_file import atomic_file
from bayou.core.errors import UsageError

if TYPE_CHECKING:
    from bayou.data.items import DataRepository, Item

_JSON = frozenset({"application/json"})
_TEXT = frozenset({"application/yaml", "application/x-yaml", "application/toml", "application/xml", "application/sql"})
_CHUNK = 1 << 20
_IN_MEMORY = 8 << 20


@contextmanager
def source(name: str | None) -> Iterator[BinaryIO]:
    """Open what a command is to read: a file, or for `-` or nothing the standard input.

    The standard input is read to its end before anything else is done: whoever writes it may take hours, and a lease is
    not to be held that long.
    """
    if name is not None and name != "-":
        with _open(name) as opened:
            yield opened
        return
    if name is None and sys.stdin.isatty():
        raise click.UsageError("nothing to read: name a FILE, or - for what you type")
    from tempfile import SpooledTemporaryFile  # noqa: PLC0415

    with SpooledTemporaryFile(_IN_MEMORY) as kept:
        shutil.copyfileobj(sys.stdin.buffer, kept, _CHUNK)
        kept.seek(0)
        yield cast("BinaryIO", kept)


def pour(content: BinaryIO) -> None:
    """Write content to the standard output as it is, to the last byte.

    A terminal would obey it: there controls are made visible, but for newlines and tabs.
    """
    sys.stdout.flush()
    if sys.stdout.isatty():
        from bayou.core.text import VisibleStream  # noqa: PLC0415

        stream = VisibleStream()
        while data := content.read(_CHUNK):
            sys.stdout.write(stream.add(data))
        sys.stdout.write(stream.add(b"", last=True))
        return
    shutil.copyfileobj(content, sys.stdout.buffer, _CHUNK)
    sys.stdout.buffer.flush()


def write_whole(content: BinaryIO, target: Path) -> None:
    """Make content the file `target`: whole when this returns; if this raises, what was there is still there."""
    with atomic_file(target) as opened:
        shutil.copyfileobj(content, opened, _CHUNK)


def parsed(repository: DataRepository, item: Item) -> object:
    """Return content as JSON can have it: parsed if it is JSON, as text if it is text, else None."""
    kind = item.metadata.content_type.partition(";")[0].strip().lower()
    is_json = kind in _JSON or kind.endswith("+json")
    if not is_json and not kind.startswith("text/") and kind not in _TEXT:
        return None
    try:
        text = repository.read(item).decode()
    except UnicodeDecodeError:
        return None
    if is_json:
        from json import loads  # noqa: PLC0415

        with suppress(ValueError, RecursionError):
            return loads(text, parse_constant=_no_constant)
    return text


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


def _open(name: str) -> BinaryIO:
    try:
        return open(name, "rb")
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror}", hint="- reads the standard input") from None


_tags = click.option(
    "tags", "--tag", type=parameters.assignment, multiple=True, metavar="K=V", help="A tag; may stand several times."
)
_version = click.option("--version", type=click.IntRange(min=1), metavar="N", help="This version, not the latest.")
_file = click.argument("file", metavar="[FILE|-]", required=False)


@click.group(cls=Group)
def data() -> None:
    """Keep versions of data: put, get, list, query, rename, delete, collect."""


data.add_command(gc)
data.add_command(prune)
data.add_command(sql)


@data.command(writes=True)
@click.argument("model")
@click.argument("name")
@_file
@click.option(
    "--content-type", metavar="TYPE", help="What it is, as application/json; else it is guessed, by name or look."
)
@_tags
@click.option("--lifetime", metavar="T", help="How long this version lives: 10m 24h 7d 4w 6mo 1y, run or infinite.")
@click.option("--keep", metavar="N|T", help="How many versions to keep, or for how long, as 10 or 30d.")
@click.option("--streaming", is_flag=True, help="Let it be appended to.")
@click.pass_obj
def put(
    common: Common,
    model: str,
    name: str,
    file: str | None,
    content_type: str | None,
    tags: tuple[tuple[str, str], ...],
    lifetime: str | None,
    keep: str | None,
    streaming: bool,
) -> int:
    """Save a new version of data.

    The content is that of FILE, or with - or without FILE the standard input. Nothing is deleted by a put: what has
    had its time goes with `bayou data gc`.
    """
    named = parameters.named_once("--tag", tags)
    repo = common.open_repo()
    from bayou.data.content import type_by_name  # noqa: PLC0415
    from bayou.data.metadata import NewVersion, Options  # noqa: PLC0415
    from bayou.models import resolve_model  # noqa: PLC0415

    owner = resolve_model(repo, model, connection=common.connect(repo))
    kind = content_type or type_by_name(name) or (type_by_name(file) if file is not None else None)
    options = Options(content_type=kind, tags=named, lifetime=lifetime, keep=keep, streaming=streaming)
    NewVersion.of(
        owner, name, repo.config.repo_id, "", options
    )  # what cannot be is said before anything is read or sent
    with source(file) as opened:
        return write(
            common,
            repo,
            lambda records: records.data.save(owner, name, opened, **options),
            lambda saved: (render_data.put_json(owner.name, saved), render_data.put_text(owner.name, saved)),
            models=[owner],
        )


@data.command(writes=True)
@click.argument("model")
@click.argument("name")
@_file
@click.pass_obj
def append(common: Common, model: str, name: str, file: str | None) -> int:
    """Add to the latest version of streaming data.

    The content is that of FILE, or with - or without FILE the standard input.
    """
    repo = common.open_repo()
    from bayou.data.layout import check_item  # noqa: PLC0415
    from bayou.models import resolve_model  # noqa: PLC0415

    owner = resolve_model(repo, model, connection=common.connect(repo))
    check_item(owner, name)
    with source(file) as opened:
        return write(
            common,
            repo,
            lambda records: records.data.append(owner, name, opened),
            lambda saved: (render_data.append_json(owner.name, saved), render_data.append_text(owner.name, saved)),
            models=[owner],
        )


@data.command()
@click.argument("model")
@click.argument("name")
@_version
@click.option(
    "target",
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write it to FILE, whole or not at all.",
)
@click.pass_obj
def get(common: Common, model: str, name: str, version: int | None, target: Path | None) -> None:
    """Print the content of data.

    The bytes as they are, to the standard output or to FILE; with --json what is known of them, and the content where
    it is JSON or text.
    """
    with reading(common) as (records, told):
        from bayou.models import resolve_model  # noqa: PLC0415

        item = records.data.get(resolve_model(records.repo, model, records), name, version)
        told += render_data.forwarded_text(item.forwarded, item.metadata.name)
        if target is not None:
            with records.data.open(item) as opened:
                write_whole(opened, target)
        if common.json:
            path, found = str(records.data.path(item)), parsed(records.data, item)
            common.output.emit(annotated(render_data.get_json(item, path, found), told), ())
            return
        common.output.emit({}, told)
        if target is None:
            with records.data.open(item) as opened:
                pour(opened)


@data.command("list")
@click.argument("model", required=False)
@click.option("kind", "--type", metavar="TYPE", help="Only of models of this type.")
@_tags
@click.option("--all-versions", is_flag=True, help="Every version, not only the latest.")
@click.pass_obj
def list_(
    common: Common, model: str | None, kind: str | None, tags: tuple[tuple[str, str], ...], all_versions: bool
) -> None:
    """List data, of all models or of one."""
    named = parameters.named_once("--tag", tags)
    with reading(common) as (records, told):
        owner = None
        if model is not None:
            from bayou.models import resolve_model  # noqa: PLC0415

            owner = resolve_model(records.repo, model, records)
        rows = records.data.find(model=owner, type=kind, tags=named, all_versions=all_versions, refresh=False)
    document = render_data.items_json(rows) if common.json else {}
    common.output.emit(annotated(document, told), chain(render_data.items_text(rows), told))


@data.command()
@click.argument("model")
@click.argument("name")
@click.pass_obj
def versions(common: Common, model: str, name: str) -> None:
    """List the versions of data."""
    with reading(common) as (records, told):
        from bayou.models import resolve_model  # noqa: PLC0415

        rows = records.data.versions(resolve_model(records.repo, model, records), name, refresh=False)
    common.output.emit(annotated(render_data.versions_json(rows), told), [*render_data.versions_text(rows), *told])


@data.command()
@click.argument("predicate")
@click.option("--select", metavar="EXPR", help="What to show of each, as name, or {'n': name, 's': size}.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Show at most N.")
@click.pass_obj
def query(common: Common, predicate: str, select: str | None, limit: int | None) -> None:
    """Find data by a CEL expression.

    As: name == "report" && latest && tags.env == "prod" && size > 1000. Besides what a list shows, there are latest,
    owner, run, workflow, job, step, and of the content: content, its text, and attributes, what it says as JSON.
    """
    with reading(common) as (records, told):
        from bayou.data.query import query as run_query  # noqa: PLC0415

        found = run_query(records, predicate, select, limit)
    told += render_data.failed_text(found.failed, verbose=common.verbose > 0)
    common.output.emit(
        annotated(render_data.query_json(found), told), [*render_data.results_text(found.results), *told]
    )


@data.command(writes=True)
@click.argument("model")
@click.argument("old")
@click.argument("new")
@click.pass_obj
def rename(common: Common, model: str, old: str, new: str) -> int:
    """Give data another name; the old one leads to it."""
    repo = common.open_repo()
    from bayou.data.layout import check_item  # noqa: PLC0415
    from bayou.models import resolve_model  # noqa: PLC0415

    owner = resolve_model(repo, model, connection=common.connect(repo))
    for name in (old, new):
        check_item(owner, name)
    return write(
        common,
        repo,
        lambda records: records.data.rename(owner, old, new),
        lambda renamed: (render_data.rename_json(old, renamed), render_data.rename_text(old, renamed)),
        models=[owner],
    )


@data.command(writes=True)
@click.argument("model")
@click.argument("name")
@_version
@yes_option
@click.pass_obj
def delete(common: Common, model: str, name: str, version: int | None, yes: bool) -> int:
    """Delete data: one version of it, or all.

    The number of a deleted version is never used again.
    """
    repo = common.open_repo()
    from bayou.data.layout import check_item  # noqa: PLC0415
    from bayou.models import resolve_model  # noqa: PLC0415

    owner = resolve_model(repo, model, connection=common.connect(repo))
    check_item(owner, name)
    what = f"version {version}" if version is not None else "all versions"
    confirm(common, f"delete {what} of {owner.name} {name}?", yes=yes)
    return write(
        common,
        repo,
        lambda records: records.data.delete(owner, name, version),
        lambda number: (render_data.delete_json(number), render_data.delete_text(name, number)),
        models=[owner],
        deletes=True,
    )
