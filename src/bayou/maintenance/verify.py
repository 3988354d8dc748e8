"""`datastore verify`: compare the index with the store; `--repair` only adds.

- *Missing*: an entry whose object, or the pack that holds it, does not exist.
- *Changed*: an object of another size or ETag or, with `--deep`, with other bytes. Before another ETag of an object
  that Bayou wrote counts as a change, its bytes are read. Of a pack, only its size shows a change; `--deep` reads each
  of its files.
- *Unindexed*: payload at a plain path that the index does not name.
- *Leftovers and trash*: objects and packs of pushes that the index does not name, and deleted discovered objects. They
  are counted apart: they are not damage, and `gc` deletes them.
- *Unsafe*: a row of the index or its trash that clients ignore (V25); a repair drops those that can name no object.

If the index itself is damaged, `--repair` rebuilds it first. The comparison is a job (`verify_job`), which runs on
threads of this process or on Spark (`engine.select`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Literal

from msgspec import Struct

from bayou.core import paths
from bayou.core.errors import IndexDamaged, NotFound
from bayou.core.progress import Progress
from bayou.engine.handle import StoreHandle
from bayou.engine.job import Executor, Needs
from bayou.engine.select import SCAN
from bayou.index.entry import Entry
from bayou.index.head import Head, HeadSeen, read_head
from bayou.index.node_store import StoreNodes
from bayou.index.tree import IndexTree, find_many
from bayou.maintenance.damaged_index import read_log_pages
from bayou.maintenance.rebuild import rebuild
from bayou.maintenance.repair import drop_rows, repair_entries, resolve_pending
from bayou.maintenance.verify_job import IndexCheckJob, VerifyJob
from bayou.maintenance.verify_rules import MOST_NAMED, ComparisonResult
from bayou.repo import Repo
from bayou.state import base
from bayou.sync.commit import commit
from bayou.sync.conflicts.copies import Conflicts
from bayou.sync.context import SyncContext, open_context
from bayou.sync.plan import remote_snapshot, steps
from bayou.sync.plan.decision_table import Action
from bayou.sync.plan.discovery_job import discover
from bayou.sync.report import SyncOptions, VerifyReport
from bayou.sync.run import run

Compare = Callable[[Head], AbstractContextManager[ComparisonResult]]
"""Compares the index of a head with the store; the result can be repaired while the context is open."""


def verify(
    repo: Repo,
    *,
    deep: bool,
    repair: bool,
    forget: Sequence[str] = (),
    timeout: float | None = None,
    engine: Literal["auto", "point", "spark"] = "auto",
    progress: Progress | None = None,
) -> VerifyReport:
    """Compare every entry with the store; repair what can be repaired without loss; drop the entries in `forget`."""
    options = SyncOptions(mode="push", walk=False, engine=engine)
    with open_context(repo, options, timeout=timeout, progress=progress) as context:
        rebuilt = rebuild(context) if repair and not _is_whole(context) else None
        if forget:
            _forget(context, forget)
        repaired = _RepairCount() if repair else None
        found = _verify(context, _read_head(context), repaired, deep=deep)
    attested = rebuilt.attested if rebuilt else []
    read = [path for path in (rebuilt.changed if rebuilt else []) if path not in found.changed]
    failed = [f"{failure.path}: {failure.message}" for failure in context.report.failed]
    return VerifyReport(
        checked=found.checked,
        missing=found.missing,
        changed=[*found.changed, *read[:MOST_NAMED]],
        unindexed=found.unindexed,
        leftovers=found.leftovers,
        trash=found.trash,
        repaired=(repaired.entries if repaired else 0) + (rebuilt.recovered if rebuilt else 0),
        refused=found.refused,
        unsafe=[row.refusal for row in found.unsafe[:MOST_NAMED]],
        damaged=found.damaged,
        unrecovered=rebuilt.unrecovered if rebuilt else [],
        attested=attested[:MOST_NAMED],
        warnings=[*(rebuilt.warnings if rebuilt else []), *context.report.warnings, *failed[:MOST_NAMED]],
        totals={
            **found.cut,
            **({"attested": len(attested)} if len(attested) > MOST_NAMED else {}),
            **({"changed": found.cut.get("changed", len(found.changed)) + len(read)} if len(read) > MOST_NAMED else {}),
        },
        read=deep or bool(read),
    )


class _RepairCount(Struct):
    """The number of entries repaired so far, also by a job that failed later."""

    entries: int = 0


def _verify(context: SyncContext, seen: HeadSeen, repaired: _RepairCount | None, *, deep: bool) -> ComparisonResult:
    """Compare; with `repaired`, also repair, and compare again if that changed anything."""
    store, root = context.handle, seen.head.root
    heads = [seen]

    def work(executor: Executor) -> ComparisonResult:
        # A second executor reads the head again: the first may have repaired something.
        now = heads.pop() if heads else _read_head(context)
        return _compare_and_repair(context, now, partial(_comparison, executor, store, deep=deep), repaired)

    return context.engines.run(
        Needs((store,)),
        work,
        what="the store was verified",
        cost=SCAN,
        files=root.entries if root is not None else 0,
        size=root.bytes if root is not None and deep else 0,
    )


def _compare_and_repair(
    context: SyncContext, seen: HeadSeen, compare: Compare, repaired: _RepairCount | None
) -> ComparisonResult:
    if repaired is None:
        with compare(seen.head) as found:
            return found
    resolve_pending(context, seen)
    before = repaired.entries
    with compare(seen.head) as found:
        for batch in found.repairable():
            done = repair_entries(context, seen, batch)
            repaired.entries += done
            seen = _read_head(context) if done else seen
    rows = [row.path for row in found.unsafe if row.nameless and not row.trash]
    trash = [row.path for row in found.unsafe if row.trash]
    dropped = drop_rows(context, partial(_read_head, context), rows, trash, "repair")
    if dropped:
        repaired.entries += len(dropped)
        seen = _read_head(context)
    if repaired.entries == before:
        return found
    with compare(seen.head) as found:
        return found


@contextmanager
def _comparison(executor: Executor, store: StoreHandle, head: Head, *, deep: bool) -> Iterator[ComparisonResult]:
    found = executor.run(VerifyJob(store, head, deep=deep))
    try:
        yield found
    finally:
        found.close()


def _is_whole(context: SyncContext) -> bool:
    """Whether every node of the index and every page of its log can be read: then there is nothing to rebuild."""
    try:
        seen = read_head(context.store)
    except (NotFound, IndexDamaged):
        return False
    head, store = seen.head, context.handle
    if read_log_pages(context.store, head.older, head.log[0].seq)[1]:
        return False
    damaged = context.engines.run(
        Needs((store,)),
        lambda executor: executor.run(IndexCheckJob(store, head)),
        what="the index was checked",
        cost=SCAN,
        files=head.root.entries if head.root is not None else 0,
    )
    return not damaged


def _read_head(context: SyncContext) -> HeadSeen:
    """Read the head; the error for a store without one says whether it was lost."""
    try:
        return read_head(context.store)
    except NotFound:
        discover(context.handle, context.engines).close()  # HeadLost, if something shows that there was one (P9)
        if context.base.remote.store is not None:
            config = context.repo.config.datastore
            raise remote_snapshot.store_emptied(context.store, context.base.remote, config) from None
        raise NotFound(
            f"{context.store.url} has no index yet", hint="`bayou datastore sync --push` makes one"
        ) from None


def _forget(context: SyncContext, forgotten: Sequence[str]) -> None:
    """Drop the named entries, as journaled deletes, even if this tree does not have the whole version of an entry.

    An entry that another client replaces meanwhile is kept, with a warning. A file that this tree has may be the last
    good copy, so it is kept aside like that of a conflict.
    """
    odd = [path for path in forgotten if paths.refusal(path) is not None]
    # No tree has such a path, so it is not journaled. The user may type it verbatim, or as `verify` prints it.
    named = {*odd, *map(paths.unescape, odd)}
    dropped = drop_rows(context, partial(_read_head, context), named, named, "forget") if odd else []
    for path in odd:
        if path not in dropped and paths.unescape(path) not in dropped:
            paths.check(path)
    plain = [path for path in forgotten if path not in odd]
    if not plain:
        return
    seen = _read_head(context)
    resolve_pending(context, seen)
    root = seen.head.root
    remote = find_many(IndexTree(StoreNodes(context.store, context.cache), root), plain)
    for path in plain:
        if path not in remote:
            context.report.warn(f"the index has no entry of {path}: there is nothing to forget")
    plain = [path for path in plain if path in remote]
    if not plain:
        return
    counts = {Action.DELETE_REMOTE: len(remote)}
    steps.guard(counts, root.entries if root else 0, allowed=context.options.allow_mass_delete, followed=False)
    with context.database.transaction() as db:
        # Base gets this very entry, even if its content was never pulled: the delete then refers to it.
        for path, entry in remote.items():
            base.record_entry(db, context.remote_id, path, entry)
    copies = Conflicts(context.repo.conflicts)
    ticket = context.journal.open("delete", plain)
    for path in plain:
        if context.stat(path) is not None:
            context.report.warn(
                f"{path} was forgotten, and the file of this tree is kept: {copies.keep(context.root / path, path)}"
            )
        context.incoming.remove(path)
    context.journal.close(ticket)
    _commit_forgotten(context, seen, remote)
    run(context)


def _commit_forgotten(context: SyncContext, seen: HeadSeen, forgotten: Mapping[str, Entry]) -> None:
    """Remove entries from the index. The planner would keep a file of a version that this tree has only in part."""

    def choose(_: HeadSeen, remote: Mapping[str, Entry]) -> Mapping[str, Entry | None]:
        return {path: None for path, entry in forgotten.items() if remote.get(path) == entry}

    done = commit.commit(context.committer, seen, list(forgotten), choose, kind="forget")
    if done is not None:
        commit.apply_to_base(context.database, context.remote_id, done)
