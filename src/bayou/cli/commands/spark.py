"""`bayou spark`: the Spark server that runs jobs over a whole store. Outside a repo, the default settings apply."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from bayou.cli.options import Common, Group
from bayou.cli.output import Part, hint, say, show, warn

if TYPE_CHECKING:
    from bayou.config import SparkConfig
    from bayou.spark.warm import SparkStatus, WarmUpResult


@click.group(cls=Group)
def spark() -> None:
    """Look at, start and stop the Spark that bulk work runs on."""


@spark.command()
@click.pass_obj
def status(common: Common) -> None:
    """Show which Spark is used, and whether it runs."""
    from bayou.spark import warm  # noqa: PLC0415

    found = warm.status(_config(common))
    common.output.emit(_status_json(found), _status_text(found))


@spark.command()
@click.pass_obj
def warm(common: Common) -> None:
    """Start the local server now, so that the next command finds it.

    The first time this also makes an archive of Spark's classes, which makes every later start several times faster.
    """
    from bayou.spark.warm import warm_up  # noqa: PLC0415

    common.output.notify("warming Spark up …")
    done = warm_up(_config(common))
    document = _status_json(done.status) | {"started": done.started, "archive": done.archive}
    common.output.emit(document, _warmed_text(done))


@spark.command()
@click.pass_obj
def stop(common: Common) -> None:
    """Stop the local server; it would stop by itself after an hour without work."""
    from bayou.spark import warm  # noqa: PLC0415

    stopped = warm.stop(_config(common))
    text = "the Spark server has been stopped" if stopped else "no Spark server was running"
    common.output.emit({"stopped": stopped}, [say(text)])


def _config(common: Common) -> SparkConfig:
    from bayou.config import spark_config  # noqa: PLC0415
    from bayou.core.errors import NotARepo  # noqa: PLC0415

    try:
        return common.open_repo().config.spark
    except NotARepo:
        if common.named_repo is not None:
            raise
        return spark_config()


def _status_json(found: SparkStatus) -> dict[str, object]:
    return {
        "mode": found.mode,
        "url": found.url,
        "version": found.version,
        "running": found.running,
        "java": found.java,
        "log": None if found.log is None else str(found.log),
    }


def _status_text(found: SparkStatus) -> Iterator[Part]:
    where = {"remote": "a Connect server", "master": "a server in front of a cluster", "local": "a local server"}
    state = f"running at {found.url}" if found.running else "not running"
    yield show(f"Spark {found.version}, {where[found.mode]}: {state}")
    if found.java is not None:
        yield show(f"Java {found.java}; log: {found.log}")
    if found.problem is not None:
        yield warn(found.problem)
    elif not found.running and found.mode != "remote":
        yield hint("the first command that needs it starts it, or `bayou spark warm` does now")


def _warmed_text(done: WarmUpResult) -> Iterator[Part]:
    yield say(f"{'started' if done.started else 'found'} Spark {done.status.version} at {done.status.url}")
    if not done.archive and done.status.mode != "remote":
        yield warn("its class archive is not there yet: the server was in use, or this Java cannot make one")
