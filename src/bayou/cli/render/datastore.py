"""Render the reports of `datastore` commands: init, setup, status, sync, log, hydrate and kept copies.

Each record has an `x_text`, which people read (what happened, what is wrong, which command comes next), and an
`x_json`, which is a contract for scripts: no field is ever renamed or left out. A field that was added later appears
only if it has a value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from bayou.cli.output import (
    FEW,
    Document,
    Line,
    Part,
    Table,
    age,
    count,
    fail,
    files,
    hint,
    limited,
    moment,
    more,
    say,
    show,
    size,
    warn,
)
from bayou.core.clock import format_ms

if TYPE_CHECKING:
    from bayou.index.log import LogRow
    from bayou.repo import Repo
    from bayou.sync.report import (
        Conflict,
        Failure,
        KeptCopy,
        PackStatus,
        Refusal,
        SetupReport,
        Status,
        SyncReport,
        TransferCounts,
    )

_MANY_SMALL = 100
"""Small packs from which on `status` names the command that joins them."""

_NOTHING = {"sync": "already in sync", "push": "nothing to push", "pull": "nothing to pull"}
_NO_STORE = "there is no store to sync with: the data is in a directory of this machine"


def init_text(repo: Repo) -> Iterator[Part]:
    yield say(f"{repo.root} is a Bayou repo now")
    yield hint("share its data through a bucket or a directory: `bayou datastore setup URL`")


def init_json(repo: Repo) -> Document:
    return {"repo": str(repo.root), "repo_id": repo.config.repo_id, "created": True}


def setup_text(report: SetupReport, *, verbose: bool) -> Iterator[Part]:
    yield say(f"this repo's data is in {store_name(report.url, report.namespace)} now")
    done = []
    if report.discovered:
        done.append("indexed what was there")
    if report.migrated:
        done.append(f"brought {count(report.migrated, 'file')} along")
    if report.pushed:
        done.append(f"pushed {files(report.pushed, report.bytes_pushed)}")
    if report.pulled:
        done.append(f"pulled {files(report.pulled, report.bytes_pulled)}")
    if done:
        yield say("; ".join(done))
    yield from refused_text(report.refused, verbose)
    yield from map(warn, report.warnings)
    yield from _conflicts_text(report.conflicts)
    if report.unfinished:
        yield fail(report.unfinished)
        yield hint("the datastore is set; go on with `bayou datastore sync`")


def setup_json(report: SetupReport) -> Document:
    unfinished = [report.unfinished] if report.unfinished else []
    document: dict[str, object] = {
        "url": report.url,
        "namespace": report.namespace,
        "pushed": report.pushed,
        "pulled": report.pulled,
        "bytes_pushed": report.bytes_pushed,
        "bytes_pulled": report.bytes_pulled,
        "discovered": report.discovered,
        "migrated": report.migrated,
        "refused": refused_json(report.refused),
        "conflicts": _conflicts_json(report.conflicts),
        "warnings": [*report.warnings, *unfinished],
    }
    added = {"missing": list(report.missing), "failed": _failed_json(report.failed)}
    return document | {name: value for name, value in added.items() if value}


def status_text(report: Status) -> Iterator[Part]:
    store = store_name(report.url, report.namespace)
    if report.healthy is not False:
        took = "" if report.latency_ms is None else f" ({report.latency_ms:,} ms)"
        yield show(f"{store}: {report.message}{took}")
    else:
        yield show(store)
        yield fail(report.message)
    if report.index is not None:
        yield show(f"store: commit {report.index.seq}, {files(report.index.entries, report.index.bytes)}")
    if report.packs is not None and report.packs.count:
        yield show(f"packs: {', '.join(_packs_state(report.packs))}")
    yield show(f"tree:  {', '.join(_tree_state(report))}")
    if report.age_s is not None and not (report.healthy and report.index is not None):
        yield show(f"seen:  the store was last seen {age(report.age_s)} ago")
    if report.waiting > report.journal_paths:
        inputs = count(report.waiting - report.journal_paths, "input")
        yield show(f"waits: {inputs} that no version was made of yet; `bayou datastore sync` does that")
    if report.untracked:
        yield show(f"not tracked: {count(report.untracked, 'file')}; `bayou datastore sync --adopt` pushes them")
    if report.healthy and not report.in_sync:
        yield hint("reconcile tree and store with `bayou datastore sync`")
    if report.packs is not None and _is_worth_compacting(report.packs):
        yield hint("join small packs and remove what was deleted with `bayou datastore compact`")


def status_json(report: Status) -> Document:
    index, packs = report.index, report.packs
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
        "packs": packs and {"count": packs.count, "small": packs.small, "bytes": packs.bytes, "dead_bytes": packs.dead},
        "freshness": {
            "head_seen_at": None if report.seen_ms is None else format_ms(report.seen_ms),
            "age_s": None if report.age_s is None else round(report.age_s, 3),
        },
        "waiting": report.waiting,
        "untracked": report.untracked,
    }


def sync_text(report: SyncReport, *, verbose: bool) -> Iterator[Part]:
    if report.dry_run:
        yield from _actions_text(report, verbose)
    else:
        yield say(_summary(report))
    if not report.asked and not report.warnings:
        yield hint("share it through a bucket or a directory: `bayou datastore setup URL`")
    yield from findings_text(report, verbose=verbose)


def findings_text(report: SyncReport, *, verbose: bool) -> Iterator[Part]:
    """Show what a sync reports besides what it did: warnings, conflicts and failures."""
    yield from refused_text(report.refused, verbose)
    yield from map(warn, report.warnings)
    yield from _untracked_text(report.untracked, verbose)
    yield from _conflicts_text(report.conflicts)
    if report.missing:
        yield from limited(report.missing, verbose, lambda path: fail(f"{path}: its content is missing in the store"))
        yield hint("where a tree still has the content, `bayou datastore verify --repair` brings it back")
    if report.failed:
        yield from limited(
            report.failed, verbose, lambda failure: fail(f"{failure.path}: {failure.message} ({failure.code})")
        )
        yield from _failed_hints(report.failed)
    if verbose:
        requests = report.requests
        yield say(
            f"{count(requests.total, 'request')} ({requests.get} get, {requests.put} put, {requests.head} head, "
            f"{requests.list} list, "
            f"{requests.delete} delete) in {report.seconds:.1f} s, the {report.engine} way"
        )


def _failed_hints(failed: Sequence[Failure]) -> Iterator[Part]:
    """Say what helps: a damaged object stays so, however often it is read."""
    from bayou.sync.transfer.executor import BAD_CONTENT  # noqa: PLC0415  (only for a sync that failed)

    damaged = [failure for failure in failed if failure.code == BAD_CONTENT]
    if len(damaged) < len(failed):
        these = "the others" if damaged else "these"
        yield hint(f"the rest is done; `bayou datastore sync` tries {these} again")
    if damaged:
        yield hint("run `bayou datastore verify --deep --repair` in a tree that has the content: it brings it back")


def sync_json(report: SyncReport) -> Document:
    pulled, pushed, requests = report.pulled, report.pushed, report.requests
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
        "conflicts": _conflicts_json(report.conflicts),
        "untracked": list(report.untracked),
        "missing": list(report.missing),
        "refused": refused_json(report.refused),
        "failed": _failed_json(report.failed),
        "warnings": list(report.warnings),
        "commit": report.commit and {"seq": report.commit.seq, "commit": report.commit.commit},
        "requests": {
            "get": requests.get,
            "put": requests.put,
            "head": requests.head,
            "list": requests.list,
            "delete": requests.delete,
        },
        "seconds": round(report.seconds, 3),
    }
    if report.dry_run:
        document["actions"] = [{"path": planned.path, "action": planned.action} for planned in report.actions]
    return document


def log_text(rows: Sequence[LogRow]) -> Iterator[Part]:
    if not rows:
        yield say("no commits yet")
        return
    headings = ("commit", "when", "by", "kind", "added", "changed", "deleted", "size")
    cells = [
        (
            str(row.seq),
            moment(row.at),
            row.by,
            row.kind,
            f"{row.added:,}",
            f"{row.changed:,}",
            f"{row.deleted:,}",
            size(row.bytes),
        )
        for row in rows
    ]
    yield Table(headings, cells, frozenset({"commit", "added", "changed", "deleted", "size"}))


def log_json(rows: Iterable[LogRow]) -> Document:
    return {
        "commits": [
            {
                "seq": row.seq,
                "commit": row.commit,
                "at": row.at,
                "by": row.by,
                "kind": row.kind,
                "added": row.added,
                "changed": row.changed,
                "deleted": row.deleted,
                "bytes": row.bytes,
            }
            for row in rows
        ]
    }


def hydrate_text(moved: TransferCounts) -> Iterator[Part]:
    yield say(f"fetched {files(moved.files, moved.bytes)}" if moved.files else "nothing to fetch: all is here")


def hydrate_json(moved: TransferCounts) -> Document:
    return {"files": moved.files, "bytes": moved.bytes}


def conflicts_text(copies: Sequence[KeptCopy]) -> Iterator[Part]:
    if not copies:
        yield say("no conflicts")
        return
    cells = [(copy.path, moment(format_ms(copy.at)), size(copy.size), copy.copy) for copy in copies]
    yield Table(("path", "when", "size", "kept copy"), cells, frozenset({"size"}))
    yield hint("compare with `bayou datastore conflicts show PATH`, then `take` the copy or `drop` it")


def conflicts_json(copies: Iterable[KeptCopy]) -> Document:
    return {
        "conflicts": [
            {"path": copy.path, "copy": copy.copy, "at": format_ms(copy.at), "size": copy.size} for copy in copies
        ]
    }


def store_name(url: str, namespace: str | None) -> str:
    return f"{url} (namespace {namespace})" if namespace else url


def refused_text(refused: Sequence[Refusal], verbose: bool, total: int | None = None) -> Iterator[Part]:
    yield from limited(refused, verbose, lambda refusal: warn(f"refused {refusal.path}: {refusal.reason}"), total)


def refused_json(refused: Iterable[Refusal]) -> list[str]:
    return [refusal.path for refusal in refused]


def _failed_json(failed: Iterable[Failure]) -> list[Document]:
    return [{"path": failure.path, "code": failure.code, "message": failure.message} for failure in failed]


def _packs_state(packs: PackStatus) -> Iterator[str]:
    yield f"{packs.count:,} ({size(packs.bytes)})"
    if packs.small:
        yield f"{packs.small:,} of them small"
    if packs.dead:
        yield f"{size(packs.dead)} in them of files that were deleted or replaced"


def _is_worth_compacting(packs: PackStatus) -> bool:
    """Whether a user should hear of `compact`: many small packs, or as much deleted as alive."""
    return packs.small >= _MANY_SMALL or 2 * packs.dead > packs.bytes


def _tree_state(report: Status) -> Iterator[str]:
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
    parts = []
    if report.commit is not None:
        parts.append(f"{', '.join(up) or 'recorded'} as commit {report.commit.seq}")
    elif up:
        parts.append(", ".join(up))
    if pulled.files:
        parts.append(f"pulled {files(pulled.files, pulled.bytes)}")
    if pulled.deleted:
        parts.append(f"deleted {count(pulled.deleted, 'file')} here")
    whole = report.exit_code == 0
    if not parts:
        return _nothing(report) if whole else "nothing was moved"
    if report.mode == "sync" and whole:
        parts.append(f"in sync but for {_untracked(report)}" if report.untracked else "in sync")
    return "; ".join(parts)


def _nothing(report: SyncReport) -> str:
    """Return what a sync that had nothing to do says: never "in sync" unless tree and store were found equal."""
    if not report.asked:
        return "the store was not asked" if report.warnings else _NO_STORE
    if report.untracked and report.mode == "sync":
        return f"nothing to push or pull but {_untracked(report)}"
    return _NOTHING[report.mode]


def _untracked(report: SyncReport) -> str:
    return count(len(report.untracked), "untracked file")


def _actions_text(report: SyncReport, verbose: bool) -> Iterator[Part]:
    if not report.actions:
        yield say(f"{_nothing(report)} (dry run)")
        return
    shown = report.actions if verbose else report.actions[:FEW]
    yield Table(("action", "path"), [(planned.action, planned.path) for planned in shown])
    tally = Counter(planned.action for planned in report.actions)
    yield say(f"dry run, nothing was changed: {', '.join(f'{name} {number:,}' for name, number in tally.items())}")
    yield from more(len(report.actions) - len(shown))


def _untracked_text(paths: Sequence[str], verbose: bool) -> Iterator[Part]:
    if not paths:
        return
    are, stay = ("are", "stay") if paths[1:] else ("is", "stays")
    more = ", …" if paths[1:] else ""
    yield warn(f"{count(len(paths), 'file')} {are} not tracked, and {stay} here: {paths[0]}{more}")
    if verbose:
        yield from (say(f"not tracked: {path}") for path in paths)
    yield hint("push what lies here untracked with `bayou datastore sync --adopt`")


def _conflicts_text(conflicts: Sequence[Conflict]) -> Iterator[Part]:
    for conflict in conflicts:
        winner, other = ("the store's", "yours") if conflict.kept == "remote" else ("yours", "the store's")
        lost = f"; {other} is kept as {conflict.copy}" if conflict.copy else ""
        yield Line(f"{conflict.path}: {winner} has the path{lost}", "conflict", always=True)
    if any(conflict.copy for conflict in conflicts):
        yield hint("decide with `bayou datastore conflicts`")


def _conflicts_json(conflicts: Iterable[Conflict]) -> list[Document]:
    return [{"path": conflict.path, "kept": conflict.kept, "copy": conflict.copy} for conflict in conflicts]
