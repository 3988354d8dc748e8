"""Render what `datastore verify`, `gc`, `compact`, `replicate`, `export` and `cat` report, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from bayou.cli.output import Document, Part, count, fail, files, hint, limited, say, show, size, warn
from bayou.cli.render.datastore import refused_json, refused_text, store_name

if TYPE_CHECKING:
    from bayou.sync.read_file import FileContent, Location
    from bayou.sync.report import CollectReport, CompactReport, ExportReport, ReplicateReport, VerifyReport


def verify_text(report: VerifyReport, *, verbose: bool, deep: bool = False) -> Iterator[Part]:
    """Render the report; `deep`: the content was read, and only a repair that reads it, too, finds the same damage."""
    verdict = "all is well" if report.ok else "there is damage"
    repaired = f", repaired {report.repaired:,}" if report.repaired else ""
    yield show(f"checked {count(report.checked, 'file')}{repaired}: {verdict}")
    totals = report.totals.get
    yield from limited(report.missing, verbose, lambda path: fail(f"{path}: missing in the store"), totals("missing"))
    yield from limited(report.changed, verbose, lambda path: fail(f"{path}: changed in the store"), totals("changed"))
    yield from limited(
        report.unsafe, verbose, lambda row: fail(f"{row.path}: unsafe in the index: {row.reason}"), totals("unsafe")
    )
    if report.unsafe:
        yield hint("such rows are left alone; `bayou datastore verify --repair` drops those that can name no object")
        yield hint("to drop another: `bayou datastore verify --forget PATH`, with the path as it is written here")
    yield from limited(report.damaged, verbose, fail)
    if report.damaged:
        yield hint("`bayou datastore verify --repair` rebuilds the index")
    yield from limited(report.unrecovered, verbose, lambda path: fail(f"{path}: could not be recovered"))
    yield from limited(
        report.attested,
        verbose,
        lambda path: warn(f"{path}: only a pack names it, so it may have been deleted before"),
        totals("attested"),
    )
    if report.missing or report.changed:
        flags = "--deep --repair" if deep else "--repair"
        yield hint(f"where a tree has the content, `bayou datastore verify {flags}` brings it back")
        yield hint("to give up an entry: `bayou datastore verify --forget PATH`")
    if report.unindexed:
        yield from limited(
            report.unindexed,
            verbose,
            lambda path: warn(f"{path}: in the store, but not in its index"),
            totals("unindexed"),
        )
        yield hint("`bayou datastore verify --repair` takes them in")
    yield from refused_text(report.refused, verbose, totals("refused"))
    yield from map(warn, report.warnings)
    if report.leftovers or report.trash:
        left, trash = count(report.leftovers, "object"), count(report.trash, "object")
        yield say(f"{left} of earlier or unfinished pushes, {trash} in the trash: `bayou datastore gc` removes them")


def verify_json(report: VerifyReport) -> Document:
    document: dict[str, object] = {
        "checked": report.checked,
        "missing": list(report.missing),
        "changed": list(report.changed),
        "unindexed": list(report.unindexed),
        "leftovers": report.leftovers,
        "trash": report.trash,
        "repaired": report.repaired,
        "ok": report.ok,
    }
    added = {
        "refused": refused_json(report.refused),
        "unsafe": [{"path": row.path, "reason": row.reason} for row in report.unsafe],
        "damaged": list(report.damaged),
        "unrecovered": list(report.unrecovered),
        "attested": list(report.attested),
        "warnings": list(report.warnings),
        "totals": dict(report.totals),
    }
    return document | {name: value for name, value in added.items() if value}


def collect_text(
    report: CollectReport, compacted: CompactReport | None = None, *, verbose: bool = False
) -> Iterator[Part]:
    if compacted is not None:
        yield from compact_text(compacted, verbose=verbose)
    found = (
        (report.objects_deleted, "object", "objects"),
        (report.leftovers_deleted, "leftover", "leftovers"),
        (report.trash_deleted, "object of the trash", "objects of the trash"),
        (report.nodes_deleted, "index node", "index nodes"),
    )
    deleted = [count(number, singular, plural) for number, singular, plural in found if number]
    yield from map(warn, report.warnings)
    if not deleted:
        yield say("nothing to collect")
        return
    verb, freed = ("would delete", "frees") if report.dry_run else ("deleted", "freed")
    packs = f", among them {count(report.packs_deleted, 'pack')}" if report.packs_deleted else ""
    yield say(f"{verb} {_enumeration(deleted)}{packs}; that {freed} {size(report.bytes)}")


def collect_json(report: CollectReport, compacted: CompactReport | None = None) -> Document:
    return {
        "objects_deleted": report.objects_deleted,
        "leftovers_deleted": report.leftovers_deleted,
        "trash_deleted": report.trash_deleted,
        "nodes_deleted": report.nodes_deleted,
        "bytes": report.bytes,
        **({"packs_deleted": report.packs_deleted} if report.packs_deleted else {}),
        **({"warnings": list(report.warnings)} if report.warnings else {}),
        **({"compact": compact_json(compacted)} if compacted is not None else {}),
    }


def compact_text(report: CompactReport, *, verbose: bool) -> Iterator[Part]:
    yield from map(warn, report.warnings)
    if report.files:
        move, frees = ("would move", "could then free") if report.dry_run else ("moved", "can free")
        objects = f", {count(report.objects, 'object')} of their own among them," if report.objects else ""
        yield say(
            f"{move} {files(report.files, report.bytes)}{objects} into new packs: "
            f"{count(report.packs_before, 'pack')} before, {report.packs_after:,} after"
        )
        yield hint(f"`bayou datastore gc` {frees} {size(report.freed)}, after its grace")
    elif not report.failures:
        yield say(f"nothing to compact ({count(report.packs_before, 'pack')})")
    if report.skipped:
        stayed = "it was" if report.skipped == 1 else "they were"
        yield say(f"{count(report.skipped, 'file')} changed meanwhile, and stayed where {stayed}")
    yield from _failures_text(report, verbose, "moved")
    if report.failures:
        yield hint("these stay where they are; `bayou datastore verify --deep` says what is wrong with them")


def compact_json(report: CompactReport) -> Document:
    document = {
        "dry_run": report.dry_run,
        "packs_before": report.packs_before,
        "packs_after": report.packs_after,
        "files_moved": report.files,
        "objects": report.objects,
        "bytes_moved": report.bytes,
        "bytes_dead": report.freed,
        "skipped": report.skipped,
        "failures": report.failures,
    }
    added = {"failed": _failed_json(report), "warnings": list(report.warnings)}
    return document | {name: value for name, value in added.items() if value}


def replicate_text(report: ReplicateReport, *, verbose: bool) -> Iterator[Part]:
    replica = store_name(report.url, report.namespace)
    copy, delete = ("would copy", "would delete") if report.dry_run else ("copied", "deleted")
    done = [f"{copy} {files(report.copied, report.bytes)}"] if report.copied else []
    if report.deleted:
        done.append(f"{delete} {count(report.deleted, 'entry', 'entries')} that this datastore does not have any more")
    if done:
        yield say(f"{'; '.join(done)}; {replica} had {count(report.skipped, 'file')} already")
    elif not report.failures:
        yield say(f"{replica} is a copy of this datastore already ({count(report.skipped, 'file')})")
    yield from map(warn, report.warnings)
    yield from _failures_text(report, verbose, "copied")
    if report.failures:
        yield hint("the rest is copied; `bayou datastore verify --deep` says what is wrong with this datastore")


def replicate_json(report: ReplicateReport) -> Document:
    document = {"copied": report.copied, "skipped": report.skipped, "bytes": report.bytes}
    added = {"deleted": report.deleted, "failed": _failed_json(report), "warnings": list(report.warnings)}
    return document | {name: value for name, value in added.items() if value}


def _failures_text(report: CompactReport | ReplicateReport, verbose: bool, done: str) -> Iterator[Part]:
    """Name the files that could not be `done`, as in "moved"; the report lists only the first of many."""
    yield from limited(report.failed, verbose, lambda failure: fail(f"{failure.path}: {failure.message}"))
    if report.failures > len(report.failed):
        yield fail(f"and {report.failures - len(report.failed):,} more could not be {done}")


def _failed_json(report: CompactReport | ExportReport | ReplicateReport) -> list[Document]:
    return [{"path": failure.path, "code": failure.code, "message": failure.message} for failure in report.failed]


def _enumeration(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def export_text(report: ExportReport, *, verbose: bool) -> Iterator[Part]:
    yield say(f"exported {files(report.files, report.bytes)} to {report.directory}")
    total = report.failures if report.failures > len(report.failed) else None
    yield from limited(report.failed, verbose, lambda one: fail(f"{one.path}: {one.message}"), total)


def export_json(report: ExportReport) -> Document:
    document: dict[str, object] = {"files": report.files, "bytes": report.bytes, "directory": report.directory}
    if report.failures:
        document["failed"] = _failed_json(report)
        document["failures"] = report.failures
    return document


def content_json(content: FileContent, text: str | None) -> Document:
    return {
        "path": content.path,
        "size": content.size,
        "sha256": content.sha256.hex(),
        "source": content.source,
        "content": text,
    }


_METHODS = {0: "stored as it is", 8: "deflated"}


def location_text(found: Location) -> Iterator[Part]:
    rows = {
        "bucket": found.bucket,
        "key": found.key,
        "range": byte_range(found) or "empty",
        "method": f"{found.method} ({_METHODS[found.method]})",
        "size": str(found.size),
        "sha256": found.sha256.hex() if found.sha256 is not None else "unknown",
    }
    for name, value in rows.items():
        yield show(f"{name:<8}{value}")


def location_json(found: Location) -> Document:
    return {
        "path": found.path,
        "bucket": found.bucket,
        "key": found.key,
        "offset": found.offset,
        "stored": found.stored,
        "method": found.method,
        "range": byte_range(found),
        "size": found.size,
        "sha256": found.sha256.hex() if found.sha256 is not None else None,
    }


def byte_range(found: Location) -> str | None:
    """Return the range as HTTP writes it; None for an empty file, of which there is no range."""
    return f"bytes={found.offset}-{found.offset + found.stored - 1}" if found.stored else None
