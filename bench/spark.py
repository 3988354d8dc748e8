"""Jobs on Spark as stores grow: discover, verify and backfill; against rclone, on one core and on two.

    ./dev bench spark [--sizes 10000 100000] [--full] [--limit 3]

`--full` adds a store of 1,000,000 objects, which takes 20 minutes or so. Stores are directories of small records, half
of them metadata of versions and half outputs, so that each object is a row of the catalog. Times are without the
session's start, which is printed apart; growth is how the time per object changes from one size to the next: 1.0 is
linear. A picture goes to bench/results/spark.svg.

Exits 1 if discovery takes more than `--limit` times as long as `rclone lsf` on the same directory in the same run, if
this process takes 1 GB or more, if the tree is another one when it is built in another order, if a job grows by more
than half over linear, or if one changed file takes other requests than in a store of 1,000 (but for the nodes of levels
beyond two: a tree of a million entries has three).
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import _growth
import _large_store
from _tools import share_class_archives

from bayou.config import SparkConfig
from bayou.core.deadline import Deadline
from bayou.core.ids import ulid
from bayou.data.engine import CatalogEngine
from bayou.data.records import Records
from bayou.engine.handle import StoreHandle
from bayou.engine.select import Engines, Selector
from bayou.index.build import build
from bayou.index.head import Head, create_head, first_head, read_head
from bayou.index.log import Tally
from bayou.index.node import Root
from bayou.index.node_store import NodeFiles, StoreSink
from bayou.maintenance.verify_job import VerifyJob
from bayou.objectstore.spec import StoreSpec
from bayou.repo import Repo, init_repo, open_repo
from bayou.spark.executor import SparkExecutor
from bayou.spark.server.control import SparkServer
from bayou.spark.session import spark_session
from bayou.spark.warm import stop
from bayou.state.connection import Connection
from bayou.sync import service
from bayou.sync.plan import remote_snapshot
from bayou.sync.plan.discovery_job import DiscoveryJob
from bayou.sync.report import SyncOptions
from bayou.sync.service import Datastore

if TYPE_CHECKING:
    from bayou.spark.session import Session

RCLONE = str(Path(sys.executable).parent / "rclone")
PICTURE = Path(__file__).parent / "results" / "spark.svg"
JOBS = ("discover", "verify", "backfill")
MEMORY_MB = 1000
GROWTH = 1.5
SMALL = 1000
ROUNDS_UP_TO = 100_000
"""Of larger stores one round has to do: what disturbs it takes a smaller part of it."""


@dataclass(slots=True)
class Outcome:
    """What was measured, and what is wrong with it."""

    times: dict[str, dict[int, float]] = field(default_factory=lambda: {"rclone": {}, **{job: {} for job in JOBS}})
    problems: list[str] = field(default_factory=list)

    def check(self, well: bool, problem: str) -> None:
        if not well:
            self.problems.append(problem)


class OnSession(CatalogEngine, frozen=True):
    """Runs the jobs of records in a session that is open, so that its start is not measured."""

    session: Any = None

    def run(self, repo: Repo, job: Any, **_: object) -> Any:
        return SparkExecutor(self.session).run(job)


def seconds_of(work: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    done = work()
    return time.perf_counter() - begin, done


def rounds_of(size: int) -> int:
    return 2 if size <= ROUNDS_UP_TO else 1


def rclone(root: Path, rounds: int) -> float:
    command = [RCLONE, "lsf", "-R", "--files-only", "--format", "ps", str(root)]
    environ = {**os.environ, "RCLONE_CONFIG": os.devnull}
    return min(
        seconds_of(lambda: subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=environ))[0]
        for _ in range(rounds)
    )


@contextmanager
def session_on(master: str, folder: Path) -> Iterator[Session]:
    """Open a session on a server of this run's own, which has done a little of everything; say what that took."""
    config = SparkConfig(master=master)
    os.environ["BAYOU_SPARK_MASTER"] = master  # for what repos do meanwhile
    begin = time.perf_counter()
    try:
        with spark_session(config) as session:
            session.range(1).count()
            start = time.perf_counter() - begin
            tiny = folder / f"tiny-{ulid()}"
            _large_store.make(tiny, 100)
            run_jobs(session, tiny, folder, 1)
            _large_store.remove(tiny)
            print(f"{master}: session after {start:.1f} s", flush=True)
            yield session
            server = SparkServer.of(config).running()
            print(f"{master}: the server took {peak_mb(server.pid) if server else 0:.0f} MB at most", flush=True)
    finally:
        stop(config)


