"""Compare `bayou datastore sync --engine spark` with rclone and s5cmd on a SeaweedFS of its own.

    ./dev bench bulk [--files N] [--warm-files N] [--size BYTES] [--rounds 2]

Cold: no Spark server runs when a command begins (its class archive is there, as on any machine that has used Spark
before). Warm: one does. Interpreter start and all else included. The best of the rounds counts, of each tool: the
machine is shared, and noise only ever adds. Nothing is deleted before the end: after a mass delete ext4 takes ten times
as long to make a file, for minutes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from bayou.testing.seaweed import SeaweedServer
from sync import BIN, Tools, make_files, run

LIMITS = {"cold push": 0.9, "cold pull": 0.9, "warm push": 1.2, "warm pull": 1.2}
"""Ratios to the better of rclone and s5cmd."""


Measured = dict[tuple[str, str], tuple[float, float]]
"""Seconds and peak memory, of the command itself, by verb and tool."""


def measure(tools: Tools, files: int, size: int, kind: str, turn: int) -> Measured:
    """Push and pull so many files with each tool."""
    named = f"{kind}{turn}"
    folder = tools.folder / named
    source = folder / "source"
    make_files(source, files, size)
    found: Measured = {}

    def note(verb: str, tool: str, measured: tuple[float, float]) -> None:
        found[verb, tool] = measured
        print(f"{kind} {verb}, {files:,} files, {tool}: {measured[0]:.2f} s", file=sys.stderr, flush=True)

    def bayou(repo: Path, *arguments: str) -> tuple[float, float]:
        run(BIN / "bayou", "spark", "stop" if kind == "cold" else "warm", env=tools.env)
        return tools.bayou(repo, "sync", *arguments, "--engine", "spark", "--timeout", "3600")

    repo = tools.repo(f"{named}-a", f"bayou-{named}")
    (repo / ".bayou/tree").rmdir()
    source.rename(repo / ".bayou/tree")  # a copy of a hundred thousand files would push the rest out of the cache
    source = repo / ".bayou/tree"
    note("push", "bayou", bayou(repo, "--push", "--adopt"))
    note("push", "rclone", tools.rclone("copy", source, f"S:bench/rclone-{named}"))
    note("push", "s5cmd", tools.s5cmd("cp", f"{source}/", f"s3://bench/s5cmd-{named}/"))
    other = tools.repo(f"{named}-b", f"bayou-{named}")
    note("pull", "bayou", bayou(other, "--pull"))
    note("pull", "rclone", tools.rclone("copy", f"S:bench/rclone-{named}", folder / "rclone"))
    (folder / "s5cmd").mkdir()
    note("pull", "s5cmd", tools.s5cmd("cp", f"s3://bench/s5cmd-{named}/*", f"{folder}/s5cmd/"))
    count = sum(1 for path in (other / ".bayou/tree").rglob("*") if path.is_file())
    if count != files:
        raise SystemExit(f"bayou pulled {count} of {files} files")
    return found


def best(rounds: Sequence[Measured]) -> Measured:
    return {name: min(one[name] for one in rounds) for name in rounds[0]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--warm-files", type=int, default=10_000)
    parser.add_argument("--size", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as name, SeaweedServer(Path(name) / "seaweed") as server:
        server.create_bucket("bench")
        tools = Tools(server, Path(name))
        run(BIN / "bayou", "spark", "warm", env=tools.env)
        try:
            rows = {
                f"{kind} {what}": {tool: one for (verb, tool), one in found.items() if verb == what}
                for kind, files in (("cold", options.files), ("warm", options.warm_files))
                for found in [best([measure(tools, files, options.size, kind, turn) for turn in range(options.rounds)])]
                for what in ("push", "pull")
            }
        finally:
            run(BIN / "bayou", "spark", "stop", env=tools.env)
        print(f"{options.files:,} files cold, {options.warm_files:,} warm, {options.size:,} bytes each")
        good = tell(rows)  # before it is cleaned up, which takes minutes
    return int(not good)


def tell(rows: Mapping[str, Mapping[str, tuple[float, float]]]) -> bool:
    """Print the table; return whether every ratio is within its limit."""
    good = True
    print(f"{'':12}{'bayou':>9}{'rclone':>9}{'s5cmd':>9}{'ratio':>8}{'limit':>7}{'memory':>10}")
    for what, limit in LIMITS.items():
        (ours, memory), (rclone, _), (s5cmd, _) = (rows[what][tool] for tool in ("bayou", "rclone", "s5cmd"))
        ratio = ours / min(rclone, s5cmd)
        good &= ratio <= limit
        verdict = "" if ratio <= limit else "  above"
        print(f"{what:12}{ours:8.2f}s{rclone:8.2f}s{s5cmd:8.2f}s{ratio:8.2f}{limit:7.1f}{memory:7.0f} MB{verdict}")
    print("ok" if good else "FAILED", flush=True)
    return good


if __name__ == "__main__":
    sys.exit(main())
