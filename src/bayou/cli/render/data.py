"""Render the records of `data` commands, as text and as JSON (a contract for scripts)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from shlex import quote
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import asdict

from bayou.cli.output import (
    FEW,
    Document,
    Line,
    Part,
    Table,
    count,
    files,
    hint,
    limited,
    moment,
    more,
    note,
    say,
    show,
    size,
    warn,
)

if TYPE_CHECKING:
    from pathlib import Path

    from bayou.data.catalog import VersionRow
    from bayou.data.items import Item
    from bayou.data.manifest import Manifest
    from bayou.data.metadata import Metadata
    from bayou.data.query import QueryResult
    from bayou.data.retention import GcPlan
    from bayou.data.spool import SpooledInput
    from bayou.data.staging import SaveResult
    from bayou.models.prune import PrunePlan

_SHORT_HASH = 12


def put_text(model: str, saved: SaveResult) -> Iterator[Part]:
    made = saved.metadata
    number = "" if made.files is None else f"{count(made.files, 'file')}, "
    if saved.unchanged:
        yield say(f"{model} {made.name}: unchanged, version {made.version} is the same ({number}{size(made.size)})")
        yield hint("--always makes a new version of it")
    else:
        yield say(f"{model} {made.name}: version {made.version} ({number}{size(made.size)}, {made.content_type})")
    if saved.empty:
        yield note(f"{count(saved.empty, 'empty directory', 'empty directories')} left out: a version has only files")


def put_json(model: str, saved: SaveResult) -> Document:
    made = saved.metadata
    return {
        "model": model,
        "name": made.name,
        "version": made.version,
        "size": made.size,
        "sha256": made.sha256,
        **({} if made.files is None else {"files": made.files}),
        **({"unchanged": True} if saved.unchanged else {}),
    }


def manifest_text(manifest: Manifest, target: Path | None) -> Iterator[Part]:
    """List the files of a version, or say where they were written."""
    total = files(len(manifest.files), manifest.size)
    if target is not None:
        yield say(f"wrote {total} to {target}")
        return
    yield Table(("name", "size"), [(file.name, size(file.size)) for file in manifest.files], frozenset({"size"}))
    yield note(f"{total}; -o DIR writes them to a directory")


def manifest_json(item: Item, path: str, manifest: Manifest) -> Document:
    listed = [asdict(file) for file in manifest.files]
    return {**get_json(item, path, None), "files": listed}


def append_text(model: str, saved: Metadata) -> Iterator[Part]:
    yield say(f"{model} {saved.name}: version {saved.version} has {size(saved.size)} now")


def append_json(model: str, saved: Metadata) -> Document:
    return {"model": model, "name": saved.name, "version": saved.version, "size": saved.size}


def kept_text(kept: SpooledInput) -> Iterator[Part]:
    done = "appended" if kept.record.command == "append" else "saved"
    yield say(f"{kept.record.model} {kept.record.name}: {size(kept.record.size)} kept here, to be {done}")


def kept_json(kept: SpooledInput) -> Document:
    record = kept.record
    found = {"id": kept.id, "size": record.size, "sha256": record.sha256}
    return {"model": record.model, "name": record.name, "version": None, "size": None, "kept": found}


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
        **({} if found.restored_from is None else {"restored_from": found.restored_from}),
        "path": path,
        "content": content,
    }
    if item.forwarded:
        document["forwarded"] = list(item.forwarded)
    return document


def forwarded_text(names: Sequence[str], name: str) -> Iterator[Line]:
    """Tell the user which of the names that led to `name` are old ones."""
    for old in names:
        yield note(f"{old} was renamed: this is {name}")


SORTS = ("model", "name", "type", "version", "size", "created")
_NEWEST_FIRST = ("size", "created")


def selected(rows: list[VersionRow], name: str | None, sort: str | None) -> list[VersionRow]:
    """Return the rows whose name matches a glob, in an order of `SORTS`; equal ones stay in the order of a list."""
    if name is not None:
        from fnmatch import fnmatchcase  # noqa: PLC0415

        rows = [row for row in rows if fnmatchcase(row.name, name)]
    if sort is None:
        return rows
    field = {"created": "created_at"}.get(sort, sort)
    return sorted(rows, key=lambda row: getattr(row, field), reverse=sort in _NEWEST_FIRST)


def items_text(rows: Sequence[VersionRow], total: int) -> Iterator[Part]:
    if not rows:
        yield say("no data")
        return
    headings = ("model", "name", "version", "size", "content type", "created", "lifetime", "tags")
    cells = [
        (
            row.model,
            row.name,
            str(row.version),
            _size_of(row),
            row.content_type,
            moment(row.created_at),
            row.lifetime or "",
            _tags(row.tags),
        )
        for row in rows
    ]
    yield Table(headings, cells, frozenset({"version", "size"}))
    if total > len(rows):
        yield note(f"{len(rows):,} of {total:,}; a higher --limit shows more")


def items_json(rows: Iterable[VersionRow], total: int) -> Document:
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
            **({} if row.files is None else {"files": row.files}),
        }
        for row in rows
    ]
    return {"items": found, "total": total}


def versions_text(rows: Sequence[VersionRow]) -> Iterator[Part]:
    cells = [
        (
            str(row.version),
            _size_of(row),
            moment(row.created_at),
            (row.sha256 or "")[:_SHORT_HASH],
            _version_state(row),
        )
        for row in rows
    ]
    yield Table(("version", "size", "created", "sha256", ""), cells, frozenset({"version", "size"}))


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
                **({} if row.files is None else {"files": row.files}),
            }
            for row in rows
        ]
    }


def results_text(found: Sequence[object]) -> Iterator[Part]:
    """Show each result of a query on a line of its own, as JSON."""
    from json import dumps  # noqa: PLC0415

    yield from (show(dumps(result, ensure_ascii=False)) for result in found)
    if not found:
        yield say("nothing matches")


def failed_text(failures: Sequence[str], *, verbose: bool) -> Iterator[Line]:
    """Name the versions for which the expressions of a query failed: a query hides none of them."""
    yield from limited(failures, verbose, warn)


def query_json(found: QueryResult) -> Document:
    document: dict[str, object] = {"results": list(found.results), "total": found.total}
    if found.failed:
        document["failed"] = len(found.failed)
    return document


def rename_text(old: str, renamed: Metadata) -> Iterator[Part]:
    yield say(f"{old} is {renamed.name} now (version {renamed.version}); {old} still leads to it")


def rename_json(old: str, renamed: Metadata) -> Document:
    return {"old": old, "new": renamed.name, "version": renamed.version}


class DeletedVersions(Struct, frozen=True):
    """What a delete did: how many versions, their bytes, and whether the store has them so that they can come back.

    `forever`: the datastore is a directory, which keeps nothing that was deleted.
    """

    number: int
    bytes: int
    can_return: bool
    forever: bool = False


def delete_tally(rows: Sequence[VersionRow], model: str, name: str, version: int | None) -> str:
    """Return `3 versions (12 KB) of web1 report, the latest of 2026-11-17 09:00:00`."""
    if not rows:  # another clone may have pushed it: the session pulls first
        return f"{'all versions' if version is None else f'version {version}'} of {model} {name}"
    total = size(sum(row.size for row in rows))
    if version is not None:
        return f"version {version} of {model} {name} ({total}, of {moment(rows[0].created_at)})"
    latest = max(rows, key=lambda row: row.version)
    what = f"{count(len(rows), 'version')} of {model} {name} ({total})"
    return f"{what}, the latest of {moment(latest.created_at)}"


def delete_text(model: str, name: str, version: int | None, done: DeletedVersions) -> Iterator[Part]:
    undone = "; this cannot be undone" if done.forever else ""
    yield say(f"deleted {count(done.number, 'version')} of {name} ({size(done.bytes)}){undone}")
    if done.can_return:
        which = "" if version is None else f" --version {version}"
        undo = f"bayou data undelete {quote(model)} {quote(name)}{which}"
        what = "it" if version is not None or done.number == 1 else "the latest version"
        yield hint(f"`{undo}` brings {what} back, until `bayou datastore gc` has deleted the content")


def delete_json(versions_deleted: int) -> Document:
    return {"versions_deleted": versions_deleted}


def undelete_text(model: str, saved: Metadata) -> Iterator[Part]:
    yield say(
        f"{model} {saved.name}: version {saved.version} has the content of version {saved.restored_from} again"
        f" ({size(saved.size)})"
    )


def undelete_json(model: str, saved: Metadata) -> Document:
    return {"model": model, "name": saved.name, "version": saved.version, "restored_from": saved.restored_from}


def gc_text(plan: GcPlan, *, dry_run: bool, verbose: bool) -> Iterator[Part]:
    if not plan.versions:
        yield say("nothing has expired, and no version is surplus")
    elif dry_run:
        shown = plan.versions if verbose else plan.versions[:FEW]
        yield from _versions_text([(expired.row, expired.why) for expired in shown], len(plan.versions))
        yield say(f"would delete {gc_tally(plan)}")
    else:
        yield say(f"deleted {gc_tally(plan)}")
    yield from map(warn, plan.warnings)


def gc_json(plan: GcPlan) -> Document:
    return {"expired": plan.expired, "versions_deleted": len(plan.versions), "bytes": plan.bytes}


def gc_tally(plan: GcPlan) -> str:
    """Return `3 versions (12 KB): 1 expired, 2 surplus`."""
    surplus = len(plan.versions) - plan.expired
    return f"{count(len(plan.versions), 'version')} ({size(plan.bytes)}): {plan.expired:,} expired, {surplus:,} surplus"


def prune_text(plan: PrunePlan, *, dry_run: bool, verbose: bool) -> Iterator[Part]:
    if not plan.versions:
        yield say("no data without its model")
    elif dry_run:
        shown = plan.versions if verbose else plan.versions[:FEW]
        yield from _versions_text([(row, "model deleted") for row in shown], len(plan.versions))
        yield say(f"would delete {prune_tally(plan)}")
    else:
        yield say(f"deleted {prune_tally(plan)}")
    yield from _undefined_text(plan)


def prune_json(plan: PrunePlan) -> Document:
    return {"models": len(plan.models), "versions_deleted": len(plan.versions), "bytes": plan.bytes}


def prune_tally(plan: PrunePlan) -> str:
    """Return `3 versions (12 KB) of 1 model`."""
    return f"{count(len(plan.versions), 'version')} ({size(plan.bytes)}) of {count(len(plan.models), 'model')}"


def _undefined_text(plan: PrunePlan) -> Iterator[Part]:
    """Mention data of models that are not defined here and were not deleted either (F118)."""
    for ref, number in plan.undefined:
        versions = count(number, "version")
        yield warn(f"{ref.name} ({ref.type} {ref.id}) is not defined here: its {versions} may be another clone's")
    if plan.undefined:
        yield hint("where you know that a model is gone: `bayou data prune MODEL_ID`")


def _versions_text(shown: Sequence[tuple[VersionRow, str]], total: int) -> Iterator[Part]:
    """List the versions that a run deletes, or the first of them."""
    cells = [(row.model, row.name, str(row.version), size(row.size), moment(row.created_at), why) for row, why in shown]
    yield Table(("model", "name", "version", "size", "created", "why"), cells, frozenset({"version", "size"}))
    yield from more(total - len(shown))


def _size_of(row: VersionRow) -> str:
    """Return `12 KB`, or of a version of many files `12 KB in 3 files`."""
    return size(row.size) if row.files is None else f"{size(row.size)} in {count(row.files, 'file')}"


def _tags(tags: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in tags.items())


def _version_state(row: VersionRow) -> str:
    if row.renamed_to is not None:
        return f"renamed to {row.renamed_to}"
    return "deleted" if row.deleted else "latest" if row.latest else ""
