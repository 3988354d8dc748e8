"""`bayou data`: put, read, list, query, rename and delete versions of data.

Commands that read take no lease, and send nothing unless they must fetch content (V15). Each command that writes runs
in one session, which pulls before and pushes after. `gc`, `prune` and `sql` have files of their own.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bayou.cli import options as parameters
from bayou.cli.commands.data_gc import gc, prune
from bayou.cli.commands.data_sql import sql
from bayou.cli.content import as_json, open_input, write_file, write_stdout
from bayou.cli.options import Common, FilePath, Group, check_can_ask, confirm, limit_rate_option, yes_option
from bayou.cli.render import data as render_data
from bayou.cli.render.data import DeletedVersions
from bayou.cli.session import emit_with_remarks, reading, with_remarks, write, write_input
from bayou.core import kept

if TYPE_CHECKING:
    from bayou.data.metadata import Options
    from bayou.data.spool import SpooledInput
    from bayou.repo import Repo
    from bayou.session import Session
    from bayou.sync.plan.policy import ModelRef

_tags = click.option(
    "tags", "--tag", type=parameters.assignment, multiple=True, metavar="K=V", help="A tag; can be given several times."
)
_version = partial(click.option, "--version", type=click.IntRange(min=1), metavar="N")
"""The help says what a command does without it: that differs."""

_file = click.argument("file", metavar="[FILE|-]", required=False, type=FilePath(str))


@click.group(cls=Group)
def data() -> None:
    """Keep versions of data: put, get, list, query, rename, delete, collect."""


data.add_command(gc)
data.add_command(prune)
data.add_command(sql)


@data.command(writes=True)
@click.argument("model")
@click.argument("name")
@click.argument("file", metavar="[FILE|DIR|-]", required=False, type=FilePath(str))
@click.option(
    "--content-type",
    metavar="TYPE",
    help="What it is, as application/json; without it, Bayou guesses by name and content.",
)
@_tags
@click.option(
    "--lifetime",
    metavar="T",
    help="How long `data gc` lets this version be: 10m 24h 7d 4w 6mo 1y; run: as long as the record of its "
    "workflow's run; infinite.",
)
@click.option("--keep", metavar="N|T", help="How many versions to keep, or for how long, as 10 or 30d.")
@click.option("--streaming", is_flag=True, help="Let it be appended to.")
@limit_rate_option
@click.option("--always", is_flag=True, help="Make a new version even if it equals the latest one.")
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
    always: bool,
) -> int:
    """Save a new version of data.

    The content is that of FILE, or with - or without FILE the standard input. All files below DIR become one version of
    many files, which `bayou data get -o` writes back. If content and metadata equal those of the latest version, and
    that has no lifetime, a put makes no new version. A put deletes nothing: `bayou data gc` deletes versions whose
    lifetime is over.
    """
    named = parameters.named_once("--tag", tags)
    repo = common.open_repo()
    from bayou.data.content import type_by_name  # noqa: PLC0415
    from bayou.data.metadata import NewVersion, Options  # noqa: PLC0415
    from bayou.data.spool import receive  # noqa: PLC0415
    from bayou.models import resolve_model  # noqa: PLC0415

    owner = resolve_model(repo, model, connection=common.connect(repo))
    kind = content_type
    if kind is None and (file is None or not Path(file).is_dir()):
        kind = type_by_name(name) or (type_by_name(file) if file is not None else None)
    options = Options(content_type=kind, tags=named, lifetime=lifetime, keep=keep, streaming=streaming)
    NewVersion.of(
        owner, name, repo.config.repo_id, "", options
    )  # raises for bad options before anything is read or sent
    if file is not None and Path(file).is_dir():
        spooled = _receive_directory(common, repo, owner, name, Path(file), options, always=always)
    else:
        with common.output.progress(closing=False), open_input(file) as opened:
            spooled = receive(repo, "put", owner, name, opened, options, always=always)  # V22: before anything is sent
    return write_input(
        common,
        repo,
        spooled,
        lambda saved: (render_data.put_json(owner.name, saved), render_data.put_text(owner.name, saved)),
        lambda waiting: (render_data.kept_json(waiting), render_data.kept_text(waiting)),
    )


def _receive_directory(
    common: Common, repo: Repo, owner: ModelRef, name: str, source: Path, options: Options, *, always: bool
) -> SpooledInput:
    """Keep a directory as the input of a version of many files; refuse what cannot be saved before it is copied."""
    if options.get("streaming"):
        raise click.UsageError("a directory cannot be appended to; leave out --streaming")
    from bayou.data.manifest import receive_directory  # noqa: PLC0415

    with common.output.progress(closing=False):
        return receive_directory(repo, owner, name, source, options, always=always)


@data.command(writes=True)
@click.argument("model")
@click.argument("name")
@_file
@limit_rate_option
@click.pass_obj
def append(common: Common, model: str, name: str, file: str | None) -> int:
    """Add to the latest version of streaming data.

    The content is that of FILE, or with - or without FILE the standard input.
    """
    repo = common.open_repo()
    from bayou.data.layout import check_item  # noqa: PLC0415
    from bayou.data.metadata import Options  # noqa: PLC0415
    from bayou.data.spool import receive  # noqa: PLC0415
    from bayou.models import resolve_model  # noqa: PLC0415

    owner = resolve_model(repo, model, connection=common.connect(repo))
    check_item(owner, name)
    with common.output.progress(closing=False), open_input(file) as opened:
        spooled = receive(repo, "append", owner, name, opened, Options())  # V22: before anything is sent
    return write_input(
        common,
        repo,
        spooled,
        lambda saved: (
            render_data.append_json(owner.name, saved.metadata),
            render_data.append_text(owner.name, saved.metadata),
        ),
        lambda waiting: (render_data.kept_json(waiting), render_data.kept_text(waiting)),
    )


@data.command()
@click.argument("model")
@click.argument("name")
@_version(help="This version, not the latest.")
@click.option(
    "target",
    "-o",
    "--output",
    type=FilePath(),
    metavar="FILE|DIR",
    help="Write it to FILE (- is the standard output), whole or not at all; many files to the new directory DIR.",
)
@limit_rate_option
@click.pass_obj
def get(common: Common, model: str, name: str, version: int | None, target: Path | None) -> None:
    """Print the content of data.

    The bytes as they are, to the standard output or to FILE; with --json what is known of them, and the content where
    it is JSON or text. Of a version of many files it lists them, or writes them to DIR.
    """
    piped = target is not None and str(target) == "-"
    if piped and common.json:
        raise click.UsageError("--json and -o - both write to the standard output; leave out one of them")
    with reading(common) as (records, remarks):
        from bayou.models import resolve_model  # noqa: PLC0415

        item = records.data.get(resolve_model(records.repo, model, records), name, version)
        remarks += render_data.forwarded_text(item.forwarded, item.metadata.name)
        if item.metadata.files is not None:
            if piped:
                raise click.UsageError(f"{item.metadata.name} is a version of many files; name a directory: -o DIR")
            data = records.data
            manifest = data.manifest(item) if target is None else data.write_directory(item, target)
            path = str(records.tree.local_path(item.metadata.location.directory))
            document = render_data.manifest_json(item, path, manifest)
            emit_with_remarks(common, document, render_data.manifest_text(manifest, target), remarks)
            return
        if target is not None and not piped:
            if target.is_dir():
                raise click.UsageError(f"{target} is a directory, and {item.metadata.name} is one file")
            kept.now(f"{target} is as it was")
            with common.output.progress(), records.data.open(item) as opened:
                write_file(opened, target, item.metadata.size)
        if common.json:
            path, content = str(records.data.path(item)), as_json(records.data, item)
            common.output.emit(with_remarks(render_data.get_json(item, path, content), remarks), ())
            return
        common.output.emit({}, remarks)
        if target is None or piped:
            with common.output.progress() as bar, records.data.open(item) as opened:
                if sys.stdout.isatty():
                    bar.close()  # from here on, the terminal belongs to the content
                write_stdout(opened, item.metadata.size)


@data.command("list")
@click.argument("model", required=False)
@click.option("kind", "--type", metavar="TYPE", help="Only of models of this type.")
@_tags
@click.option("--name", metavar="GLOB", help="Only names like this, as 'report-*'.")
@click.option("--all-versions", is_flag=True, help="Every version, not only the latest.")
@click.option(
    "--sort", type=click.Choice(render_data.SORTS), help="In this order: size and created from the top, others A to Z."
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Show at most N.")
@click.pass_obj
def list_(
    common: Common,
    model: str | None,
    kind: str | None,
    tags: tuple[tuple[str, str], ...],
    name: str | None,
    all_versions: bool,
    sort: str | None,
    limit: int | None,
) -> None:
    """List data, of all models or of one.

    With --json, total counts all of them, also those that --limit does not show.
    """
    named = parameters.named_once("--tag", tags)
    with reading(common) as (records, remarks):
        owner = None
        if model is not None:
            from bayou.models import resolve_model  # noqa: PLC0415

            owner = resolve_model(records.repo, model, records)
        rows = records.data.find(model=owner, type=kind, tags=named, all_versions=all_versions, refresh=False)
    rows = render_data.selected(rows, name, sort)
    total, rows = len(rows), rows[:limit]
    document = render_data.items_json(rows, total) if common.json else {}
    emit_with_remarks(common, document, render_data.items_text(rows, total), remarks)


@data.command()
@click.argument("model")
@click.argument("name")
@click.pass_obj
def versions(common: Common, model: str, name: str) -> None:
    """List the versions of data."""
    with reading(common) as (records, remarks):
        from bayou.models import resolve_model  # noqa: PLC0415

        rows = records.data.versions(resolve_model(records.repo, model, records), name, refresh=False)
    emit_with_remarks(common, render_data.versions_json(rows), render_data.versions_text(rows), remarks)


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
    with reading(common) as (records, remarks):
        from bayou.data.query import query as run_query  # noqa: PLC0415

        found = run_query(records, predicate, select, limit)
    remarks += render_data.failed_text(found.failed, verbose=common.verbose > 0)
    emit_with_remarks(common, render_data.query_json(found), render_data.results_text(found.results), remarks)


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
        lambda session: session.records.data.rename(owner, old, new),
        lambda renamed: (render_data.rename_json(old, renamed), render_data.rename_text(old, renamed)),
        models=[owner],
    )


@data.command(writes=True)
@click.argument("model")
@click.argument("name")
@_version(help="Only this version; without it, all of them.")
@yes_option
@click.pass_obj
def delete(common: Common, model: str, name: str, version: int | None, yes: bool) -> int:
    """Delete data: one version of it, or all.

    The number of a deleted version is never used again. `bayou data undelete` brings its content back, as long as the
    store still has it; a datastore that is a directory keeps nothing that was deleted.
    """
    repo = common.open_repo()
    from bayou.data.layout import check_item  # noqa: PLC0415
    from bayou.models import resolve_model  # noqa: PLC0415

    owner = resolve_model(repo, model, connection=common.connect(repo))
    check_item(owner, name)
    forever = repo.config.datastore.url is None
    if not yes:
        check_can_ask(common, yes=yes)
        with reading(common) as (records, _):
            rows = records.data.find(model=owner, name=name, all_versions=True, refresh=False)
        chosen = [row for row in rows if version in (None, row.version)]
        tally = render_data.delete_tally(chosen, owner.name, name, version)
        undone = " This cannot be undone: the datastore is a directory, which has no history." if forever else ""
        confirm(common, f"delete {tally}?{undone}", yes=yes)

    def deleted(session: Session) -> DeletedVersions:
        data = session.records.data
        rows = data.find(model=owner, name=name, all_versions=True, refresh=False)
        gone = [row for row in rows if version in (None, row.version)]
        newest = max((row.version for row in gone), default=0)  # the one that `undelete` brings back
        can_return = bool(session.records.sync.known(f"{check_item(owner, name)}/{newest}/"))
        return DeletedVersions(data.delete(owner, name, version), sum(row.size for row in gone), can_return, forever)

    return write(
        common,
        repo,
        deleted,
        lambda done: (
            render_data.delete_json(done.number),
            render_data.delete_text(owner.name, name, version, done),
        ),
        models=[owner],
        deletes=True,
    )


@data.command(writes=True)
@click.argument("model")
@click.argument("name")
@_version(help="This version; without it, the one deleted last.")
@limit_rate_option
@click.pass_obj
def undelete(common: Common, model: str, name: str, version: int | None) -> int:
    """Bring deleted data back, as a new version.

    The version that was deleted last, or with --version a certain one. Its content stays in the store
    until `bayou datastore gc` deletes it, after its grace period. Later versions stay as they are.
    """
    repo = common.open_repo()
    repo.require_online("a deleted version is only in the store")
    from bayou.data.layout import check_item  # noqa: PLC0415
    from bayou.models import resolve_model  # noqa: PLC0415

    owner = resolve_model(repo, model, connection=common.connect(repo))
    check_item(owner, name)
    return write(
        common,
        repo,
        lambda session: session.records.data.undelete(owner, name, version),
        lambda saved: (render_data.undelete_json(owner.name, saved), render_data.undelete_text(owner.name, saved)),
        models=[owner],
    )
