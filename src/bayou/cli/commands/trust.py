"""`bayou trust`: show, allow and revoke what in this repo needs the user's permission (V23, V24)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from bayou.cli.options import Common, Group, says_yes, yes_option
from bayou.cli.output import CommandOutput, Line, Part, hint, say, show, warn
from bayou.core import activity
from bayou.core.errors import NotConfirmed

if TYPE_CHECKING:
    from bayou.config.trust import Need


class _Permissions(Struct, frozen=True):
    """What a repo needs, which of it is not allowed yet, and folders of state that was set aside."""

    root: Path
    needs: list[Need]
    missing: list[Need]
    aside: list[Path]

    @property
    def allowed(self) -> bool:
        return not self.missing


@click.group(cls=Group)
def trust() -> None:
    """Look at, allow and revoke what a cloned repo needs your permission for.

    A clone is data: until you allow it on this machine, it sends no credential anywhere, runs no code and touches
    nothing outside itself. Permissions are kept in your own configuration folder. BAYOU_TRUST=1 allows everything
    for one command, as CI needs it.
    """


@trust.command("show")
@click.pass_obj
def show_(common: Common) -> None:
    """Say in plain sentences what in this repo needs your permission, and what of it you have allowed."""
    found = _permissions(common)
    common.output.emit(_json(found), _text(found))


@trust.command()
@yes_option
@click.pass_obj
def allow(common: Common, yes: bool) -> None:
    """Allow, on this machine, everything that `trust show` lists, as it is now.

    If any of it changes later, Bayou asks again. State of .bayou/ that was made elsewhere is taken over.
    """
    from bayou.config import trust as permissions  # noqa: PLC0415

    found = _permissions(common)
    if found.missing and not yes:
        _check_can_ask(common)
        if not ask(common.output, found.missing):
            raise NotConfirmed("nothing was allowed")
    permissions.allow(found.root, [need for need in found.missing if need.what != "state"])
    if found.aside and any(need.what == "state" for need in found.missing):
        from bayou.maintenance.foreign_state import choose, take_over  # noqa: PLC0415

        take_over(found.root / ".bayou", choose(found.root, found.aside))
    now = _permissions(common)
    common.output.emit(_json(now), _text(now))


@trust.command()
@click.pass_obj
def revoke(common: Common) -> None:
    """Forget what was allowed for this repo on this machine."""
    from bayou.config import trust as permissions  # noqa: PLC0415

    found = _permissions(common)
    had = permissions.revoke(found.root)
    now = _permissions(common)
    text = "what you had allowed for this repo is forgotten" if had else "nothing was allowed for this repo"
    common.output.emit(_json(now), [say(text)])


def ask(output: CommandOutput, needs: Sequence[Need]) -> bool:
    """Ask at the terminal whether to allow these on this machine; any answer but yes is a no."""
    with activity.hidden():
        output.emit(
            {}, [Line(f"{need.why} ({need.where}, sha256 {need.digest[:12]})", "needs", always=True) for need in needs]
        )
        return says_yes("allow this on this machine?")


def _check_can_ask(common: Common) -> None:
    if not common.can_ask:
        raise NotConfirmed(
            "this command has no terminal to ask on",
            hint="look with `bayou trust show`, then `bayou trust allow --yes`",
        )


def _permissions(common: Common) -> _Permissions:
    """Read the needs from the file itself: settings of the environment need no permission, and hide none here."""
    from bayou.config import parse_config  # noqa: PLC0415
    from bayou.config.load import read_text  # noqa: PLC0415
    from bayou.config.ownership import set_aside_folders  # noqa: PLC0415
    from bayou.config.trust import datastore_needs, extension_needs, link_needs, spark_needs, unallowed  # noqa: PLC0415

    repo = common.open_repo()
    config = parse_config(read_text(repo.file), str(repo.file))
    needs = [
        *datastore_needs(repo.root, config.datastore),
        *spark_needs(config.spark),
        *link_needs(repo.root),
        *extension_needs(repo.root),
    ]
    # The file and the environment together can need more: a store that a variable names, with the file's options.
    for gate in (repo.config.datastore.gate, repo.config.spark.gate):
        needs += [need for need in gate.needs if need not in needs] if gate is not None else []
    missing = unallowed(repo.root, needs)
    aside = set_aside_folders(repo.local) if repo.links is None else []
    if aside:
        from bayou.maintenance.foreign_state import state_need  # noqa: PLC0415

        held = [state_need(repo.root, folder) for folder in aside]
        needs += held
        missing += held
    return _Permissions(repo.root, needs, missing, aside)


def _json(found: _Permissions) -> dict[str, object]:
    missing = {need.digest for need in found.missing}
    return {
        "repo": str(found.root),
        "allowed": found.allowed,
        "needs": [
            {
                "what": need.what,
                "where": need.where,
                "value": need.value,
                "why": need.why,
                "digest": need.digest,
                "allowed": need.digest not in missing,
            }
            for need in found.needs
        ],
    }


def _text(found: _Permissions) -> Iterator[Part]:
    if not found.needs:
        yield show("nothing in this repo needs your permission")
        return
    missing = {need.digest for need in found.missing}
    for need in found.needs:
        state = "not allowed" if need.digest in missing else "allowed"
        yield show(f"{state}: {need.why}")
        yield show(f"    {need.where}, sha256 {need.digest[:12]}")
    if found.aside:
        yield warn("remove .bayou/set-aside to be rid of state that you do not want")
    if not found.allowed:
        yield hint("allow it on this machine, as it is now, with `bayou trust allow`")
