"""The choice of the engine for a job: threads of this process, or Spark. One rule, by measured cost.

`./dev bench engine` measures what a file costs in this process and on Spark, for each kind of work (`WorkCost`);
docs/spark.md has the table. On one machine, Spark does a job if it ends sooner there, with the time for a session, and
for the start of a server that does not run yet, so with Java installed nothing becomes slower:

- This process does everything up to 100,000 entries or files. Above that, Spark pays once it has saved as much as it
  took to begin. On two cores a warm server moves files only a little faster than threads do, and it never lists or
  compares them faster: that is little work for each file, most of it in obstore and SQLite, outside of the interpreter.
- A configured cluster does every job that takes longer than opening a session on it: by the number of files, or by
  their bytes, which a cluster moves and hashes over more than one machine's network and cores.
- `--engine point` and `--engine spark` decide by themselves; `[sync] point_limit` replaces the numbers.

In an installation without Spark this process does everything. If Spark was chosen and cannot be used, this process does
the work with a warning, unless the user asked for Spark.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from msgspec import Struct

from bayou.core.errors import PackageMissing, SparkError, SparkUnavailable, UsageError

if TYPE_CHECKING:
    from bayou.config import Config, SparkConfig
    from bayou.core.deadline import Deadline
    from bayou.core.progress import Progress
    from bayou.engine.job import Executor, Needs

Request = Literal["auto", "point", "spark"]
"""The value of `--engine`: choose automatically, this process, or Spark."""

T = TypeVar("T")

LARGE = 100_000
"""Entries or files that this process does on one machine, whatever Spark would take for them."""

CLUSTER_FILES = 1000
CLUSTER_BYTES = 1 << 30
"""The work that this process does while a session on a cluster opens, 1.5 s."""

SESSION_S = 1.3
"""How long a job on a warm server takes before its first task works."""

START_S = 12.0
"""How long the first server of a machine takes to start: 8 to 16 s. A later one takes 2 s, by its class archive."""


class WorkCost(Struct, frozen=True):
    """What one entry or file of a job costs: microseconds of this process, and microseconds of one core on Spark."""

    here_us: float
    spark_us: float

    def limit(self, cores: int, *, server_runs: bool) -> int | None:
        """Return how many entries or files this process does at least as soon as Spark on this machine; None: any."""
        saved_us = self.here_us - self.spark_us / cores
        if saved_us <= 0:
            return None
        begin_s = SESSION_S if server_runs else SESSION_S + START_S
        return max(LARGE, round(begin_s * 1e6 / saved_us))


SCAN = WorkCost(here_us=9, spark_us=18)
"""List, compare or check entries: `verify`, a collection, a discovery."""

TRANSFER = WorkCost(here_us=125, spark_us=218)
"""Read, hash and move small files: the mean of a push and a pull."""

RECORDS = WorkCost(here_us=120, spark_us=96)
"""Parse records, which is work for the interpreter: a rebuild of the catalog, retention."""


class Choice(Struct, frozen=True):
    """An engine, and why it was chosen: a sentence for `-v` and reports."""

    spark: bool
    why: str


class Selector(Struct, frozen=True):
    """Chooses between this process and Spark.

    `server_runs` returns whether a server runs, `installed` whether there is a Spark to start; both are called only if
    the choice depends on them.
    """

    requested: Request = "auto"
    cluster: bool = False
    override: int | None = None
    cores: int = 1
    server_runs: Callable[[], bool] = lambda: False
    limited: bool = False
    """Whether the user limits the rate: the limit holds for this process, so the work stays here."""
    installed: Callable[[], bool] = lambda: True

    @classmethod
    def of(cls, config: Config, requested: Request) -> Selector:
        """Return the rule for a command of a repo."""
        cluster, limited = is_cluster(config.spark), config.sync.limit_rate is not None
        if limited and requested == "spark":
            raise UsageError(
                "a rate limit holds for this process, and not for Spark's workers",
                hint="leave out --engine spark, or --limit-rate (also [sync] limit_rate and BAYOU_SYNC_LIMIT_RATE)",
            )
        cores = os.cpu_count() or 1
        return cls(
            requested,
            cluster,
            config.sync.point_limit,
            cores,
            lambda: is_server_running(config.spark),
            limited,
            is_installed,
        )

    @property
    def spark_required(self) -> bool:
        """Whether the user asked for Spark: then its failure fails the command."""
        return self.requested == "spark"

    def limit(self, cost: WorkCost) -> int | None:
        """Return how many entries or files this process does by itself; None: any number.

        For work of unknown size, such as a listing: it starts in this process, and moves to Spark when it exceeds the
        limit. The limit does not depend on whether a server runs: a sync with nothing to do must not wait for that.
        """
        if self.requested == "point" or self.limited:
            return None
        if self.requested == "spark":
            return 0
        if self.override is not None:
            return self.override
        if self.cluster:
            return CLUSTER_FILES
        if self.cores < 2 or not self.installed():
            return None
        return cost.limit(self.cores, server_runs=False)

    def choose(self, cost: WorkCost, files: int, size: int = 0) -> Choice:
        """Choose for work on this many entries or files, and bytes that a worker would transfer or read."""
        if self.requested != "auto":
            return Choice(self.spark_required, f"--engine {self.requested}")
        if self.limited:
            return Choice(False, "a rate limit holds for this process only")
        if self.cluster and self.override is None and size > CLUSTER_BYTES:
            return Choice(True, f"a cluster is configured, and {size:,} bytes are more than {CLUSTER_BYTES:,}")
        if self.override is not None:
            rule, limit = "[sync] point_limit is", self.override
        elif self.cluster:
            rule, limit = "a cluster is configured, for more than", CLUSTER_FILES
        elif self.cores < 2:
            return Choice(False, "this machine has one core, and no cluster is configured")
        elif files <= LARGE:  # no check for a server that is not needed
            rule, limit = "on this machine Spark pays for more than", LARGE
        elif not self.installed():
            return Choice(False, "Spark is not installed")
        else:
            running = self.server_runs()
            pays = cost.limit(self.cores, server_runs=running)
            if pays is None:
                return Choice(False, f"Spark is not faster at this on the {self.cores} cores of this machine")
            limit = pays
            rule = (
                f"on this machine Spark, whose server {'runs' if running else 'has yet to start'}, pays for more than"
            )
        return Choice(files > limit, f"{files:,} entries or files; {rule} {limit:,}")


def is_cluster(config: SparkConfig) -> bool:
    """Return whether Spark's workers are other machines: a remote server, or a master that is not this machine."""
    return config.remote is not None or (config.master is not None and not config.master.startswith("local"))


