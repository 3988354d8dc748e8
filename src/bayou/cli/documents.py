"""The records of a command as JSON has them: a contract for scripts. Nothing is renamed or left out once it is here.

What a command has to say beyond its contract is added only when there is something to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from bayou.core.clock import format_ms

if TYPE_CHECKING:
    from bayou.index.log import LogRow
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

Document = Mapping[str, object]


def init(repo: Repo) -> Document:
    return {"repo": str(repo.root), "repo_id": repo.config.repo_id, "created": True}


def setup(report: SetupReport) -> Document:
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
        "conflicts": _conflicts(report.conflicts),
        "warnings": [*report.warnings, *unfinished],
    }


def status(report: Status) -> Document:
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


def sync(report: SyncReport) -> Document:
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
        "conflicts": _conflicts(report.conflicts),
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


def verify(report: VerifyReport) -> Document:
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


def log(rows: Iterable[LogRow]) -> Document:
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


def collect(report: CollectReport) -> Document:
    return {
        "objects_deleted": report.objects_deleted,
        "leftovers_deleted": report.leftovers_deleted,
        "trash_deleted": report.trash_deleted,
        "nodes_deleted": report.nodes_deleted,
        "bytes": report.bytes,
        **({"warnings": list(report.warnings)} if report.warnings else {}),
    }


def replicate(report: ReplicateReport) -> Document:
    failed = [{"path": one.path, "code": one.code, "message": one.message} for one in report.failed]
    document = {"copied": report.copied, "skipped": report.skipped, "bytes": report.bytes}
    beyond = {"deleted": report.deleted, "failed": failed, "warnings": list(report.warnings)}
    return document | {name: said for name, said in beyond.items() if said}


def hydrate(moved: Moved) -> Document:
    return {"files": moved.files, "bytes": moved.bytes}


def conflicts(copies: Iterable[KeptCopy]) -> Document:
    return {
        "conflicts": [
            {"path": copy.path, "copy": copy.copy, "at": format_ms(copy.at), "size": copy.size} for copy in copies
        ]
    }


def _conflicts(conflicts: Iterable[Conflict]) -> list[Document]:
    return [{"path": one.path, "kept": one.kept, "copy": one.copy} for one in conflicts]


def _keys(refused: Iterable[Refusal]) -> list[str]:
    return [one.path for one in refused]
