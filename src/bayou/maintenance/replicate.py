"""`datastore replicate`: make another store a copy of this one, object by object, whoever runs either.

The target has a head of its own, which says whose replica it is and how far it was copied. It is created before
anything is uploaded and changed by compare-and-swap only (V1); objects come first, then nodes, then the head (V11), so
a reader of the replica sees one version of the source or the next. Nothing is written to the source, and nothing here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from bayou.config import DatastoreConfig
from bayou.config.settings import check_datastore
from bayou.core.deadline import Deadline
from bayou.core.errors import BadAnswer, MassDelete, NotFound, UsageError
from bayou.core.ids import ulid
from bayou.core.progress import NoProgress, Progress
from bayou.engine.select import Request
from bayou.index.discovery import TooMany
from bayou.index.head import Head, read_head
from bayou.index.node_store import StoreNodes, StoreSink
from bayou.index.tree import IndexTree
from bayou.maintenance.replica import point
from bayou.maintenance.replica.copy import Age
from bayou.maintenance.replica.plan import Counts, Plan, plan
from bayou.maintenance.replica.point import Made, swap, tally_of
from bayou.maintenance.replica.target import Overtaken, Target, begin, check_others, doubtful, look, mark, same, unmark
from bayou.objectstore.retry import RetryPolicy
from bayou.objectstore.spec import StoreSpec
from bayou.objectstore.store import Store
from bayou.repo import Repo
from bayou.state.database import remote_url
from bayou.sync.bulk import Bulk
from bayou.sync.context import identity
from bayou.sync.plan.steps import is_mass
from bayou.sync.report import ReplicateReport

if TYPE_CHECKING:
    from bayou.spark.session import Session

_BACKOFF = RetryPolicy(base_s=0.05, cap_s=2.0)


class _Job(Struct, frozen=True):
    """One replication: the source as it was when it began, and where it goes."""

    source: Store
    head: Head
    target: Store
    place: DatastoreConfig
    bulk: Bulk | None
    allow_mass_delete: bool
    progress: Progress
    deadline: Deadline
    by: str
    report: ReplicateReport

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
    """Copy this datastore's current index and its objects to another store, as far as that does not have them.

    `ReplicaRefused`, and nothing is changed, where the other store has data that did not come from here.
    """
    repo.require_online("no other store can be reached")
    deadline = Deadline.after(timeout or repo.config.sync.timeout)
    place = DatastoreConfig(url, None, namespace, options=dict(options or {}))
    source, target = _stores(repo, place, deadline)
    report = ReplicateReport(url=target.url, namespace=namespace, dry_run=dry_run)
    job = _Job(
        source,
        _head(source),
        target,
        place,
        _bulk(repo, url, engine, deadline, report, progress),
        allow_mass_delete,
        progress or NoProgress(),
        deadline,
        identity(),
        report,
    )
    if dry_run:
        _estimate(job)
    else:
        attempt = 1
        while not _attempt(job, again=attempt > 1):
            deadline.sleep(_BACKOFF.backoff(attempt))
            attempt += 1
    entries = job.head.root.entries if job.head.root is not None else 0
    report.skipped = max(0, entries - report.copied - report.failures)
    return report


def _stores(repo: Repo, place: DatastoreConfig, deadline: Deadline) -> tuple[Store, Store]:
    """Open both stores; what can be wrong without a request is raised here."""
    if "://" not in (place.url or ""):
        raise UsageError(
            "a replica is a store, and has a URL", hint="a directory can be one: file:///mnt/backup/project"
        )
    check_datastore(place, "the replica")
    here = repo.config.datastore
    if here.url and place.url and remote_url(here.url, here.namespace) == remote_url(place.url, place.namespace):
        raise UsageError(f"{place.url} is where this repo's data is already", hint="name another URL, or --namespace N")
    source = repo.store()
    target = replace(repo, config=replace(repo.config, datastore=place)).store()
    return source.within(deadline), target.within(deadline)


def _head(source: Store) -> Head:
    try:
        seen = read_head(source)
    except NotFound:
        raise NotFound(
            f"{source.url} has no index yet, so there is nothing to replicate",
            hint="`bayou datastore sync --push` makes one",
        ) from None
    if seen is None:
        raise BadAnswer(f"{source.url} says that its head is not modified, and nobody asked that")
    return seen.head


def _bulk(
    repo: Repo, url: str, engine: Request, deadline: Deadline, report: ReplicateReport, progress: Progress | None
) -> Bulk | None:
    if not url.startswith("memory:"):
        return Bulk.of(repo.config, engine, deadline, report.warn, progress)
    if engine == "spark":
        raise UsageError("Spark's workers do not see the memory of this process", hint="leave out --engine")
    return None


def _estimate(job: _Job) -> None:
    """Say what a run would do. Nothing is written anywhere (V15)."""
    target = look(job.target, job.head, job.source)
    check_others(target)
    counts = _counted(job, target)
    _guard(job, target, counts)
    job.report.copied, job.report.bytes, job.report.deleted = counts.copies, counts.bytes, counts.deletes


def _attempt(job: _Job, *, again: bool) -> bool:
    """Look at the target, copy what it lacks, and swap its head; False if somebody else has changed that meanwhile."""
    target = look(job.target, job.head, job.source)
    check_others(target)
    found = _plan(job, target)
    if found is not None:
        _guard(job, target, found.counts)
        if target.seen is not None and not found.counts.any and _is_known(job, target):
            return True
    try:
        ready = begin(target, job.by)
    except Overtaken:
        return False
    sink = StoreSink(job.target, ulid())
    work = _Work(job, ready, _age(ready, doubt=target.seen is not None and (again or doubtful(ready))), sink)
    made, counts = work.on_spark() if found is None else work.here(found)
    job.report.copied += made.copied
    job.report.bytes += made.bytes
    tally = tally_of(ready, made, counts)
    if not swap(ready, job.head, sink.commit, made, tally, job.by):
        return False
    job.report.deleted = tally.deleted
    job.report.failed, job.report.failures = made.failed, made.failures
    if counts.copies:
        unmark(ready)
    return True


class _Work(Struct, frozen=True):
    """The copying of one attempt, and the tree that it makes, under a commit that is its own."""

    job: _Job
    target: Target
    age: Age
    sink: StoreSink

    def here(self, found: Plan) -> tuple[Made, Counts]:
        """Copy in this process."""
        if found.counts.copies:
            mark(self.target, self.job.by)
        job = self.job
        return point.replicate(job.source, self.target, found, self.age, self.sink, job.progress), found.counts

    def on_spark(self) -> tuple[Made, Counts]:
        """Copy on Spark, or here where that cannot be."""
        job, bulk = self.job, self.job.bulk
        assert bulk is not None

        def run(spark: Session, recipe: StoreSpec) -> tuple[Made, Counts]:
            from bayou.spark.replicate import Both, replicate  # noqa: PLC0415

            both = Both(recipe, _recipe(job), job.tree, self.target.tree)
            return replicate(spark, both, self.age, self.sink, self._agreed, job.deadline, job.progress)

        done = bulk.run("the store was replicated", run)
        if done is not None:
            return done
        found = plan(job.tree, self.target, None)
        _guard(job, self.target, found.counts)
        return replace(self, age=replace(self.age, doubt=True)).here(found)

    def _agreed(self, counts: Counts) -> None:
        """Called once it is known what there is to do, before anything is copied."""
        _guard(self.job, self.target, counts)
        if counts.copies:
            mark(self.target, self.job.by)


def _plan(job: _Job, target: Target) -> Plan | None:
    """Return what there is to do; None where that is for Spark to find out."""
    if job.bulk is None:
        return plan(job.tree, target, None)
    try:
        return plan(job.tree, target, job.bulk.limit)
    except TooMany:
        return None


def _counted(job: _Job, target: Target) -> Counts:
    """Return how much there is to do."""
    found = _plan(job, target)
    if found is not None:
        return found.counts

    def run(spark: Session, recipe: StoreSpec) -> Counts:
        from bayou.spark.replicate import Both, survey  # noqa: PLC0415

        return survey(spark, Both(recipe, _recipe(job), job.tree, target.tree), job.deadline, job.progress)

    assert job.bulk is not None
    counts = job.bulk.run("the stores were compared", run)
    return counts if counts is not None else plan(job.tree, target, None).counts


def _recipe(job: _Job) -> StoreSpec:
    """Return how tasks open the target."""
    from bayou.spark.session import require_private_channel  # noqa: PLC0415

    place = job.place
    assert place.url is not None
    assert job.bulk is not None
    recipe = StoreSpec.of(place.url, place.namespace, place.options, job.target.concurrency)
    require_private_channel(job.bulk.spark, recipe)
    return recipe


def _is_known(job: _Job, target: Target) -> bool:
    """Whether the target's head says already that it is a copy of just this root."""
    return target.replica.whole and target.untouched and same(target.replica.root, job.head.root)


def _age(target: Target, *, doubt: bool) -> Age:
    assert target.seen is not None
    head = target.seen.head
    return Age(head.store, head.gc.count, doubt)


def _guard(job: _Job, target: Target, counts: Counts) -> None:
    """Stop before more is deleted than anybody means; what was allowed in the source is followed."""
    followed = any(row.mass_delete and row.seq > target.replica.seq for row in job.head.log)
    entries = target.root.entries if target.root is not None else 0
    if not (job.allow_mass_delete or followed) and is_mass(counts.deletes, entries):
        raise MassDelete(
            f"this would delete {counts.deletes} of {entries} entries in {job.target.url}; nothing was changed",
            hint="if that is meant: bayou datastore replicate URL --allow-mass-delete",
        )
