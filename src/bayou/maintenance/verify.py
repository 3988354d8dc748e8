"""`datastore verify`: compare what the index says with what the store has; `--repair` only adds.

Missing: an entry without its object. Changed: an object of another size or ETag, or, with `--deep`, other bytes; one
that Bayou wrote is read before another ETag is held against it.
Unindexed: payload at a plain path that nobody indexed. Objects of pushes that the index does not name, and trash, are
counted apart: they are no damage, and `gc` takes care of them. Unsafe: a row of the index or its trash that nothing is
done by (V25); repair drops those that can name no object. Where the index itself is damaged, `--repair` rebuilds
it first.

The comparison is a job (`maintenance.verify_job`), which threads of this process run, or Spark (`engine.select`).
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
from bayou.index.discovery import discover
from bayou.index.entry import Entry
from bayou.index.head import Head, HeadSeen, read_head
from bayou.index.node_store import StoreNodes
from bayou.index.tree import IndexTree, find_many
from bayou.maintenance.damaged_index import chain
from bayou.maintenance.rebuild import rebuild
from bayou.maintenance.repair import drop_rows, repair_entries, settle_pending
from bayou.maintenance.verify_job import MOST_NAMED, Compared, IndexCheckJob, VerifyJob
from bayou.repo import Repo
from bayou.state import base
from bayou.sync.commit import commit
from bayou.sync.context import SyncContext, open_context
from bayou.sync.plan import remote_snapshot, steps
from bayou.sync.plan.decision_table import Action
from bayou.sync.report import SyncOptions, VerifyReport
from bayou.sync.run import run

Look = Callable[[Head], AbstractContextManager[Compared]]
"""Compares the index of a head with the store; what it brought can be mended while it is open."""


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
    """Check every entry against the store; mend what can be mended without losing anything; forget what is named."""
    options = SyncOptions(mode="push", walk=False, engine=engine)
    with open_context(repo, options, timeout=timeout, progress=progress) as context:
        rebuilt = rebuild(context) if repair and not _is_whole(context) else None
        if forget:
            _forget(context, forget)
        repaired = _Repaired() if repair else None
        found = _verify(context, _head(context), repaired, deep=deep)
    return VerifyReport(
        checked=found.checked,
        missing=found.missing,
        changed=found.changed,
        unindexed=found.unindexed,
        leftovers=found.leftovers,
        trash=found.trash,
        repaired=(repaired.entries if repaired else 0) + (rebuilt.recovered if rebuilt else 0),
        refused=found.refused,
        unsafe=[one.told for one in found.unsafe[:MOST_NAMED]],
        damaged=found.damaged,
        unrecovered=rebuilt.unrecovered if rebuilt else [],
        warnings=[*(rebuilt.warnings if rebuilt else []), *context.report.warnings],
        totals=found.cut,
    )


class _Repaired(Struct):
    """How many entries were mended so far, also by a job that did not come to its end."""

    entries: int = 0


def _verify(context: SyncContext, seen: HeadSeen, repaired: _Repaired | None, *, deep: bool) -> Compared:
    """Compare, mend if that is asked for, and compare again if it was of use, with the executor that pays."""
    store, root = context.handle, seen.head.root
    heads = [seen]

    def work(executor: Executor) -> Compared:
        # A second executor begins anew: the first may have mended something.
        now = heads.pop() if heads else _head(context)
        return _checked(context, now, partial(_compared, executor, store, deep=deep), repaired)

    return context.engines.run(
        Needs((store,)),
        work,
        what="the store was verified",
        files=root.entries if root is not None else 0,
        size=root.bytes if root is not None and deep else 0,
    )


def _checked(context: SyncContext, seen: HeadSeen, look: Look, repaired: _Repaired | None) -> Compared:
    if repaired is None:
        with look(seen.head) as found:
            return found
    settle_pending(context, seen)
    before = repaired.entries
    with look(seen.head) as found:
        for some in found.mendable():
            done = repair_entries(context, seen, some.missing, some.unindexed, some.hashed)
            repaired.entries += done
            seen = _head(context) if done else seen
    rows = [one.path for one in found.unsafe if one.nameless and not one.trash]
    dropped = drop_rows(context, partial(_head, context), rows, [one.path for one in found.unsafe if one.trash])
    if dropped:
        repaired.entries += len(dropped)
        seen = _head(context)
    if repaired.entries == before:
        return found
    with look(seen.head) as found:
        return found


@contextmanager
def _compared(executor: Executor, store: StoreHandle, head: Head, *, deep: bool) -> Iterator[Compared]:
    found = executor.run(VerifyJob(store, head, deep=deep))
    try:
        yield found
    finally:
        found.close()


def _is_whole(context: SyncContext) -> bool:
    """Whether every node of the index and of its log can be read: then there is nothing to rebuild."""
    try:
        seen = read_head(context.store)
    except (NotFound, IndexDamaged):
        return False
    assert seen is not None  # nobody asked whether it is modified
    head, store = seen.head, context.handle
    if chain(context.store, head.older, head.log[0].seq)[1]:
        return False
    damaged = context.engines.run(
        Needs((store,)),
        lambda executor: executor.run(IndexCheckJob(store, head)),
        what="the index was checked",
        files=head.root.entries if head.root is not None else 0,
    )
    return not damaged


def _head(context: SyncContext) -> HeadSeen:
    """Read the head; where there is none, say whether it was lost."""
    try:
        seen = read_head(context.store)
    except NotFound:
        discover(context.store)  # HeadLost, if objects of pushes are there
        if context.base.known:
            raise remote_snapshot.emptied(context.store, context.base.remote) from None
        raise NotFound(
            f"{context.store.url} has no index yet", hint="`bayou datastore sync --push` makes one"
        ) from None
    assert seen is not None  # nobody asked whether it is modified
    return seen


def _forget(context: SyncContext, forgotten: Sequence[str]) -> None:
    """Drop the named entries, as journaled deletes, whatever this tree has of the versions that they belong to.

    An entry that another client replaces meanwhile is kept, with a warning.
    """
    odd = [path for path in forgotten if paths.refusal(path) is not None]
    # No tree has such a path, so nothing of it is journaled. It may be typed as it is, or as `verify` writes it.
    named = {*odd, *map(paths.unescape, odd)}
    dropped = drop_rows(context, partial(_head, context), named, named) if odd else []
    for path in odd:
        if path not in dropped and paths.unescape(path) not in dropped:
            paths.check(path)
    plain = [path for path in forgotten if path not in odd]
    if not plain:
        return
    seen = _head(context)
    settle_pending(context, seen)
    root = seen.head.root
    remote = find_many(IndexTree(StoreNodes(context.store, context.cache), root), plain)
    counts = {Action.DELETE_REMOTE: len(remote)}
    steps.guard(counts, root.entries if root else 0, allowed=context.options.allow_mass_delete, followed=False)
    with context.database.transaction() as db:
        # It is this very row that is given up, also where its content never came here: a row that was made up is one.
        for path, entry in remote.items():
            base.record_entry(db, context.place, path, entry)
    ticket = context.journal.open("delete", plain)
    for path in plain:
        context.incoming.remove(path)
    context.journal.close(ticket)
    _commit_forgotten(context, seen, remote)
    run(context)


def _commit_forgotten(context: SyncContext, seen: HeadSeen, forgotten: Mapping[str, Entry]) -> None:
    """Take entries out of the index. The planner would keep a file of a version that this tree has not pulled whole."""

    def choose(_: HeadSeen, remote: Mapping[str, Entry]) -> Mapping[str, Entry | None]:
        return {path: None for path, entry in forgotten.items() if remote.get(path) == entry}

    done = commit.commit(
        context.store,
        context.cache,
        context.database,
        context.place,
        seen,
        list(forgotten),
        choose,
        by=context.by,
        deadline=context.deadline,
    )
    if done is not None:
        commit.settle(context.database, context.place, done)
