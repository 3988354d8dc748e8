"""The records of `data` and `model` commands as people read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from bayou.cli.output import Line, Part, Table, fail, hint, note, say, show, warn
from bayou.cli.units import count, moment, size

if TYPE_CHECKING:
    from bayou.data.catalog import VersionRow
    from bayou.data.metadata import Metadata
    from bayou.data.retention import GcPlan
    from bayou.models import Definition, DeletedModel, ModelListing
    from bayou.models.prune import PrunePlan

_FEW = 10
_SHORT_HASH = 12


def put(model: str, saved: Metadata) -> Iterator[Part]:
    yield say(f"{model} {saved.name}: version {saved.version} ({size(saved.size)}, {saved.content_type})")


def append(model: str, saved: Metadata) -> Iterator[Part]:
    yield say(f"{model} {saved.name}: version {saved.version} has {size(saved.size)} now")


def forwarded(names: Sequence[str], name: str) -> Iterator[Line]:
    """Say of each name that was asked for, or led on, that it is an old one."""
    for old in names:
        yield note(f"{old} was renamed: this is {name}")


def items(rows: Sequence[VersionRow]) -> Iterator[Part]:
    if not rows:
        yield say("no data")
        return
    headings = ("model", "name", "version", "size", "content type", "created", "lifetime", "tags")
    cells = [
        (
            row.model,
            row.name,
            str(row.version),
            size(row.size),
            row.content_type,
            moment(row.created_at),
            row.lifetime or "",
            _tags(row.tags),
        )
        for row in rows
    ]
    yield Table(headings, cells, frozenset({"version", "size"}))


def versions(rows: Sequence[VersionRow]) -> Iterator[Part]:
    cells = [
        (str(row.version), size(row.size), moment(row.created_at), (row.sha256 or "")[:_SHORT_HASH], _standing(row))
        for row in rows
    ]
    yield Table(("version", "size", "created", "sha256", ""), cells, frozenset({"version", "size"}))


def results(found: Sequence[object]) -> Iterator[Part]:
    """Show each result of a query on a line of its own, as JSON."""
    from json import dumps  # noqa: PLC0415

    yield from (show(dumps(one, ensure_ascii=False)) for one in found)
    if not found:
        yield say("nothing matches")


def failed(failures: Sequence[str], *, verbose: bool) -> Iterator[Line]:
    """Name the versions that a query could not judge or show: it hides none of them."""
    shown = failures if verbose else failures[:_FEW]
    yield from map(warn, shown)
    if len(shown) < len(failures):
        yield warn(f"and {len(failures) - len(shown):,} more; -v lists all")


def rename(old: str, renamed: Metadata) -> Iterator[Part]:
    yield say(f"{old} is {renamed.name} now (version {renamed.version}); whoever asks for {old} is sent there")


def delete(name: str, versions_deleted: int) -> Iterator[Part]:
    yield say(f"deleted {count(versions_deleted, 'version')} of {name}")


def gc(plan: GcPlan, *, dry_run: bool, verbose: bool) -> Iterator[Part]:
    if not plan.doomed:
        yield say("nothing has expired, and no version is surplus")
    elif dry_run:
        shown = plan.doomed if verbose else plan.doomed[:_FEW]
        yield from doomed([(one.row, one.why) for one in shown], len(plan.doomed))
        yield say(f"would delete {tally(plan)}")
    else:
        yield say(f"deleted {tally(plan)}")
    yield from map(warn, plan.warnings)


def tally(plan: GcPlan) -> str:
    """Return `3 versions (12 KB): 1 expired, 2 surplus`."""
    surplus = len(plan.doomed) - plan.expired
    return f"{count(len(plan.doomed), 'version')} ({size(plan.bytes)}): {plan.expired:,} expired, {surplus:,} surplus"


def prune(plan: PrunePlan, *, dry_run: bool, verbose: bool) -> Iterator[Part]:
    if not plan.doomed:
        yield say("no data without its model")
    elif dry_run:
        going = plan.doomed if verbose else plan.doomed[:_FEW]
        yield from doomed([(row, "model deleted") for row in going], len(plan.doomed))
        yield say(f"would delete {prune_tally(plan)}")
    else:
        yield say(f"deleted {prune_tally(plan)}")
    yield from elsewhere(plan)


def prune_tally(plan: PrunePlan) -> str:
    """Return `3 versions (12 KB) of 1 model`."""
    return f"{count(len(plan.doomed), 'version')} ({size(plan.bytes)}) of {count(len(plan.models), 'model')}"


def elsewhere(plan: PrunePlan) -> Iterator[Part]:
    """Mention data of models that are not defined here, but that nobody has deleted either (F118)."""
    for ref, number in plan.undefined:
        versions = count(number, "version")
        yield warn(f"{ref.name} ({ref.type} {ref.id}) is not defined here: its {versions} may be another clone's")
    if plan.undefined:
        yield hint("where you know that a model is gone: `bayou data prune MODEL_ID`")


def doomed(shown: Sequence[tuple[VersionRow, str]], total: int) -> Iterator[Part]:
    """List what goes, or the first of it."""
    cells = [(row.model, row.name, str(row.version), size(row.size), moment(row.created_at), why) for row, why in shown]
    yield Table(("model", "name", "version", "size", "created", "why"), cells, frozenset({"version", "size"}))
    if len(shown) < total:
        yield warn(f"and {total - len(shown):,} more; -v lists all")


def made_model(definition: Definition, methods: Sequence[str]) -> Iterator[Part]:
    yield say(f"{definition.name} is a model of type {definition.type} now: {definition.path}")
    if methods:
        yield hint(f"run it with `bayou model run {definition.name} {methods[0]}`")
    else:
        yield hint(f"give it data with `bayou data put {definition.name} NAME FILE`")


def models(found: ModelListing) -> Iterator[Part]:
    if found.models:
        yield Table(("name", "type", "id"), [(one.name, one.type, one.id) for one in found.models])
    elif not found.bad:
        yield say("no models")
        yield hint("make one with `bayou model create TYPE NAME`")
    for error in found.bad:
        yield fail(error.message)
        if error.hint:
            yield hint(error.hint)


def deleted_model(definition: Definition, deleted: DeletedModel) -> Iterator[Part]:
    with_data = f", and {count(deleted.data_deleted, 'version')} of its data" if deleted.data_deleted else ""
    yield say(f"deleted the model {definition.name}{with_data}")


def fields(document: Mapping[str, object]) -> Iterator[Part]:
    """Show a document as YAML, key by key."""
    from json import dumps  # noqa: PLC0415

    for key, value in document.items():
        yield show(f"{key}: {value if isinstance(value, str) else dumps(value, ensure_ascii=False)}")


def _tags(tags: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in tags.items())


def _standing(row: VersionRow) -> str:
    if row.renamed_to is not None:
        return f"renamed to {row.renamed_to}"
    return "deleted" if row.deleted else "latest" if row.latest else ""
