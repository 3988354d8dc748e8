"""`bayou datastore`: each command parses, calls one function of sync or maintenance, and renders its report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from bayou.cli import options as parameters
from bayou.cli.commands.conflicts import conflicts
from bayou.cli.options import Common, FilePath, Group, engine_option, limit_rate_option
from bayou.cli.output import count
from bayou.cli.render import datastore as render_datastore
from bayou.cli.render import leases as render_leases
from bayou.cli.render import maintenance as render_maintenance
from bayou.core import kept
from bayou.core.deadline import Deadline
from bayou.core.errors import BayouError, Cancelled, IndexDamaged, StoreError
from bayou.core.paths import PAYLOAD_ROOTS

if TYPE_CHECKING:
    from bayou.core.progress import Progress
    from bayou.repo import Repo
    from bayou.state.connection import Connection
    from bayou.sync.report import Mode, Resolution, SyncReport

_FAILED = 1

_timeout = click.option("--timeout", type=parameters.timeout, metavar="S", help="Give up after S seconds (or 5m, 2h).")
_store_options = click.option(
    "options",
    "--option",
    type=parameters.assignment,
    multiple=True,
    metavar="K=V",
    help="A setting of the store, as region=NAME.",
)


@click.group(cls=Group)
def datastore() -> None:
    """Share a repo's data: set up, sync, verify, collect."""


datastore.add_command(conflicts)


@datastore.command(writes=True)
@click.argument("target", metavar="URL|PATH", type=parameters.target)
@click.option(
    "--namespace", type=parameters.namespace, metavar="N", help="Use only the part of the store with this name."
)
@_store_options
@click.option("--lazy", is_flag=True, help="Fetch the content of data only when it is read.")
@click.option("--skip-migration", is_flag=True, help="Do not bring along what the old datastore holds.")
@engine_option
@_timeout
@limit_rate_option
@click.pass_obj
def setup(
    common: Common,
    target: str,
    namespace: str | None,
    options: tuple[tuple[str, str], ...],
    lazy: bool,
    skip_migration: bool,
    engine: Literal["auto", "point", "spark"],
    timeout: float | None,
) -> int:
    """Keep this repo's data in a store, or in a directory.

    URL is s3://bucket/prefix, gs://…, az://… or file:///directory: this machine keeps a copy, and syncs it. The bucket
    must exist. Credentials come from the provider's own environment, profile or login, as AWS_ACCESS_KEY_ID or `aws sso
    login`. PATH is a directory that holds the data itself, without a copy and without sync.
    """
    named = parameters.named_once("--option", options)
    repo = common.open_repo()
    from bayou.data.sync_hooks import finish_pending_changesets, renumber  # noqa: PLC0415
    from bayou.maintenance.setup import setup  # noqa: PLC0415

    finish_pending_changesets(common.connect(repo))
    kept.now("bayou.toml is as it was")
    with common.output.progress() as progress:
        report = setup(
            repo,
            target,
            namespace=namespace,
            options=named,
            lazy=lazy,
            skip_migration=skip_migration,
            timeout=timeout,
            progress=progress,
            renumber=renumber,
            engine=engine,
        )
    common.output.emit(
        render_datastore.setup_json(report), render_datastore.setup_text(report, verbose=common.verbose > 0)
    )
    return report.exit_code


@datastore.command(writes=True)
@click.option("--packs", is_flag=True, help="Count packs, also if that takes long: of more than 20,000 files.")
@_timeout
@click.pass_obj
def status(common: Common, packs: bool, timeout: float | None) -> int:
    """Show where the data is, and whether this machine has anything to push or to pull."""
    repo = common.open_repo()
    from bayou.sync.status import status  # noqa: PLC0415

    report = status(common.connect(repo), packs=packs, timeout=timeout)
    common.output.emit(render_datastore.status_json(report), render_datastore.status_text(report))
    return _FAILED if report.healthy is False else 0


