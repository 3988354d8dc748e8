"""Threads of one process against Spark on this machine: the measurement behind the choice of `bayou.engine.select`.

    ./dev bench engine [--files 3000 120000] [--size 5000] [--rounds 1] [--cold 3000] [--objects]

Push, pull, verify and a dry collection of so many files on a SeaweedFS of its own, whole commands, interpreter start
included: by threads (`--engine point`) and on a warm server (`--engine spark`), one right after the other, in turns at
being first; of `--cold` files also where no server runs when the command begins. Small files are packed, or with
`--objects` every file is an object of its own. Prints the tables of docs/spark.md, as Markdown, and what they say of
the selector's costs. Exits 1 where the selector would choose Spark although it takes longer, or threads although they
do, by more than a tenth. By default one size is above the selector's least number, where it may choose Spark.

A ratio is of times of one round, and the median of the rounds' counts: the machine is shared, and faster in one minute
than in the next. Processor seconds, those of the Spark server included, depend less on what else runs.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median

from _tools import BUCKET, Ran, Tools, in_turn, make_files, remove

from bayou.engine.select import LARGE, SCAN, START_S, TRANSFER, Selector, WorkCost
from bayou_testing.seaweed import SeaweedServer

VERBS: Mapping[str, WorkCost] = {"push": TRANSFER, "pull": TRANSFER, "verify": SCAN, "gc": SCAN}
KINDS = {"threads": "point", "warm": "spark", "cold": "spark"}

Measured = Mapping[tuple[int, str, str], Sequence[Ran]]
"""The command of each round, by number of files, kind and verb."""


def measure(tools: Tools, files: int, size: int, kind: str, turn: int, settings: str) -> dict[str, Ran]:
    """Push, pull, verify and collect so many files, on a prefix of their own."""
    named = f"{kind}{files}-{turn}"

    def timed(repo: Path, *arguments: str) -> Ran:
        if kind == "cold":
            tools.stop()
        elif kind == "warm":
            tools.warm()
        return tools.bayou(repo, "datastore", *arguments, "--engine", KINDS[kind], "--timeout", "3600")

    repo = tools.repo(f"{named}-a", named, settings=settings)
    make_files(repo / ".bayou/tree", files, size)
    found = {"push": timed(repo, "sync", "--push", "--adopt")}
    other = tools.repo(f"{named}-b", named, settings=settings)
    found["pull"] = timed(other, "sync", "--pull")
    found["verify"] = timed(other, "verify")
    found["gc"] = timed(other, "gc", "--dry-run")
    for verb, ran in found.items():
        told = f"{ran.seconds:.2f} s, {ran.cpu:.2f} s of a processor, {ran.memory_mb:.0f} MB"
        print(f"{files:,} files, {kind}, {verb}: {told}", file=sys.stderr, flush=True)
    return found


def table(found: Measured, sizes: Sequence[int]) -> str:
    """Return seconds, processor seconds and ratios to threads, for push / pull / verify / gc, a line for each size."""
    kinds = [kind for kind in KINDS if any(kind == one for _, one, _ in found)]
    heads = [*kinds, *(f"processor, {kind}" for kind in kinds), *(f"{kind} to threads" for kind in kinds[1:])]
    lines = ["| files | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for files in sizes:
        ran = {kind: [found.get((files, kind, verb), ()) for verb in VERBS] for kind in kinds}
        cells = [_cell([median(one.seconds for one in some) if some else None for some in ran[kind]]) for kind in kinds]
        cells += [_cell([median(one.cpu for one in some) if some else None for some in ran[kind]]) for kind in kinds]
        cells += [_cell([ratio(found, files, kind, verb) for verb in VERBS], 2) for kind in kinds[1:]]
        lines.append(f"| {files:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(values: Iterable[float | None], digits: int = 1) -> str:
    return " / ".join("–" if value is None else f"{value:.{digits}f}" for value in values)


def ratio(found: Measured, files: int, kind: str, verb: str) -> float | None:
    """Return the median over the rounds of the time on Spark to that of threads."""
    here, there = found[files, "threads", verb], found.get((files, kind, verb))
    if not there:
        return None
    return median(theirs.seconds / ours.seconds for ours, theirs in zip(here, there, strict=True))


def per_file(found: Measured, sizes: Sequence[int], verb: str) -> str:
    """Return what a further file costs between the smallest and the largest size."""
    least, most = min(sizes), max(sizes)
    if least == most:
        return "one size shows no cost of a file"
    here, spark = (
        (
            median(ran.seconds for ran in found[most, kind, verb])
            - median(ran.seconds for ran in found[least, kind, verb])
        )
        / (most - least)
        * 1e6
        for kind in ("threads", "warm")
    )
    return f"{here:.0f} µs a file by threads, {spark * (os.cpu_count() or 1):.0f} µs of a core on Spark"


def mistakes(found: Measured) -> list[str]:
    """Say where the selector would choose what took longer, by more than a tenth."""
    told = []
    for files, kind, verb in found:
        to_threads = ratio(found, files, kind, verb)
        assert to_threads is not None
        chosen = Selector(cores=os.cpu_count() or 1, server_runs=lambda: kind == "warm").choose(VERBS[verb], files)
        if to_threads < 1 / 1.1 if not chosen.spark else to_threads > 1.1:
            told.append(f"{verb} of {files:,} files, {kind}: {to_threads:.2f} of the time of threads; {chosen.why}")
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, nargs="+", default=[3000, 120_000])
    parser.add_argument("--cold", type=int, nargs="*", default=[3000])
    parser.add_argument("--size", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--objects", action="store_true", help="no packs")
    options = parser.parse_args()

    found: dict[tuple[int, str, str], list[Ran]] = {}
    folder = Path(tempfile.mkdtemp(prefix="bayou-bench-"))
    settings = "[sync]\npack_below = 0\n" if options.objects else ""
    try:
        with SeaweedServer(folder / "seaweed", metrics=True) as server:
            tools = Tools(server, folder)
            server.create_bucket(BUCKET)
            try:
                for turn in range(options.rounds):
                    for files in options.files:
                        for kind in in_turn(KINDS if files in options.cold else ("threads", "warm"), turn):
                            for verb, ran in measure(tools, files, options.size, kind, turn, settings).items():
                                found.setdefault((files, kind, verb), []).append(ran)
            finally:
                tools.stop()
        print(table(found, options.files))
        print()
        for verb, cost in VERBS.items():
            known = f"the selector has {cost.here_us:g} and {cost.spark_us:g}"
            print(f"{verb}: {per_file(found, options.files, verb)}; {known}")
        for files in sorted({*options.cold} & {*options.files}):
            cold, warm = (median(ran.seconds for ran in found[files, kind, "push"]) for kind in ("cold", "warm"))
            print(f"a cold start adds {cold - warm:.1f} s to a push of {files:,} files (START_S = {START_S:g})")
        print(f"Spark does no work on up to {LARGE:,} entries or files")
        wrong = mistakes(found)
        for one in wrong:
            print(f"slower than it could be: {one}", file=sys.stderr)
        sys.stdout.flush()  # before it is cleaned up, which takes minutes
    finally:
        remove(folder)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
