"""Threads of one process against Spark on this machine: the measurement behind the choice of `bayou.engine.select`.

    ./dev bench engine [--files 1000 3000] [--size 5000] [--rounds 1] [--cold 3000]

Push, pull and verify of so many files on a SeaweedFS of its own, whole commands, interpreter start included: by
threads (`--engine point`) and on a warm server (`--engine spark`), one right after the other; of `--cold` files also
where no server runs when the command begins. Prints the table of docs/spark.md, as Markdown, and what it says of the
selector's numbers. Exits 1 where the selector would choose the slower of two by more than a tenth.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from bayou.engine.select import FILES_PER_S, LARGE, START_S, Selector
from bayou_testing.seaweed import SeaweedServer
from sync import BIN, Tools, make_files, run

VERBS = ("push", "pull", "verify")
KINDS = {"threads": "point", "warm": "spark", "cold": "spark"}

Measured = dict[tuple[int, str, str], list[float]]
"""Seconds of each round, by number of files, kind and verb."""


def measure(tools: Tools, files: int, size: int, kind: str, turn: int) -> dict[str, float]:
    """Push, pull and verify so many files, on a prefix of their own."""
    named = f"{kind}{files}-{turn}"

    def seconds(repo: Path, *arguments: str) -> float:
        if kind != "threads":
            run(BIN / "bayou", "spark", "stop" if kind == "cold" else "warm", env=tools.env)
        return tools.bayou(repo, *arguments, "--engine", KINDS[kind], "--timeout", "3600")[0]

    repo = tools.repo(f"{named}-a", named)
    make_files(repo / ".bayou/tree", files, size)
    found = {"push": seconds(repo, "sync", "--push", "--adopt")}
    other = tools.repo(f"{named}-b", named)
    found["pull"] = seconds(other, "sync", "--pull")
    found["verify"] = seconds(other, "verify")
    for verb, taken in found.items():
        print(f"{files:,} files, {kind}, {verb}: {taken:.2f} s", file=sys.stderr, flush=True)
    return found


def table(found: Measured, sizes: Sequence[int]) -> str:
    """Return seconds for push / pull / verify, one line for each number of files."""
    kinds = [kind for kind in KINDS if any(kind == one for _, one, _ in found)]
    lines = ["| files | " + " | ".join(kinds) + " |", "|---" * (len(kinds) + 1) + "|"]
    for files in sizes:
        cells = [[found.get((files, kind, verb)) for verb in VERBS] for kind in kinds]
        told = [" / ".join(f"{median(one):.1f}" if one else "–" for one in cell) for cell in cells]
        lines.append(f"| {files:,} | " + " | ".join(told) + " |")
    return "\n".join(lines)


def mistakes(found: Measured) -> list[str]:
    """Say where the selector would choose what took longer, by more than a tenth."""
    told = []
    for (files, kind, verb), taken in found.items():
        if kind == "threads":
            continue
        here, there = median(found[files, "threads", verb]), median(taken)
        chosen = Selector(cores=2, near=lambda kind=kind: kind == "warm").choose(files)
        if (there if chosen.spark else here) > 1.1 * min(here, there):
            told.append(f"{verb} of {files:,} files, {kind}: {here:.1f} s here, {there:.1f} s on Spark; {chosen.why}")
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, nargs="+", default=[1000, 3000])
    parser.add_argument("--cold", type=int, nargs="*", default=[3000])
    parser.add_argument("--size", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()

    found: Measured = {}
    with tempfile.TemporaryDirectory() as name, SeaweedServer(Path(name) / "seaweed") as server:
        tools = Tools(server, Path(name))
        server.create_bucket("bench")
        try:
            for turn in range(options.rounds):
                for files in options.files:
                    for kind in KINDS if files in options.cold else ("threads", "warm"):
                        for verb, taken in measure(tools, files, options.size, kind, turn).items():
                            found.setdefault((files, kind, verb), []).append(taken)
        finally:
            run(BIN / "bayou", "spark", "stop", env=tools.env)
    print(table(found, options.files))
    most = max(options.files)
    rate = most / median(found[most, "threads", "push"])
    print(f"\nthreads push {rate:,.0f} files a second (FILES_PER_S = {FILES_PER_S:,.0f})")
    for files in sorted({*options.cold} & {*options.files}):
        start = median(found[files, "cold", "push"]) - median(found[files, "warm", "push"])
        print(f"a cold start adds {start:.1f} s to a push of {files:,} files (START_S = {START_S:g})")
    print(f"Spark does the work from {LARGE:,} entries or files on")
    wrong = mistakes(found)
    for one in wrong:
        print(f"slower than it could be: {one}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