def run_jobs(session: Session, root: Path, folder: Path, rounds: int) -> tuple[dict[str, float], Root | None]:
    """Return the best time of each job on a store that has no head, and the tree of the store."""
    spec = StoreSpec.of(root.as_uri(), None, {})
    times: dict[str, list[float]] = {job: [] for job in JOBS}
    tree = None
    for _ in range(rounds):
        taken, tree = seconds_of(lambda: discovered(session, spec))
        times["discover"].append(taken)
        head = head_of(tree)
        taken, checked = seconds_of(lambda: verified(session, spec, head))
        times["verify"].append(taken)
        assert checked == (tree.entries if tree else 0)
        taken, rows = seconds_of(lambda: backfilled(session, root, folder))
        times["backfill"].append(taken)
        assert rows == checked
    return {job: min(taken) for job, taken in times.items()}, tree


def head_of(root: Root | None) -> Head:
    tally = Tally(added=root.entries, bytes=root.bytes) if root else Tally()
    return first_head(
        store=str(uuid.uuid4()), commit=ulid(), at="2031-05-04T08:00:00.000Z", by="bench@host", root=root, tally=tally
    )


def discovered(session: Session, spec: StoreSpec) -> Root | None:
    """List a store on Spark, and build its tree here."""
    store = spec.open()
    job = DiscoveryJob(StoreHandle(store, lambda: spec), divided=True)
    with closing(SparkExecutor(session).run(job)) as found:
        return build(found.entries(), StoreSink(store, ulid()))


def verified(session: Session, spec: StoreSpec, head: Head) -> int:
    """Verify a store; return how many entries were checked."""
    store = StoreHandle(spec.open(), lambda: spec)
    found = SparkExecutor(session).run(VerifyJob(store, head, deep=False))
    found.close()
    assert not found.missing, found.missing[:3]
    assert not found.changed, found.changed[:3]
    return found.checked


def backfilled(session: Session, root: Path, folder: Path) -> int:
    """Make the catalog of a datastore that is this directory; return how many rows it has."""
    repo = init_repo(folder / f"repo-{ulid()}")
    repo.file.write_text(f'{repo.file.read_text()}path = "{root}"\n')
    with Records(open_repo(repo.root), engine=OnSession("spark", session=session)) as records:
        rows = records.catalog.refresh().rows
    _large_store.remove(repo.root)
    return rows


def one_changed_file(root: Path, folder: Path) -> tuple[int, int]:
    """Return how many requests the push of one changed file takes, and how many levels the tree has.

    The clone knows the whole index, and has none of its content: what it would cost to pull that is not the question.
    """
    repo = init_repo(folder / f"repo-{ulid()}")
    repo.file.write_text(f'{repo.file.read_text()}url = "{root.as_uri()}"\nexclude = ["data/**", "outputs/**"]\n')
    repo = open_repo(repo.root)
    taken, _ = seconds_of(lambda: service.sync(Connection(repo), SyncOptions("pull", walk=False), timeout=3600))
    print(f"a clone has caught up with {root.name} in {taken:.1f} s", flush=True)
    options = SyncOptions("push", walk=False)
    for content in (b"one", b"two"):
        with Datastore(repo) as datastore:
            datastore.tree.write("files/changed", content)
        report = service.sync(Connection(repo), options)
        assert report.pushed.files == 1
    seen = read_head(repo.store())
    assert seen is not None
    assert seen.head.root is not None
    return report.requests.total, seen.head.root.level + 1


def keep_servers_in(cache: Path) -> None:
    """Have a cache of our own, so that the servers are ours; but with the class archives that this user has."""
    share_class_archives(cache)
    os.environ["XDG_CACHE_HOME"] = str(cache)


