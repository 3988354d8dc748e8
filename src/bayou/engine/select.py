"""The choice of the engine for a job: threads of this process, or Spark. One rule, by measured cost.

Measured on 2 cores with S3 on loopback (`./dev bench engine` prints the table again; docs/spark.md has it): compared
with threads of this process, a warm Spark server on the same machine took 7 times as long to push 1,000 files, 1.8
times for 30,000 and 1.2 times for 100,000; to pull 100,000 it took 0.8 times as long. A server that has yet to start
adds 2 s, and 8 to 16 s if it is the first on a machine:

- On one machine this process does everything up to 100,000 entries or files; about there, both are equally fast. If its
  server has yet to start, this process does as much more as it finishes in that time. With one core, Spark has nothing
  to divide the work among.
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
"""Entries or files above which Spark does the work on the same machine, if its server runs."""

CLUSTER_FILES = 1000
CLUSTER_BYTES = 1 << 30
"""The work that this process does while a session on a cluster opens, 1.5 s."""

START_S = 12.0
"""How long the first server of a machine takes to start: 8 to 16 s."""

FILES_PER_S = 2800.0
"""Files that threads of this process push in a second: 30,000 files in 10.7 s."""

LARGE_COLD = LARGE + round(START_S * FILES_PER_S)
"""`LARGE` if the server has yet to start: this process does as many more files in that time."""


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

    def limit(self) -> int | None:
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
        return LARGE_COLD

    def choose(self, files: int, size: int = 0) -> Choice:
        """Choose for work on this many entries or files, and bytes that a worker would transfer or read."""
        if self.requested != "auto":
            return Choice(self.spark_required, f"--engine {self.requested}")
        if self.limited:
            return Choice(False, "a rate limit holds for this process only")
        if self.cluster and self.override is None and size > CLUSTER_BYTES:
            return Choice(True, f"a cluster is configured, and {size:,} bytes are more than {CLUSTER_BYTES:,}")
        if self.override is not None:
            rule, limit = "[sync] point_limit", self.override
        elif self.cluster:
            rule, limit = "a cluster is configured, for more than", CLUSTER_FILES
        elif self.cores < 2:
            return Choice(False, "this machine has one core, and no cluster is configured")
        elif files <= LARGE:  # no check for a server that is not needed
            rule, limit = "on this machine Spark pays from", LARGE
        elif not self.installed():
            return Choice(False, "Spark is not installed")
        else:
            running = self.server_runs()
            limit = LARGE if running else LARGE_COLD
            rule = f"on this machine Spark, whose server {'runs' if running else 'has yet to start'}, pays from"
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
        files: int,
        size: int = 0,
        threads: int | None = None,
    ) -> T:
        """Call `work`, which runs one or more jobs on this many entries or files and bytes, with the chosen executor.

        If Spark was chosen and fails, this warns and calls `work` again with the executor of this process, unless the
        user asked for Spark: then its error is raised. `what` completes "… by this process alone", as in "the store was
        listed". `threads` is how many parts run at once in this process: one, if a single part already does as much at
        once as memory allows.
        """
        if self.selector.choose(files, size).spark and self._reachable(needs):
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
