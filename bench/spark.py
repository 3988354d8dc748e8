"""Discovery of a large store on Spark, against a listing by rclone of the same directory in the same run.

    ./dev bench spark [--objects 100000] [--rounds 2] [--limit 3]

Times are without the session's start, which is printed apart; the best of the rounds counts: the machine is shared, and
noise only ever adds. `local[1]` and `local[2]` show what a second core brings, `point` what one process does alone.
Exits 1 if discovery on two cores takes more than `--limit` times as long as rclone, if this process takes 1 GB or more,
or if two of the trees differ.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bayou.config import SparkConfig
from bayou.ids import ulid
from bayou.index.build import build
from bayou.index.discovery import discover as by_point
from bayou.index.local import LocalNodes, NodeFiles
from bayou.index.nodes import StoreSink
from bayou.pipeline.discover import discover
from bayou.pipeline.server.control import Warm
from bayou.pipeline.session import spark_session
from bayou.pipeline.warm import stop
from bayou.store.recipe import Recipe

RCLONE = Path(sys.executable).parent / "rclone"
MEMORY_MB = 1000


@dataclass(frozen=True, slots=True)
class Line:
    """What one way took: to start, and for the best of its rounds; and the most memory of its server, in MB."""

    way: str
    start: float
    seconds: float
    digest: bytes | None = None
    server_mb: float = 0.0


def make_objects(root: Path, count: int) -> None:
    """Make small files, some hundred for each model, each version in a directory of its own."""
    for number in range(count):
        version = (
            f"{root}/data/acme/pipeline/model-{number // 1000:04}/result-{number // 10 % 100:03}/{number // 2 % 5}"
        )
        if number % 2 == 0:
            os.makedirs(version, exist_ok=True)
        name = "raw" if number % 2 else "metadata.yaml"
        with open(f"{version}/{name}", "wb") as file:
            file.write(b"x" * (number % 97))


def rclone(root: Path, rounds: int) -> Line:
    command = [RCLONE, "lsf", "-R", "--files-only", "--format", "ps", root]
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env={**os.environ, "RCLONE_CONFIG": os.devnull})
        times.append(time.perf_counter() - begin)
    return Line("rclone lsf", 0.0, min(times))


def point(recipe: Recipe, folder: Path) -> Line:
    begin = time.perf_counter()
    root = build(by_point(recipe.open()).entries, LocalNodes(NodeFiles(folder), ulid()))
    return Line("point", 0.0, time.perf_counter() - begin, root and root.digest)


def spark(recipe: Recipe, master: str, rounds: int) -> Line:
    config = SparkConfig(master=master)
    store = recipe.open()
    times = []
    digest = None
    begin = time.perf_counter()
    with spark_session(config) as session:
        session.range(1).count()
        start = time.perf_counter() - begin
        for _ in range(rounds):
            begin = time.perf_counter()
            root = discover(session, store, recipe, StoreSink(store, ulid())).root
            times.append(time.perf_counter() - begin)
            digest = root and root.digest
        server = Warm.of(config).running()
        server_mb = peak_mb(server.pid) if server else 0.0
    stop(config)
    return Line(f"spark {master}", start, min(times), digest, server_mb)


def peak_mb(pid: int) -> float:
    """Return the most memory that a process had, where the system tells."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1000 for line in status.splitlines() if line.startswith("VmHWM")), 0.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--objects", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--limit", type=float, default=3.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bayou-bench-") as folder:
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        root = Path(folder, "store")
        begin = time.perf_counter()
        make_objects(root, options.objects)
        print(f"{options.objects} objects in {root.as_uri()}, made in {time.perf_counter() - begin:.1f} s", flush=True)
        recipe = Recipe.of(root.as_uri(), None, {})
        listed = rclone(root, options.rounds)
        lines = [listed, *(spark(recipe, master, options.rounds) for master in ("local[1]", "local[2]"))]
        ours = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000  # before the point way, which holds all
        lines.append(point(recipe, Path(folder, "nodes")))
    print(f"{'':16}{'start':>8}{'seconds':>9}{'objects/s':>11}{'ratio':>7}{'server MB':>11}")
    for line in lines:
        ratio = line.seconds / listed.seconds
        rate = options.objects / line.seconds
        print(f"{line.way:16}{line.start:>8.1f}{line.seconds:>9.2f}{rate:>11.0f}{ratio:>7.1f}{line.server_mb:>11.0f}")
    one, two = lines[1].seconds, lines[2].seconds
    same = len({line.digest for line in lines[1:]}) == 1
    print(f"a second core: {one / two:.2f}×; this process: {ours:.0f} MB (under {MEMORY_MB}); one tree: {same}")
    return 0 if two <= options.limit * listed.seconds and ours < MEMORY_MB and same else 1


if __name__ == "__main__":
    sys.exit(main())