def peak_mb(pid: int) -> float:
    """Return the most memory that a process had, where the system tells."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1000 for line in status.splitlines() if line.startswith("VmHWM")), 0.0)


def own_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def grow(folder: Path, sizes: list[int], outcome: Outcome) -> None:
    """Measure every size on two cores, and the largest but one on one core too."""
    compared_at = sizes[max(0, len(sizes) - 2)]
    with session_on("local[2]", folder) as session:
        for size in sizes:
            root = folder / f"store-{size}"
            made, _ = seconds_of(lambda: _large_store.make(root, size))
            print(f"{size:,} objects, made in {made:.1f} s", flush=True)
            outcome.times["rclone"][size] = rclone(root, rounds_of(size))
            times, tree = run_jobs(session, root, folder, rounds_of(size))
            for job, taken in times.items():
                outcome.times[job][size] = taken
            print("  " + ", ".join(f"{job} {taken:.2f} s" for job, taken in times.items()), flush=True)
            if size == sizes[-1]:
                outcome.check(own_mb() < MEMORY_MB, f"this process took {own_mb():.0f} MB")
                print(f"this process took {own_mb():.0f} MB at most (under {MEMORY_MB})", flush=True)
                check_tree(root, folder, tree, outcome)
                check_push(root, folder, tree, outcome)
            if size != compared_at:
                _large_store.remove(root)
    compare_cores(folder, compared_at, outcome)


def check_tree(root: Path, folder: Path, tree: Root | None, outcome: Outcome) -> None:
    other = _large_store.digest_in_another_order(StoreSpec.of(root.as_uri(), None, {}), folder / "nodes")
    same = tree is not None and other == tree.digest
    outcome.check(same, "built in another order, the tree is another one")
    print(f"built in another order, the tree is the same: {same}", flush=True)


def check_push(root: Path, folder: Path, tree: Root | None, outcome: Outcome) -> None:
    """Push one changed file to this store, and to a small one."""
    create_head(StoreSpec.of(root.as_uri(), None, {}).open(), head_of(tree))
    small = folder / "store-small"
    _large_store.make(small, SMALL)
    spec = StoreSpec.of(small.as_uri(), None, {})
    engines = Engines(SparkConfig(), Selector("point"), Deadline.after(600), print)
    remote_snapshot.create_index(
        StoreHandle(spec.open(), lambda: spec), engines, NodeFiles(folder / "nodes-small"), "bench@host"
    )
    (few, low), (many, high) = one_changed_file(small, folder), one_changed_file(root, folder)
    outcome.check(many - max(0, high - 2) == few - max(0, low - 2), f"one changed file took {many} requests, and {few}")
    print(
        f"one changed file: {many} requests ({high} levels); in a store of {SMALL:,}: {few} ({low} levels)", flush=True
    )


def compare_cores(folder: Path, size: int, outcome: Outcome) -> None:
    root = folder / f"store-{size}"
    _large_store.remove(root / ".bayou")
    _large_store.remove(root / "files")
    with session_on("local[1]", folder) as session:
        alone, _ = run_jobs(session, root, folder, rounds_of(size))
    print(f"\n{size:,} objects  local[1]  local[2]  speed-up")
    for job, taken in alone.items():
        both = outcome.times[job][size]
        print(f"{job:<{len(f'{size:,}') + 8}}{taken:>8.2f} s{both:>8.2f} s{taken / both:>9.2f}×", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000], metavar="N")
    parser.add_argument("--full", action="store_true", help="add 1,000,000 objects")
    parser.add_argument("--limit", type=float, default=3.0, help="times that rclone takes")
    options = parser.parse_args()
    sizes = sorted({*options.sizes, *([1_000_000] if options.full else [])})
    outcome = Outcome()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # neither a server nor a store is left behind
    with tempfile.TemporaryDirectory(prefix="bayou-bench-") as made:
        folder = Path(made)
        os.environ["BAYOU_TRUST"] = "1"  # the repos of a run are its own: they may name its directories
        keep_servers_in(folder / "cache")
        grow(folder, sizes, outcome)
        for root in folder.glob("store-*"):
            _large_store.remove(root)
    times = outcome.times
    print("", *_growth.table(times), "", *_growth.bars(times), "", sep="\n")
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_text(_growth.picture("Jobs on Spark as stores grow", times))
    print(f"the same as a picture: {PICTURE}")
    ratio = times["discover"][sizes[-1]] / times["rclone"][sizes[-1]]
    print(f"discovery of {sizes[-1]:,} objects took {ratio:.1f} times as long as rclone (at most {options.limit:g})")
    outcome.check(ratio <= options.limit, f"discovery took {ratio:.1f} times as long as rclone")
    worst = _growth.worst(times, JOBS)
    outcome.check(worst <= GROWTH, f"a job grew {worst:.2f} times as fast as its store")
    for problem in outcome.problems:
        print(f"FAILED: {problem}")
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    sys.exit(main())
