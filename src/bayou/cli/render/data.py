"""The records of `data` and `model` commands as people read them.

The records of `data` and `model` commands as JSON has them; like `documents`, a contract for scripts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from bayou.cli.output import Line, Part, Table, count, fail, hint, moment, note, say, show, size, warn
from bayou.cli.render.datastore import Document

if TYPE_CHECKING:
    from bayou.data.catalog import VersionRow
    from bayou.data.items import Item
    from bayou.data.metadata import Metadata
    from bayou.data.query import QueryResult
    from bayou.data.retention import GcPlan
    from bayou.models import Definition, DeletedModel, ModelListing
    from bayou.models.prune import PrunePlan

_FEW = 10
_SHORT_HASH = 12


def put_text(model: str, saved: Metadata) -> Iterator[Part]:
    yield say(f"{model} {saved.name}: version {saved.version} ({size(saved.size)}, {saved.content_type})")


def append_text(model: str, saved: Metadata) -> Iterator[Part]:
    yield say(f"{model} {saved.name}: version {saved.version} has {size(saved.size)} now")


def forwarded_text(names: Sequence[str], name: str) -> Iterator[Line]:
    """Say of each name that was asked for, or led on, that it is an old one."""
    for old in names:
        yield note(f"{old} was renamed: this is {name}")


def items_text(rows: Sequence[VersionRow]) -> Iterator[Part]:
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


def versions_text(rows: Sequence[VersionRow]) -> Iterator[Part]:
    cells = [
        (str(row.version), size(row.size), moment(row.created_at), (row.sha256 or "")[:_SHORT_HASH], _standing(row))
        for row in rows
    ]
    yield Table(("version", "size", "created", "sha256", ""), cells, frozenset({"version", "size"}))


def results_text(found: Sequence[object]) -> Iterator[Part]:
    """Show each result of a query on a line of its own, as JSON."""
    from json import dumps  # noqa: PLC0415

    yield from (show(dumps(one, ensure_ascii=False)) for one in found)
    if not found:
        yield say("nothing matches")


def failed_text(failures: Sequence[str], *, verbose: bool) -> Iterator[Line]:
    """Name the versions that a query could not judge or show: it hides none of them."""
    shown = failures if verbose else failures[:_FEW]
    yield from map(warn, shown)
    if len(shown) < len(failures):
        yield warn(f"and {len(failures) - len(shown):,} more; -v lists all")


def rename_text(old: str, renamed: Metadata) -> Iterator[Part]:
    yield say(f"{old} is {renamed.name} now (version {renamed.version}); whoever asks for {old} is sent there")


def delete_text(name: str, versions_deleted: int) -> Iterator[Part]:
    yield say(f"deleted {count(versions_deleted, 'version')} of {name}")


def gc_text(plan: GcPlan, *, dry_run: bool, verbose: bool) -> Iterator[Part]:
    if not plan.doomed:
        yield say("nothing has expired, and no version is surplus")
    elif dry_run:
        shown = plan.doomed if verbose else plan.doomed[:_FEW]
        yield from doomed_text([(one.row, one.why) for one in shown], len(plan.doomed))
        yield say(f"would delete {tally_text(plan)}")
    else:
        yield say(f"deleted {tally_text(plan)}")
    yield from map(warn, plan.warnings)


def tally_text(plan: GcPlan) -> str:
    """Return `3 versions (12 KB): 1 expired, 2 surplus`."""
    surplus = len(plan.doomed) - plan.expired
    return f"{count(len(plan.doomed), 'version')} ({size(plan.bytes)}): {plan.expired:,} expired, {surplus:,} surplus"


def prune_text(plan: PrunePlan, *, dry_run: bool, verbose: bool) -> Iterator[Part]:
    if not plan.doomed:
        yield say("no data without its model")
    elif dry_run:
        going = plan.doomed if verbose else plan.doomed[:_FEW]
        yield from doomed_text([(row, "model deleted") for row in going], len(plan.doomed))
        yield say(f"would delete {prune_tally_text(plan)}")
    else:
        yield say(f"deleted {prune_tally_text(plan)}")
    yield from elsewhere_text(plan)


def prune_tally_text(plan: PrunePlan) -> str:
    """Return `3 versions (12 KB) of 1 model`."""
    return f"{count(len(plan.doomed), 'version')} ({size(plan.bytes)}) of {count(len(plan.models), 'model')}"


def elsewhere_text(plan: PrunePlan) -> Iterator[Part]:
    """Mention data of models that are not defined here, but that nobody has deleted either (F118)."""
    for ref, number in plan.undefined:
        versions = count(number, "version")
        yield warn(f"{ref.name} ({ref.type} {ref.id}) is not defined here: its {versions} may be another clone's")
    if plan.undefined:
        yield hint("where you know that a model is gone: `bayou data prune MODEL_ID`")


def doomed_text(shown: Sequence[tuple[VersionRow, str]], total: int) -> Iterator[Part]:
    """List what goes, or the first of it."""
    cells = [(row.model, row.name, str(row.version), size(row.size), moment(row.created_at), why) for row, why in shown]
    yield Table(("model", "name", "version", "size", "created", "why"), cells, frozenset({"version", "size"}))
    if len(shown) < total:
        yield warn(f"and {total - len(shown):,} more; -v lists all")


def made_model_text(definition: Definition, methods: Sequence[str]) -> Iterator[Part]:
    yield say(f"{definition.name} is a model of type {definition.type} now: {definition.path}")
    if methods:
        yield hint(f"run it with `bayou model run {definition.name} {methods[0]}`")
    else:
        yield hint(f"give it data with `bayou data put {definition.name} NAME FILE`")


def models_text(found: ModelListing) -> Iterator[Part]:
    if found.models:
        yield Table(("name", "type", "id"), [(one.name, one.type, one.id) for one in found.models])
    elif not found.bad:
        yield say("no models")
        yield hint("make one with `bayou model create TYPE NAME`")
    for error in found.bad:
        yield fail(error.message)
        if error.hint:
            yield hint(error.hint)


def deleted_model_text(definition: Definition, deleted: DeletedModel) -> Iterator[Part]:
    with_data = f", and {count(deleted.data_deleted, 'version')} of its data" if deleted.data_deleted else ""
    yield say(f"deleted the model {definition.name}{with_data}")


def fields_text(document: Mapping[str, object]) -> Iterator[Part]:
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


def put_json(model: str, saved: Metadata) -> Document:
    return {
        "model": model,
        "name": saved.name,
        "version": saved.version,
        "size": saved.size,
        "sha256": saved.sha256,
    }


def append_json(model: str, saved: Metadata) -> Document:
    return {"model": model, "name": saved.name, "version": saved.version, "size": saved.size}


def get_json(item: Item, path: str, content: object) -> Document:
    found = item.metadata
    owner = {key: value for key, value in asdict(found.owner).items() if value is not None}
    document: dict[str, object] = {
        "id": found.id,
        "name": found.name,
        "version": found.version,
        "content_type": found.content_type,
        "size": found.size,
        "sha256": found.sha256,
        "tags": dict(found.tags),
        "owner": owner,
        "created_at": found.created_at,
        "lifetime": found.lifetime,
        "keep": found.keep,
        "streaming": found.streaming,
        "deleted": found.deleted,
        "renamed_to": found.renamed_to,
        "path": path,
        "content": content,
    }
    if item.forwarded:
        document["forwarded"] = list(item.forwarded)
    return document


def items_json(rows: Iterable[VersionRow]) -> Document:
    found = [
        {
            "model": row.model,
            "model_id": row.model_id,
            "type": row.type,
            "name": row.name,
            "version": row.version,
            "size": row.size,
            "content_type": row.content_type,
            "tags": dict(row.tags),
            "created_at": row.created_at,
            "lifetime": row.lifetime,
        }
        for row in rows
    ]
    return {"items": found, "total": len(found)}


def versions_json(rows: Iterable[VersionRow]) -> Document:
    return {
        "versions": [
            {
                "version": row.version,
                "size": row.size,
                "sha256": row.sha256,
                "created_at": row.created_at,
                "latest": row.latest,
                "deleted": row.deleted,
            }
            for row in rows
        ]
    }


def query_json(found: QueryResult) -> Document:
    document: dict[str, object] = {"results": list(found.results), "total": found.total}
    if found.failed:
        document["failed"] = len(found.failed)
    return document


def rename_json(old: str, renamed: Metadata) -> Document:
    return {"old": old, "new": renamed.name, "version": renamed.version}


def delete_json(versions_deleted: int) -> Document:
    return {"versions_deleted": versions_deleted}


def gc_json(plan: GcPlan) -> Document:
    return {"expired": plan.expired, "versions_deleted": len(plan.doomed), "bytes": plan.bytes}


def prune_json(plan: PrunePlan) -> Document:
    return {"models": len(plan.models), "versions_deleted": len(plan.doomed), "bytes": plan.bytes}


def model_json(definition: Definition) -> Document:
    return {
        "id": definition.id,
        "type": definition.type,
        "name": definition.name,
        "path": definition.path,
        "arguments": dict(definition.arguments),
        "methods": dict(definition.methods),
        "tags": dict(definition.tags),
    }


def made_model_json(definition: Definition) -> Document:
    return {"id": definition.id, "type": definition.type, "name": definition.name, "path": definition.path}


def models_json(found: ModelListing) -> Document:
    document: dict[str, object] = {
        "models": [{"id": one.id, "type": one.type, "name": one.name} for one in found.models]
    }
    if found.bad:
        document["problems"] = [error.message for error in found.bad]
    return document


def deleted_model_json(deleted: DeletedModel) -> Document:
    return {"id": deleted.id, "data_deleted": deleted.data_deleted}
