"""`bayou datastore lock`: look at the leases, and release one that nobody needs any more."""

from __future__ import annotations

import click

from bayou.cli import lock_sentences
from bayou.cli.common import Common, Group
from bayou.core.deadline import Deadline


@click.group(cls=Group)
def lock() -> None:
    """Show who writes at this moment, and release what a dead process left."""


@lock.command()
@click.pass_obj
def status(common: Common) -> None:
    """List the leases that somebody holds."""
    repo = common.open_repo()
    from bayou.leases import open_leases  # noqa: PLC0415

    leases = open_leases(repo).list(Deadline.after(repo.config.sync.timeout))
    common.output.emit(lock_sentences.document(leases), lock_sentences.status(leases))


@lock.command()
@click.argument("key")
@click.option("--nonce", required=True, metavar="N", help="The nonce that `lock status` shows.")
@click.pass_obj
def release(common: Common, key: str, nonce: str) -> None:
    """Release a lease, whoever holds it.

    Nothing is done if its holder is no longer the one with that nonce.
    """
    repo = common.open_repo()
    from bayou.leases import open_leases  # noqa: PLC0415

    released = open_leases(repo).release(key, nonce, Deadline.after(repo.config.sync.timeout))
    common.output.emit({"released": released}, lock_sentences.release(key, released))
