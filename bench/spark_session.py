"""Spark's start: a plain session, our cold server, and a second command on the warm one.

    ./dev bench spark_session [--rounds 2]

Each is a Python process of its own that runs one small job through Python workers. Printed are the seconds from the
start of the process until its session is open, until its first task runs, and until its end; the best of the rounds
counts: the machine is shared, and noise only ever adds. Exits 1 when the second command's task starts after more than
3 s, or our cold start takes more than 60 % of a plain one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bayou.config import SparkConfig
from bayou.spark.java import find_java
from bayou.spark.warm import stop, warm_up

WARM_S = 3.0
COLD = 0.6

JOB = """
import sys, time

def first(batches):
    import time
    import pyarrow
    now = time.time()
    yield from (pyarrow.RecordBatch.from_pydict({"at": [now]}) for _ in batches)

def work(spark):
    opened = time.time()
    began = min(row["at"] for row in spark.range(8).mapInArrow(first, "at double").collect())
    print(opened, began)
"""
PLAIN = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote("local[*]").getOrCreate()
work(spark)
spark.stop()
"""
OURS = """
from bayou.config import SparkConfig
from bayou.spark.session import spark_session
with spark_session(SparkConfig()) as spark:
    work(spark)
"""


@dataclass(frozen=True, slots=True)
class Run:
    """Seconds since the start of a process."""

    opened: float
    began: float
    ended: float

    @classmethod
    def of(cls, script: str) -> Run:
        environ = os.environ | {"JAVA_HOME": str(find_java().home), "PYSPARK_PYTHON": sys.executable}
        start = time.time()
        done = subprocess.run(
            [sys.executable, "-c", JOB + script],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        end = time.time()
        opened, began = map(float, done.stdout.split()[-2:])
        return cls(opened - start, began - start, end - start)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=2)
    rounds = parser.parse_args().rounds
    runs: dict[str, list[Run]] = {"plain, cold": [], "ours, cold": [], "ours, warm": []}
    with tempfile.TemporaryDirectory(prefix="bayou-bench-") as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        try:
            begin = time.time()
            warm_up(SparkConfig())
            archive = next(Path(folder).rglob("classes/*.jsa"))
            print(f"class archive: {archive.stat().st_size / 1e6:.0f} MB, made once in {time.time() - begin:.1f} s")
            for _ in range(rounds):
                stop(SparkConfig())
                runs["plain, cold"].append(Run.of(PLAIN))
                runs["ours, cold"].append(Run.of(OURS))
                runs["ours, warm"].append(Run.of(OURS))
        finally:
            stop(SparkConfig())
    print(f"{'seconds until':<14}{'session':>9}{'task':>9}{'end':>9}")
    best = {name: min(found, key=lambda run: run.ended) for name, found in runs.items()}
    for name, run in best.items():
        print(f"{name:<14}{run.opened:>9.2f}{run.began:>9.2f}{run.ended:>9.2f}")
    cold = best["ours, cold"].ended / best["plain, cold"].ended
    warm = best["ours, warm"].began
    print(f"cold: {cold:.0%} of plain (at most {COLD:.0%}); warm: task after {warm:.2f} s (at most {WARM_S:.0f})")
    return 0 if cold <= COLD and warm <= WARM_S else 1


if __name__ == "__main__":
    sys.exit(main())
