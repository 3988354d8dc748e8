"""`datastore replicate`: make another store a copy of this datastore, object by object.

The two stores may be of different providers. The target has a head of its own, which names its source and the source's
commit that was copied last. The head is created before anything is uploaded, and changed by compare-and-swap only (V1).
Objects are uploaded first, then nodes, then the head is swapped (V11), so a reader of the replica sees one commit of
the source or the next. Nothing is written to the source, nor to the repo on this machine.

One attempt reads the target's head (`replica.target`), compares the two trees (`replica.plan`), copies the files
(`replica.copy`, run by the job in `replica.transfer`) and swaps the head. If another process changed the head
meanwhile, the next attempt starts from the new head. If a file is not where the source's index says, and the source has
moved or changed it since, the next attempt starts from the source's new head (P7).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain, repeat, takewhile

from msgspec import Struct
from msgspec.structs import replace

from bayou.config import DatastoreConfig, SyncConfig
from bayou.config.settings import check_datastore
from bayou.core.deadline import Deadline
from bayou.core.errors import MassDelete, NotFound, UsageError
from bayou.core.ids import ulid
from bayou.core.progress import Progress
from bayou.engine.handle import StoreHandle
from bayou.engine.job import Executor
from bayou.engine.select import TRANSFER, Engines, Request
from bayou.index.head import Head, iter_log, read_head
from bayou.index.log import Kind
from bayou.index.node_store import StoreNodes, StoreSink
from bayou.index.tree import IndexTree, find_many
from bayou.maintenance.replica import transfer
from bayou.maintenance.replica.pairs import CopyRules
from bayou.maintenance.replica.plan import Counts, ReplicaPlan, plan
from bayou.maintenance.replica.target import (
    Target,
    TargetChanged,
    begin,
    check_others,
    doubtful,
    mark,
    read_target,
    same,
    unmark,
)
from bayou.maintenance.replica.transfer import CopyResult, EarlierCopies, Stores, needs_of, swap, tally_of
from bayou.objectstore.retry import SWAP_BACKOFF
from bayou.objectstore.store import Store
from bayou.repo import Repo
from bayou.state.database import remote_url
from bayou.sync.context import identity
from bayou.sync.plan.steps import is_mass
from bayou.sync.report import ReplicateReport


class _Job(Struct):
    """One replication: the source, with the head that is copied, and the target.

    `earlier` are the packs of an attempt that did not become the target's head.
    """

    source: Store
    head: Head
    target: Store
    sync: SyncConfig
    stores: Stores
    engines: Engines
    allow_mass_delete: bool
    by: str
    report: ReplicateReport
    earlier: EarlierCopies | None = None

    @property
    def tree(self) -> IndexTree:
        return IndexTree(StoreNodes(self.source), self.head.root)


def replicate(
    repo: Repo,
    url: str,
    *,
    namespace: str | None = None,
    options: Mapping[str, str] | None = None,
    dry_run: bool = False,
    allow_mass_delete: bool = False,
    engine: Request = "auto",
    timeout: float | None = None,
    progress: Progress | None = None,
) -> ReplicateReport:
    """Copy this datastore's current index, and the objects that the other store lacks, to that store.

    Raises `ReplicaRefused`, and changes nothing, if the other store has data that did not come from this datastore.
    """
    repo.require_online("no other store can be reached")
    deadline = Deadline.after(timeout or repo.config.sync.timeout)
    remote = DatastoreConfig(url, None, namespace, options=dict(options or {}))
    source, target = _stores(repo, remote, deadline)
    if engine == "spark" and any(store.url.startswith("memory:") for store in (source, target)):
        raise UsageError("Spark's workers do not see the memory of this process", hint="leave out --engine")
    report = ReplicateReport(url=target.url, namespace=namespace, dry_run=dry_run)
    job = _Job(
        source,
        _head(source),
        target,
        repo.config.sync,
        Stores(
            StoreHandle.of(repo.config, source, deadline), StoreHandle.of(_with(repo, remote).config, target, deadline)
        ),
        Engines.of(repo.config, engine, deadline, report.warn, progress),
        allow_mass_delete,
        identity(),
        report,
    )
    if dry_run:
        _estimate(job)
    else:
        attempt = 1
        while not _attempt(job, again=attempt > 1):
            deadline.sleep(SWAP_BACKOFF.backoff(attempt))
            attempt += 1
    entries = job.head.root.entries if job.head.root is not None else 0
    report.skipped = max(0, entries - report.copied - report.failures)
    return report


def _stores(repo: Repo, remote: DatastoreConfig, deadline: Deadline) -> tuple[Store, Store]:
    """Open both stores; raise the errors that can be found without a request."""
    if "://" not in (remote.url or ""):
        raise UsageError(
            "a replica is a store, and has a URL", hint="a directory can be one: file:///mnt/backup/project"
        )
    check_datastore(remote, "the replica")
    own = repo.config.datastore
    if own.url and remote.url and remote_url(own.url, own.namespace) == remote_url(remote.url, remote.namespace):
        raise UsageError(
            f"{remote.url} is where this repo's data is already", hint="name another URL, or --namespace N"
        )
    source = repo.store()
    return source.within(deadline), _with(repo, remote).store().within(deadline)


def _with(repo: Repo, remote: DatastoreConfig) -> Repo:
    """Return the repo with another datastore in its configuration."""
    return replace(repo, config=replace(repo.config, datastore=remote))


def _head(source: Store) -> Head:
    try:
        return read_head(source).head
    except NotFound:
        raise NotFound(
            f"{source.url} has no index yet, so there is nothing to replicate",
            hint="`bayou datastore sync --push` makes one",
        ) from None


def _estimate(job: _Job) -> None:
    """Report what a run would do; write nothing anywhere (V15)."""
    target = read_target(job.stores.target, job.head, job.source)
    check_others(target)
    counts = plan(job.tree, target).counts
    _guard(job, target, counts)
    job.report.copied, job.report.bytes, job.report.deleted = counts.copies, counts.bytes, counts.deletes


def _attempt(job: _Job, *, again: bool) -> bool:
    """Read the target, copy what it lacks, and swap its head; return False if one of the stores changed meanwhile."""
    target = read_target(job.stores.target, job.head, job.source)
    check_others(target)
    found = plan(job.tree, target)
    _guard(job, target, found.counts)
    if target.seen is not None and not found.counts.any and _is_current(job, target):
        return True
    try:
        ready = begin(target, job.by)
    except TargetChanged:
        return False
    sink = StoreSink(job.target, ulid())
    rules = _rules(job, ready, doubt=target.seen is not None and (again or doubtful(ready)))
    made, counts = _copy(job, ready, found, rules, sink), found.counts
    job.report.copied += made.copied
    job.report.bytes += made.bytes
    tally = tally_of(ready, made, counts)
    if _has_moved(job, made) or not swap(ready, job.head, sink.commit, made, tally, job.by, _kind(job, ready)):
        job.earlier = EarlierCopies(ready, made)
        return False
    job.report.deleted = tally.deleted
    job.report.failed, job.report.failures = made.failed, made.failures
    if counts.copies:
        unmark(ready)
    return True


def _copy(job: _Job, target: Target, found: ReplicaPlan, rules: CopyRules, sink: StoreSink) -> CopyResult:
    """Copy the files that a plan names, and build the target's next tree, under the commit of `sink`."""
    if not found.counts.copies:
        return transfer.replicate(job.engines.local(), job.stores, target, found, rules, sink)
    # An executor that failed may have copied some objects already, so the next one checks before it copies.
    attempts = chain([rules], repeat(replace(rules, doubt=True)))

    def copy_with(executor: Executor) -> CopyResult:
        mark(target, job.by)
        return transfer.replicate(executor, job.stores, target, found, next(attempts), sink, job.earlier)

    return job.engines.run(
        needs_of(job.stores),
        copy_with,
        what="the store was replicated",
        cost=TRANSFER,
        files=found.counts.copies,
        size=found.counts.bytes,
        threads=1,
    )


