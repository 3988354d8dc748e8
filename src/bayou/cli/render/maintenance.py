"""Render the reports of `datastore verify`, `gc` and `replicate`, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from bayou.cli.output import Document, Part, count, fail, files, hint, limited, say, show, size, warn
from bayou.cli.render.datastore import refused_json, refused_text, store_name

if TYPE_CHECKING:
    from bayou.sync.report import CollectReport, ReplicateReport, VerifyReport


def verify_text(report: VerifyReport, *, verbose: bool) -> Iterator[Part]:
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
    if report.missing:
        yield hint("where a tree has the content, `bayou datastore verify --repair` brings it back")
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
        "warnings": list(report.warnings),
        "totals": dict(report.totals),
    }
    return document | {name: value for name, value in added.items() if value}


def collect_text(report: CollectReport) -> Iterator[Part]:
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
    yield say(f"{verb} {_enumeration(deleted)}; that {freed} {size(report.bytes)}")


def collect_json(report: CollectReport) -> Document:
    return {
        "objects_deleted": report.objects_deleted,
        "leftovers_deleted": report.leftovers_deleted,
        "trash_deleted": report.trash_deleted,
        "nodes_deleted": report.nodes_deleted,
        "bytes": report.bytes,
        **({"warnings": list(report.warnings)} if report.warnings else {}),
    }


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
    yield from limited(report.failed, verbose, lambda failure: fail(f"{failure.path}: {failure.message}"))
    if report.failures > len(report.failed):
        yield fail(f"and {report.failures - len(report.failed):,} more could not be copied")
    if report.failures:
        yield hint("the rest is copied; `bayou datastore verify --deep` says what is wrong with this datastore")


def replicate_json(report: ReplicateReport) -> Document:
    failed = [{"path": failure.path, "code": failure.code, "message": failure.message} for failure in report.failed]
    document = {"copied": report.copied, "skipped": report.skipped, "bytes": report.bytes}
    added = {"deleted": report.deleted, "failed": failed, "warnings": list(report.warnings)}
    return document | {name: value for name, value in added.items() if value}


def _enumeration(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