@datastore.command(writes=True)
@click.option("--push", is_flag=True, help="Only push.")
@click.option("--pull", is_flag=True, help="Only pull; write nothing to the store.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")
@click.option(
    "--on-conflict",
    type=click.Choice(["keep", "ours", "theirs", "fail"]),
    default="keep",
    show_default=True,
    help="What a path becomes that both sides changed. keep: the store's file, and a copy of yours stays beside; "
    "ours: your file; theirs: the store's file; fail: change nothing.",
)
@click.option(
    "--adopt",
    is_flag=True,
    help=f"Also push files that were not written through Bayou. They must lie in a payload root of the tree "
    f"({', '.join(sorted(PAYLOAD_ROOTS))}), such as files/; whatever else lies in the tree stays here.",
)
@click.option("--allow-mass-delete", is_flag=True, help="Let most of the files be deleted.")
@engine_option
@_timeout
@limit_rate_option
@click.pass_obj
def sync(
    common: Common,
    push: bool,
    pull: bool,
    dry_run: bool,
    on_conflict: Resolution,
    adopt: bool,
    allow_mass_delete: bool,
    engine: Literal["auto", "point", "spark"],
    timeout: float | None,
) -> int:
    """Push what changed on this machine, and pull what others pushed."""
    if push and pull:
        raise click.UsageError("--push and --pull exclude each other; a sync without them does both")
    repo = common.open_repo()
    from bayou.data.sync_hooks import finish_pending_changesets, renumber  # noqa: PLC0415
    from bayou.sync.report import SyncOptions  # noqa: PLC0415
    from bayou.sync.service import sync  # noqa: PLC0415

    connection = common.connect(repo)
    if not dry_run:
        finish_pending_changesets(connection)
    kept.now(nothing="nothing was transferred, and no change that was made here is lost")
    mode: Mode = "push" if push else "pull" if pull else "sync"
    options = SyncOptions(mode, dry_run, on_conflict, adopt, allow_mass_delete, engine, renumber=renumber)
    failure: BayouError | None = None
    with common.output.progress() as progress:
        try:
            report = sync(connection, options, timeout=timeout, progress=progress)
        except StoreError as error:
            _say_waiting(error, connection)
            raise
        if not (pull or dry_run):
            failure = _use_inputs(repo, connection, report, timeout, progress)
    if report.pulled.files or report.pulled.deleted or report.pushed.renumbered:
        from bayou.data.records import refresh_catalog  # noqa: PLC0415

        refresh_catalog(connection, engine)
    common.output.emit(
        render_datastore.sync_json(report), render_datastore.sync_text(report, verbose=common.verbose > 0)
    )
    if failure is not None:
        raise failure
    return report.exit_code


def _say_waiting(error: StoreError, connection: Connection) -> None:
    """Say in an error's hint what waits here for the store (V22)."""
    from bayou.state.freshness import freshness  # noqa: PLC0415

    waiting = freshness(connection).waiting
    if waiting:
        waits = f"{count(waiting, 'change')} not pushed yet, and kept here"
        error.hint = f"{waits}; {error.hint}" if error.hint else waits


def _use_inputs(
    repo: Repo, connection: Connection, report: SyncReport, timeout: float | None, progress: Progress
) -> BayouError | None:
    """Use the inputs that earlier commands left (V22), after a sync; return why some of them still wait."""
    from bayou.state.freshness import pending_inputs  # noqa: PLC0415

    if repo.offline or not pending_inputs(repo):
        return None
    from bayou.session.inputs import empty_spool  # noqa: PLC0415

    try:
        empty_spool(repo, connection, report, timeout=timeout, progress=progress)
    except Cancelled:
        raise
    except BayouError as error:
        return error
    return None


@datastore.command(writes=True)
@click.option("--deep", is_flag=True, help="Read every object and check its hash.")
@click.option(
    "--repair",
    is_flag=True,
    help="Upload again what the store has lost and this machine has, and index what is not indexed.",
)
@click.option(
    "--forget",
    multiple=True,
    metavar="PATH",
    help="Drop the entry of PATH from the index: its content is lost, or its name is unsafe (then as verify prints "
    "it, with \\x00). A file that is here is kept as a copy.",
)
@engine_option
@_timeout
@limit_rate_option
@click.pass_obj
def verify(
    common: Common,
    deep: bool,
    repair: bool,
    forget: tuple[str, ...],
    engine: Literal["auto", "point", "spark"],
    timeout: float | None,
) -> int:
    """Check that the store holds what its index says."""
    repo = common.open_repo()
    from bayou.maintenance.verify import verify  # noqa: PLC0415

    kept.now(nothing="nothing was changed")
    with common.output.progress() as progress:
        report = verify(
            repo, deep=deep, repair=repair, forget=forget, timeout=timeout, engine=engine, progress=progress
        )
    common.output.emit(
        render_maintenance.verify_json(report),
        render_maintenance.verify_text(report, verbose=common.verbose > 0, deep=deep or report.read),
    )
    return 0 if report.ok else IndexDamaged.exit_code