class SparkEngine(Protocol):
    """The interface of Spark for the layers below it, passed to `install`. `bayou.spark.executor` implements it."""

    def is_server_running(self, config: SparkConfig) -> bool:
        """Return whether a server runs already; take no time, start nothing, and import nothing of Spark."""

    def open(
        self, config: SparkConfig, needs: Needs, *, deadline: Deadline, progress: Progress | None
    ) -> AbstractContextManager[Executor]:
        """Open an executor whose workers can reach what a job needs; `SparkError` if they cannot.

        Inside the context, errors of Spark are raised as `SparkError`; errors of a task's store keep their class.
        """


_installed: Callable[[], SparkEngine] | None = None


def install(load: Callable[[], SparkEngine] | None) -> None:
    """Register Spark in this process. The program's entry points call this; `load` imports Spark when it is needed.

    None: this program works without Spark.
    """
    global _installed  # noqa: PLW0603
    _installed = load


def spark_engine() -> SparkEngine:
    """Return the registered engine; `SparkUnavailable` in a program that has registered none."""
    if _installed is None:
        raise SparkUnavailable("this program was put together without Spark", hint="call `bayou.engine.select.install`")
    return _installed()


def is_installed() -> bool:
    """Return whether Spark's package seems to be installed: every sync asks, so only the name is looked up."""
    try:
        return find_spec("pyspark") is not None
    except ImportError:
        return False


def is_server_running(config: SparkConfig) -> bool:
    """Return whether a Spark server seems to run; nothing is started."""
    return _installed is not None and spark_engine().is_server_running(config)


class Engines(Struct, frozen=True):
    """How one command runs its jobs: the engine, the deadline, and where progress and warnings go."""

    spark: SparkConfig
    selector: Selector
    deadline: Deadline
    warn: Callable[[str], None]
    progress: Progress | None = None

    @classmethod
    def of(
        cls,
        config: Config,
        requested: Request,
        deadline: Deadline,
        warn: Callable[[str], None],
        progress: Progress | None = None,
    ) -> Engines:
        return cls(config.spark, Selector.of(config, requested), deadline, warn, progress)

    def local(self, threads: int | None = None) -> Executor:
        """Return the executor of this process; `threads` is how many parts run at once."""
        from bayou.engine.local import THREADS, LocalExecutor  # noqa: PLC0415  (most commands run no job)

        return LocalExecutor(deadline=self.deadline, progress=self.progress, threads=threads or THREADS)

    def run(
        self,
        needs: Needs,
        work: Callable[[Executor], T],
        *,
        what: str,
        cost: WorkCost,
        files: int,
        size: int = 0,
        threads: int | None = None,
    ) -> T:
        """Call `work`, which runs one or more jobs on this many entries or files and bytes, with the chosen executor.

        If Spark was chosen and fails, this warns and calls `work` again with the executor of this process, unless the
        user asked for Spark: then its error is raised. `what` completes "… by this process alone", as in "the store was
        listed". `threads` is how many parts run at once in this process: one, if a single part already does as much at
        once as memory allows. `cost` is what one entry or file of the work costs.
        """
        if self.selector.choose(cost, files, size).spark and self._reachable(needs):
            try:
                with spark_engine().open(self.spark, needs, deadline=self.deadline, progress=self.progress) as executor:
                    return work(executor)
            except (SparkError, PackageMissing) as error:
                if self.selector.spark_required:
                    raise
                self.warn(f"{what} by this process alone, since Spark could not: {error.message}")
        return work(self.local(threads))

    def _reachable(self, needs: Needs) -> bool:
        """Return whether other processes can reach the stores of a job."""
        if not any(store.url.startswith("memory:") for store in needs.stores):
            return True
        if self.selector.spark_required:
            raise UsageError("Spark's workers do not see the memory of this process", hint="leave out --engine")
        return False