def _has_moved(job: _Job, made: CopyResult) -> bool:
    """Return whether the source has moved or changed a file since, which could not be read; then take its new head.

    If the source's index still says the same, the file is damaged or missing, and is reported (P7).
    """
    if not made.unread:
        return False
    newer = _head(job.source)
    now = find_many(IndexTree(StoreNodes(job.source), newer.root), [entry.path for entry in made.unread])
    if all(now.get(entry.path) == entry for entry in made.unread):
        return False
    job.head = newer
    return True


def _is_current(job: _Job, target: Target) -> bool:
    """Return whether the target's head already says that it is a whole copy of this root."""
    return target.replica.whole and target.untouched and same(target.replica.root, job.head.root)


def _kind(job: _Job, target: Target) -> Kind:
    """Return the kind of the target's commit: a forget if the source forgot something since the last replication.

    Clients of the replica then keep the files of all entries that this commit drops, also of deleted ones.
    """
    since = takewhile(lambda row: row.seq > target.replica.seq, iter_log(job.source, job.head))
    return "forget" if any(row.kind == "forget" for row in since) else "push"


def _rules(job: _Job, target: Target, *, doubt: bool) -> CopyRules:
    assert target.seen is not None
    head = target.seen.head
    return CopyRules(head.store, head.gc.count, doubt, job.sync.pack_below, job.sync.pack_size)


def _guard(job: _Job, target: Target, counts: Counts) -> None:
    """Raise `MassDelete` if the plan deletes very many entries, unless a user allowed that here or in the source."""
    followed = any(row.mass_delete and row.seq > target.replica.seq for row in job.head.log)
    entries = target.root.entries if target.root is not None else 0
    if not (job.allow_mass_delete or followed) and is_mass(counts.deletes, entries):
        raise MassDelete(
            f"this would delete {counts.deletes} of {entries} entries in {job.target.url}; nothing was changed",
            hint="if that is meant: bayou datastore replicate URL --allow-mass-delete",
        )