@datastore.command()
@click.option("number", "-n", type=click.IntRange(min=1), default=20, show_default=True, help="How many commits.")
@click.pass_obj
def log(common: Common, number: int) -> None:
    """List commits, the newest first."""
    repo = common.open_repo()
    from bayou.sync.status import log  # noqa: PLC0415

    rows = log(repo, number)
    common.output.emit(render_datastore.log_json(rows), render_datastore.log_text(rows))


@datastore.command(writes=True)
@click.option("--dry-run", is_flag=True, help="Show what would be deleted.")
@click.option(
    "--grace", type=parameters.duration, default="24h", show_default=True, help="Keep what is younger than this."
)
@click.option("compacts", "--compact", is_flag=True, help="First rewrite packs, as `datastore compact` does.")
@engine_option
@_timeout
@limit_rate_option
@click.pass_obj
def gc(
    common: Common,
    dry_run: bool,
    grace: float,
    compacts: bool,
    engine: Literal["auto", "point", "spark"],
    timeout: float | None,
) -> int:
    """Delete objects from the store that are no longer needed.

    These are objects of files that were deleted or replaced, of pushes that never ended, and of earlier versions of the
    index. What is younger than the grace stays, for clients that still read it.
    """
    repo = common.open_repo()
    from bayou.maintenance.gc import collect  # noqa: PLC0415

    kept.now(nothing="nothing was deleted")
    moved = None
    with common.output.progress() as progress:
        if compacts:
            from bayou.maintenance.compact import compact  # noqa: PLC0415

            moved = compact(repo, dry_run=dry_run, grace_s=grace, timeout=timeout, engine=engine, progress=progress)
        report = collect(repo, dry_run=dry_run, grace_s=grace, timeout=timeout, engine=engine, progress=progress)
    common.output.emit(
        render_maintenance.collect_json(report, moved),
        render_maintenance.collect_text(report, moved, verbose=common.verbose > 0),
    )
    return _FAILED if moved is not None and moved.failures else 0


@datastore.command(writes=True)
@click.option("--dry-run", is_flag=True, help="Show what would be moved, and change nothing.")
@engine_option
@_timeout
@limit_rate_option
@click.pass_obj
def compact(common: Common, dry_run: bool, engine: Literal["auto", "point", "spark"], timeout: float | None) -> int:
    """Move small files together, and away from deleted ones.

    Rewrites packs that are small or hold deleted files, and packs small objects. `bayou datastore gc` frees the space
    of what was moved, once nothing needs it any more.
    """
    repo = common.open_repo()
    from bayou.maintenance.compact import compact  # noqa: PLC0415

    kept.now(nothing="nothing was moved")
    with common.output.progress() as progress:
        report = compact(repo, dry_run=dry_run, timeout=timeout, engine=engine, progress=progress)
    common.output.emit(
        render_maintenance.compact_json(report), render_maintenance.compact_text(report, verbose=common.verbose > 0)
    )
    return _FAILED if report.failures else 0


@datastore.command(writes=True)
@click.argument("url", metavar="URL", type=parameters.target)
@click.option(
    "--namespace", type=parameters.namespace, metavar="N", help="Use only the part of that store with this name."
)
@_store_options
@click.option("--dry-run", is_flag=True, help="Show what would be copied, and change nothing.")
@click.option("--allow-mass-delete", is_flag=True, help="Let most of the replica be deleted.")
@engine_option
@_timeout
@limit_rate_option
@click.pass_obj
def replicate(
    common: Common,
    url: str,
    namespace: str | None,
    options: tuple[tuple[str, str], ...],
    dry_run: bool,
    allow_mass_delete: bool,
    engine: Literal["auto", "point", "spark"],
    timeout: float | None,
) -> int:
    """Make another store a copy of this one.

    URL is s3://bucket/prefix, gs://…, az://… or file:///directory: an empty place, or a replica of this datastore,
    which then gets what is new. This repo's tree is not touched.
    """
    named = parameters.named_once("--option", options)
    repo = common.open_repo()
    from bayou.maintenance.replicate import replicate  # noqa: PLC0415

    kept.now("the replica shows the commit that it had")
    with common.output.progress() as progress:
        report = replicate(
            repo,
            url,
            namespace=namespace,
            options=named,
            dry_run=dry_run,
            allow_mass_delete=allow_mass_delete,
            engine=engine,
            timeout=timeout,
            progress=progress,
        )
    common.output.emit(
        render_maintenance.replicate_json(report), render_maintenance.replicate_text(report, verbose=common.verbose > 0)
    )
    return _FAILED if report.failures else 0


