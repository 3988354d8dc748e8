"""The records of a command as people read them: what happened, what is wrong, what to type next.

The records of a command as JSON has them: a contract for scripts. Nothing is renamed or left out once it is here.

What a command has to say beyond its contract is added only when there is something to say.

Leases as scripts get them, and as people read them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from bayou.cli.output import Line, Part, Table, count, fail, files, hint, moment, say, show, size, warn
from bayou.core.clock import format_ms

if TYPE_CHECKING:
    from bayou.index.log import LogRow
    from bayou.leases import LeaseInfo
    from bayou.repo import Repo
    from bayou.sync.report import (
        CollectReport,
        Conflict,
        KeptCopy,
        Moved,
        Refusal,
        ReplicateReport,
        SetupReport,
        Status,
        SyncReport,
        VerifyReport,
    )

T = TypeVar("T")

_FEW = 10
_NOTHING = {"sync": "already in sync", "push": "nothing to push", "pull": "nothing to pull"}


def init_text(repo: Repo) -> Iterator[Part]:
    yield say(f"{repo.root} is a Bayou repo now")
    yield hint("share its data through a bucket or a directory: `bayou datastore setup URL`")


def setup_text(report: SetupReport, *, verbose: bool) -> Iterator[Part]:
    yield say(f"this repo's data is in {_place(report.url, report.namespace)} now")
    done = []
    if report.discovered:
        done.append("indexed what was there")
    if report.migrated:
        done.append(f"moved {count(report.migrated, 'file')} here")
    if report.pushed:
        done.append(f"pushed {files(report.pushed, report.bytes_pushed)}")
    if report.pulled:
        done.append(f"pulled {files(report.pulled, report.bytes_pulled)}")
    if done:
        yield say("; ".join(done))
    yield from _refused(report.refused, verbose)
    yield from map(warn, report.warnings)
    yield from _conflicts(report.conflicts)
    if report.unfinished:
        yield fail(report.unfinished)
        yield hint("the datastore is set; go on with `bayou datastore sync`")


def status_text(report: Status) -> Iterator[Part]:
    place = _place(report.url, report.namespace)
    if report.healthy is not False:
        took = "" if report.latency_ms is None else f" ({report.latency_ms:,} ms)"
        yield show(f"{place}: {report.message}{took}")
    else:
        yield show(place)
        yield fail(report.message)
    if report.index is not None:
        yield show(f"store: commit {report.index.seq}, {files(report.index.entries, report.index.bytes)}")
    yield show(f"tree:  {', '.join(_standing(report))}")
    if report.healthy and not report.in_sync:
        yield hint("reconcile tree and store with `bayou datastore sync`")


def sync_text(report: SyncReport, *, verbose: bool) -> Iterator[Part]:
    if report.dry_run:
        yield from _planned(report, verbose)
    else:
        yield say(_summary(report))
    yield from _refused(report.refused, verbose)
    yield from map(warn, report.warnings)
    yield from _untracked(report.untracked, verbose)
    yield from _conflicts(report.conflicts)
    if report.missing:
        yield from _some(report.missing, verbose, lambda path: fail(f"{path}: its content is missing in the store"))
        yield hint("where a tree still has the content, `bayou datastore verify --repair` brings it back")
    if report.failed:
        yield from _some(report.failed, verbose, lambda one: fail(f"{one.path}: {one.message} ({one.code})"))
        yield hint("the rest is done; `bayou datastore sync` tries these again")
    if verbose:
        sent = report.requests
        yield say(
            f"{count(sent.total, 'request')} ({sent.get} get, {sent.put} put, {sent.head} head, {sent.list} list, "
            f"{sent.delete} delete) in {report.seconds:.1f} s, the {report.engine} way"
        )


def verify_text(report: VerifyReport, *, verbose: bool) -> Iterator[Part]:
    verdict = "all is well" if report.ok else "there is damage"
    mended = f", repaired {report.repaired:,}" if report.repaired else ""
    yield show(f"checked {count(report.checked, 'file')}{mended}: {verdict}")
    totals = report.totals.get
    yield from _some(report.missing, verbose, lambda path: fail(f"{path}: missing in the store"), totals("missing"))
    yield from _some(report.changed, verbose, lambda path: fail(f"{path}: changed in the store"), totals("changed"))
    yield from _some(
        report.unsafe, verbose, lambda one: fail(f"{one.path}: unsafe in the index: {one.reason}"), totals("unsafe")
    )
    if report.unsafe:
        yield hint("such rows are left alone; `bayou datastore verify --repair` drops those that can name no object")
        yield hint("to drop another: `bayou datastore verify --forget PATH`, with the path as it is written here")
    yield from _some(report.damaged, verbose, fail)
    if report.damaged:
        yield hint("`bayou datastore verify --repair` rebuilds the index")
    yield from _some(report.unrecovered, verbose, lambda path: fail(f"{path}: could not be recovered"))
    if report.missing:
        yield hint("where a tree has the content, `bayou datastore verify --repair` brings it back")
        yield hint("to give up an entry: `bayou datastore verify --forget PATH`")
    if report.unindexed:
        said = "in the store, but not in its index"
        yield from _some(report.unindexed, verbose, lambda path: warn(f"{path}: {said}"), totals("unindexed"))
        yield hint("`bayou datastore verify --repair` takes them in")
    yield from _refused(report.refused, verbose, totals("refused"))
    yield from map(warn, report.warnings)
    if report.leftovers or report.trash:
        left, trash = count(report.leftovers, "object"), count(report.trash, "object")
        yield say(f"{left} of earlier or unfinished pushes, {trash} in the trash: `bayou datastore gc` removes them")


def log_text(rows: Sequence[LogRow]) -> Iterator[Part]:
    if not rows:
        yield say("no commits yet")
        return
    headings = ("commit", "when", "by", "added", "changed", "deleted", "size")
    cells = [
        (
            str(row.seq),
            moment(row.at),
            row.by,
            f"{row.added:,}",
            f"{row.changed:,}",
            f"{row.deleted:,}",
            size(row.bytes),
        )
        for row in rows
    ]
    yield Table(headings, cells, frozenset({"commit", "added", "changed", "deleted", "size"}))


def collect_text(report: CollectReport) -> Iterator[Part]:
    found = (
        (report.objects_deleted, "object", "objects"),
        (report.leftovers_deleted, "leftover", "leftovers"),
        (report.trash_deleted, "object of the trash", "objects of the trash"),
        (report.nodes_deleted, "index node", "index nodes"),
    )
    deleted = [count(number, one, many) for number, one, many in found if number]
    yield from map(warn, report.warnings)
    if not deleted:
        yield say("nothing to collect")
        return
    verb, freed = ("would delete", "frees") if report.dry_run else ("deleted", "freed")
    yield say(f"{verb} {_listing(deleted)}; that {freed} {size(report.bytes)}")


def replicate_text(report: ReplicateReport, *, verbose: bool) -> Iterator[Part]:
    place = _place(report.url, report.namespace)
    copy, delete = ("would copy", "would delete") if report.dry_run else ("copied", "deleted")
    done = [f"{copy} {files(report.copied, report.bytes)}"] if report.copied else []
    if report.deleted:
        done.append(f"{delete} {count(report.deleted, 'entry', 'entries')} that this datastore does not have any more")
    if done:
        yield say(f"{'; '.join(done)}; {place} had {count(report.skipped, 'file')} already")
    elif not report.failures:
        yield say(f"{place} is a copy of this datastore already ({count(report.skipped, 'file')})")
    yield from map(warn, report.warnings)
    yield from _some(report.failed, verbose, lambda one: fail(f"{one.path}: {one.message}"))
    if report.failures > len(report.failed):
        yield fail(f"and {report.failures - len(report.failed):,} more could not be copied")
    if report.failures:
        yield hint("the rest is copied; `bayou datastore verify --deep` says what is wrong with this datastore")


def hydrate_text(moved: Moved) -> Iterator[Part]:
    yield say(f"fetched {files(moved.files, moved.bytes)}" if moved.files else "nothing to fetch: all is here")


def conflicts_text(copies: Sequence[KeptCopy]) -> Iterator[Part]:
    if not copies:
        yield say("no conflicts")
        return
    cells = [(copy.path, moment(format_ms(copy.at)), size(copy.size), copy.copy) for copy in copies]
    yield Table(("path", "when", "size", "kept copy"), cells, frozenset({"size"}))
    yield hint("compare with `bayou datastore conflicts show PATH`, then `take` the copy or `drop` it")


def _place(url: str, namespace: str | None) -> str:
    return f"{url} (namespace {namespace})" if namespace else url


def _standing(report: Status) -> Iterator[str]:
    yield report.tree
    if report.base_seq is not None:
        yield f"at commit {report.base_seq}"
    elif not report.in_sync:
        yield "never synced"
    if report.journal_bulk:
        yield "to be looked through for changes"
    elif report.journal_paths:
        yield f"{count(report.journal_paths, 'change')} to push"
    if report.hydrate == "lazy":
        yield "raw content only when it is read"


def _summary(report: SyncReport) -> str:
    pushed, pulled = report.pushed, report.pulled
    up = [f"pushed {files(pushed.files, pushed.bytes)}"] if pushed.files else []
    if pushed.renumbered:
        up.append(f"renumbered {count(pushed.renumbered, 'version')}")
    if pushed.deleted:
        up.append(f"deleted {count(pushed.deleted, 'file')} in the store")
    said = []
    if report.commit is not None:
        said.append(f"{', '.join(up) or 'recorded'} as commit {report.commit.seq}")
    elif up:
        said.append(", ".join(up))
    if pulled.files:
        said.append(f"pulled {files(pulled.files, pulled.bytes)}")
    if pulled.deleted:
        said.append(f"deleted {count(pulled.deleted, 'file')} here")
    whole = report.exit_code == 0
    if not said:
        return _NOTHING[report.mode] if whole else "nothing was moved"
    if report.mode == "sync" and whole:
        said.append("in sync")
    return "; ".join(said)


def _planned(report: SyncReport, verbose: bool) -> Iterator[Part]:
    if not report.actions:
        yield say(f"{_NOTHING[report.mode]} (dry run)")
        return
    shown = report.actions if verbose else report.actions[:_FEW]
    yield Table(("action", "path"), [(one.action, one.path) for one in shown])
    tally = Counter(one.action for one in report.actions)
    yield say(f"dry run, nothing was changed: {', '.join(f'{name} {number:,}' for name, number in tally.items())}")
    yield from _rest(len(report.actions) - len(shown))


def _conflicts(conflicts: Sequence[Conflict]) -> Iterator[Part]:
    for one in conflicts:
        winner, other = ("the store's", "yours") if one.kept == "remote" else ("yours", "the store's")
        lost = f"; {other} is kept as {one.copy}" if one.copy else ""
        yield Line(f"{one.path}: {winner} has the path{lost}", "conflict", always=True)
    if any(one.copy for one in conflicts):
        yield hint("decide with `bayou datastore conflicts`")


def _refused(refused: Sequence[Refusal], verbose: bool, total: int | None = None) -> Iterator[Part]:
    yield from _some(refused, verbose, lambda one: warn(f"refused {one.path}: {one.reason}"), total)


def _untracked(paths: Sequence[str], verbose: bool) -> Iterator[Part]:
    if not paths:
        return
    are, stay = ("are", "stay") if paths[1:] else ("is", "stays")
    more = ", …" if paths[1:] else ""
    yield warn(f"{count(len(paths), 'file')} {are} not tracked, and {stay} here: {paths[0]}{more}")
    if verbose:
        yield from (say(f"not tracked: {path}") for path in paths)
    yield hint("push what lies here untracked with `bayou datastore sync --adopt`")


def _some(items: Sequence[T], verbose: bool, line: Callable[[T], Line], total: int | None = None) -> Iterator[Line]:
    """Yield a line for each item, or for the first few, and a count of the rest; `total` if `items` are not all."""
    shown = items if verbose else items[:_FEW]
    yield from map(line, shown)
    if total is None:
        yield from _rest(len(items) - len(shown))
    else:
        yield warn(f"and {total - len(shown):,} more" + ("" if verbose else f"; -v lists the first {len(items):,}"))


def _rest(number: int) -> Iterator[Line]:
    if number:
        yield warn(f"and {number:,} more; -v lists all")


def _listing(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


Document = Mapping[str, object]


def init_json(repo: Repo) -> Document:
    return {"repo": str(repo.root), "repo_id": repo.config.repo_id, "created": True}


def setup_json(report: SetupReport) -> Document:
    unfinished = [report.unfinished] if report.unfinished else []
    return {
        "url": report.url,
        "namespace": report.namespace,
        "pushed": report.pushed,
        "pulled": report.pulled,
        "bytes_pushed": report.bytes_pushed,
        "bytes_pulled": report.bytes_pulled,
        "discovered": report.discovered,
        "migrated": report.migrated,
        "refused": _keys(report.refused),
        "conflicts": _documents_conflicts(report.conflicts),
        "warnings": [*report.warnings, *unfinished],
    }


def status_json(report: Status) -> Document:
    index = report.index
    return {
        "url": report.url,
        "namespace": report.namespace,
        "healthy": report.healthy,
        "latency_ms": report.latency_ms,
        "message": report.message,
        "index": index
        and {
            "seq": index.seq,
            "commit": index.commit,
            "entries": index.entries,
            "bytes": index.bytes,
            "root": index.root,
        },
        "base": {"in_sync": report.in_sync, "seq": report.base_seq},
        "journal": {"paths": report.journal_paths, "bulk": report.journal_bulk},
        "hydrate": report.hydrate,
        "tree": report.tree,
    }


def sync_json(report: SyncReport) -> Document:
    pulled, pushed, sent = report.pulled, report.pushed, report.requests
    document: dict[str, object] = {
        "mode": report.mode,
        "engine": report.engine,
        "dry_run": report.dry_run,
        "pulled": {"files": pulled.files, "bytes": pulled.bytes, "deleted": pulled.deleted},
        "pushed": {
            "files": pushed.files,
            "bytes": pushed.bytes,
            "deleted": pushed.deleted,
            "renumbered": pushed.renumbered,
        },
        "conflicts": _documents_conflicts(report.conflicts),
        "untracked": list(report.untracked),
        "missing": list(report.missing),
        "refused": _keys(report.refused),
        "failed": [{"path": one.path, "code": one.code, "message": one.message} for one in report.failed],
        "warnings": list(report.warnings),
        "commit": report.commit and {"seq": report.commit.seq, "commit": report.commit.commit},
        "requests": {
            "get": sent.get,
            "put": sent.put,
            "head": sent.head,
            "list": sent.list,
            "delete": sent.delete,
        },
        "seconds": round(report.seconds, 3),
    }
    if report.dry_run:
        document["actions"] = [{"path": one.path, "action": one.action} for one in report.actions]
    return document


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
    beyond = {
        "refused": _keys(report.refused),
        "unsafe": [{"path": one.path, "reason": one.reason} for one in report.unsafe],
        "damaged": list(report.damaged),
        "unrecovered": list(report.unrecovered),
        "warnings": list(report.warnings),
        "totals": dict(report.totals),
    }
    return document | {name: said for name, said in beyond.items() if said}


def log_json(rows: Iterable[LogRow]) -> Document:
    return {
        "commits": [
            {
                "seq": row.seq,
                "commit": row.commit,
                "at": row.at,
                "by": row.by,
                "added": row.added,
                "changed": row.changed,
                "deleted": row.deleted,
                "bytes": row.bytes,
            }
            for row in rows
        ]
    }


def collect_json(report: CollectReport) -> Document:
    return {
        "objects_deleted": report.objects_deleted,
        "leftovers_deleted": report.leftovers_deleted,
        "trash_deleted": report.trash_deleted,
        "nodes_deleted": report.nodes_deleted,
        "bytes": report.bytes,
        **({"warnings": list(report.warnings)} if report.warnings else {}),
    }


def replicate_json(report: ReplicateReport) -> Document:
    failed = [{"path": one.path, "code": one.code, "message": one.message} for one in report.failed]
    document = {"copied": report.copied, "skipped": report.skipped, "bytes": report.bytes}
    beyond = {"deleted": report.deleted, "failed": failed, "warnings": list(report.warnings)}
    return document | {name: said for name, said in beyond.items() if said}


def hydrate_json(moved: Moved) -> Document:
    return {"files": moved.files, "bytes": moved.bytes}


def conflicts_json(copies: Iterable[KeptCopy]) -> Document:
    return {
        "conflicts": [
            {"path": copy.path, "copy": copy.copy, "at": format_ms(copy.at), "size": copy.size} for copy in copies
        ]
    }


def _documents_conflicts(conflicts: Iterable[Conflict]) -> list[Document]:
    return [{"path": one.path, "kept": one.kept, "copy": one.copy} for one in conflicts]


def _keys(refused: Iterable[Refusal]) -> list[str]:
    return [one.path for one in refused]


_MINUTE, _HOUR = 60.0, 3600.0


def leases_json(leases: Sequence[LeaseInfo]) -> Mapping[str, object]:
    return {"leases": [_row(one) for one in leases]}


def lock_status_text(leases: Sequence[LeaseInfo]) -> Iterator[Part]:
    if not leases:
        yield show("nobody holds a lease")
        return
    rows = [(one.key, *_holder(one), _span(one.age_s), _lock_sentences_standing(one), one.nonce) for one in leases]
    yield Table(("lease", "holder", "host", "pid", "held", "", "nonce"), rows, frozenset({"pid", "held"}))
    for one in leases:
        if one.corrupt is not None:
            yield warn(f"{one.key} is no lease: {one.corrupt}")
    if any(one.stale or one.corrupt for one in leases):
        yield hint("who needs a stale lease takes it over; sooner: `bayou datastore lock release KEY --nonce N`")


def lock_release_text(key: str, released: bool) -> Iterator[Part]:
    if released:
        yield say(f"{key} is free; who held it stops before its next write")
        return
    yield warn(f"nothing was released: {key} is free already, or somebody else has it by now")
    yield hint("look again with `bayou datastore lock status`")


def _row(one: LeaseInfo) -> Mapping[str, object]:
    held = one.held
    row: dict[str, object] = {
        "key": one.key,
        "holder": held and held.holder,
        "host": held and held.host,
        "pid": held and held.pid,
        "nonce": one.nonce,
        "acquired_at": held and held.acquired_at,
        "expires_in_s": round(one.expires_in_s, 1),
        "stale": one.stale,
    }
    return row if one.corrupt is None else {**row, "corrupt": one.corrupt}


def _holder(one: LeaseInfo) -> tuple[str, str, str]:
    return ("", "", "") if one.held is None else (one.held.holder, one.held.host, str(one.held.pid))


def _lock_sentences_standing(one: LeaseInfo) -> str:
    if one.corrupt is not None:
        return "corrupt"
    return "stale" if one.stale else f"expires in {_span(one.expires_in_s)}"


def _span(seconds: float) -> str:
    """Return `12 s`, `4 min`, `3 h`."""
    if seconds < 2 * _MINUTE:
        return f"{seconds:.0f} s"
    if seconds < 2 * _HOUR:
        return f"{seconds / _MINUTE:.0f} min"
    return f"{seconds / _HOUR:,.0f} h"
