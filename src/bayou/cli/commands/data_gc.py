"""`bayou data gc` and `bayou data prune`: show which versions go, ask, and delete exactly those."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

import click

from bayou.cli.options import Command, Common, check_can_ask, confirm, engine_option, yes_option
from bayou.cli.output import Line, Part
from bayou.cli.render import data as render_data
from bayou.cli.session import Rendered, reading, with_remarks, write

if TYPE_CHECKING:
    from bayou.data.engine import Choice
    from bayou.data.records import Records
    from bayou.data.retention import GcPlan
    from bayou.models.prune import PrunePlan
    from bayou.session import Session

P = TypeVar("P", "GcPlan", "PrunePlan")

_dry_run = click.option("--dry-run", is_flag=True, help="Show what would be deleted, and delete nothing.")


@click.command(cls=Command, writes=True)
@_dry_run
@yes_option
@engine_option
@click.pass_obj
def gc(common: Common, dry_run: bool, yes: bool, engine: Choice) -> int:
    """Delete versions whose lifetime is over, and versions beyond those that their item keeps.

    --lifetime and --keep of `bayou data put` say which these are. --keep never deletes the latest version. A dry run
    lists exactly what a run deletes.
    """
    from bayou.data.retention import plan_gc, run_gc  # noqa: PLC0415

    now = datetime.now(UTC)

    def rendered(plan: GcPlan, *, dry: bool = False) -> Rendered:
        parts = list(render_data.gc_text(plan, dry_run=dry, verbose=common.verbose > 0))
        return render_data.gc_json(plan), parts

    return _collect(
        common,
        plan=lambda records: plan_gc(records, now),
        run=run_gc,
        render=rendered,
        question=lambda plan: f"delete {render_data.gc_tally(plan)}?",
        dry_run=dry_run,
        yes=yes,
        engine=engine,
    )


@click.command(cls=Command, writes=True)
@click.argument("model_ids", metavar="[MODEL_ID]...", nargs=-1)
@_dry_run
@yes_option
@click.pass_obj
def prune(common: Common, model_ids: tuple[str, ...], dry_run: bool, yes: bool) -> int:
    """Delete the data of models that are gone.

    Gone is a model that `bayou model delete` has deleted, here or elsewhere, or whose MODEL_ID you give. Data of a
    model that is merely not defined here may be another clone's: it is mentioned, and stays.
    """
    from bayou.models.prune import plan_prune, run_prune  # noqa: PLC0415

    def rendered(plan: PrunePlan, *, dry: bool = False) -> Rendered:
        parts = list(render_data.prune_text(plan, dry_run=dry, verbose=common.verbose > 0))
        return render_data.prune_json(plan), parts

    return _collect(
        common,
        plan=lambda records: plan_prune(records, model_ids),
        run=run_prune,
        render=rendered,
        question=lambda plan: f"delete {render_data.prune_tally(plan)}?",
        dry_run=dry_run,
        yes=yes,
    )


def _collect(
    common: Common,
    *,
    plan: Callable[[Records], P],
    run: Callable[[Records, P], P],
    render: Callable[..., Rendered],
    question: Callable[[P], str],
    dry_run: bool,
    yes: bool,
    engine: Choice = "auto",
) -> int:
    """Show a plan (`dry_run`), or carry it out. A run deletes only what the user saw, whatever has expired since."""
    shown: P | None = None
    if not dry_run:
        check_can_ask(common, yes=yes)
    if not yes or dry_run:
        from bayou.data.engine import CatalogEngine  # noqa: PLC0415

        remarks: list[Line]
        with (
            common.output.progress() as progress,
            reading(common, CatalogEngine(engine, progress)) as (records, remarks),
        ):
            shown = plan(records)
        document, rendered = render(shown, dry=True)
        parts: list[Part] = list(rendered)
        parts += [line for line in remarks if line not in parts]
        common.output.emit(with_remarks(document, parts), parts)
        if dry_run or not shown.versions:
            return 0
        confirm(common, question(shown), yes=yes)

    def delete(session: Session) -> P:
        found = plan(session.records)
        return run(session.records, found if shown is None else found.within(shown))

    return write(common, common.open_repo(), delete, render, store_wide=True, deletes=True, engine=engine)