@datastore.command(writes=True)
@click.argument("target", metavar="[MODEL|PATH]", required=False)
@_timeout
@limit_rate_option
@click.pass_obj
def hydrate(common: Common, target: str | None, timeout: float | None) -> None:
    """Fetch what a lazy tree has left in the store.

    Without an argument all of it, else that of one model, or one path.
    """
    repo = common.open_repo()
    from bayou.sync.hydrate import hydrate  # noqa: PLC0415

    kept.now(nothing="nothing was fetched")
    with common.output.progress():
        moved = hydrate(common.connect(repo), target, timeout=timeout)
    common.output.emit(render_datastore.hydrate_json(moved), render_datastore.hydrate_text(moved))


@datastore.command()
@click.argument("path")
@click.option("--locate", is_flag=True, help="Print where the bytes are in the store, and not the content.")
@_timeout
@limit_rate_option
@click.pass_obj
def cat(common: Common, path: str, locate: bool, timeout: float | None) -> None:
    """Print the content of one file of the datastore.

    The bytes as they are, from this tree if it has them, else from the store; a lazy tree stays as it is. With --json
    what is known of them, and the content where it is text.
    """
    repo = common.open_repo()
    from bayou.sync import read_file  # noqa: PLC0415

    connection = common.connect(repo)
    if locate:
        found = read_file.locate(connection, path, timeout=timeout)
        common.output.emit(render_maintenance.location_json(found), render_maintenance.location_text(found))
        return
    from bayou.cli.content import text_of, write_stdout  # noqa: PLC0415

    with read_file.open_content(connection, path, timeout=timeout) as content:
        if common.json:
            common.output.emit(render_maintenance.content_json(content, text_of(content.file, content.size)), ())
        else:
            write_stdout(content.file)


@datastore.command()
@click.argument("directory", metavar="DIR", type=FilePath())
@click.option("--prefix", metavar="P", help="Only the file P, or all below the directory P.")
@_timeout
@limit_rate_option
@click.pass_obj
def export(common: Common, directory: Path, prefix: str | None, timeout: float | None) -> int:
    """Write the files of the datastore into an empty or new directory.

    Each as a plain file under its name, proved by its hash.
    """
    repo = common.open_repo()
    from bayou.maintenance.export import export  # noqa: PLC0415

    kept.now("nothing was written")
    try:
        with common.output.progress() as progress:
            report = export(common.connect(repo), directory, prefix=prefix, timeout=timeout, progress=progress)
    except KeyboardInterrupt as error:
        written = getattr(error, "__notes__", [])
        if not written:
            raise
        # Unlike other commands, this one does not go on where it was stopped.
        raise Cancelled(
            "; ".join(["the export was stopped", *written]), hint="delete the directory, or export to another one"
        ) from None
    common.output.emit(
        render_maintenance.export_json(report), render_maintenance.export_text(report, verbose=common.verbose > 0)
    )
    return _FAILED if report.failures else 0


@datastore.group()
def lock() -> None:
    """Show who writes at this moment, and release what a dead process left."""


@lock.command("status")
@click.pass_obj
def lock_status(common: Common) -> None:
    """List the leases that are held."""
    repo = common.open_repo()
    from bayou.leases import open_leases  # noqa: PLC0415

    leases = open_leases(repo).list(Deadline.after(repo.config.sync.timeout))
    common.output.emit(render_leases.leases_json(leases), render_leases.leases_text(leases))


@lock.command()
@click.argument("key")
@click.option("--nonce", required=True, metavar="N", help="The nonce that `lock status` shows.")
@click.pass_obj
def release(common: Common, key: str, nonce: str) -> None:
    """Release a lease, also that of another user or machine.

    Nothing is done if its holder is no longer the one with that nonce.
    """
    repo = common.open_repo()
    from bayou.leases import open_leases  # noqa: PLC0415

    released = open_leases(repo).release(key, nonce, Deadline.after(repo.config.sync.timeout))
    common.output.emit({"released": released}, render_leases.released_text(key, released))
