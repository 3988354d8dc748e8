"""Compare `bayou datastore sync --engine spark` with rclone and s5cmd on a SeaweedFS of its own.

    ./dev bench bulk [--files N] [--warm-files N] [--size BYTES] [--rounds 3]

Cold: no Spark server runs when a command begins (its class archive is there, as on any machine that has used Spark
before). Warm: one does. Interpreter start and all else included. A ratio is of times of one round, and the median of
the rounds' counts, as in `sync`. Nothing is deleted before the end: after a mass delete ext4 takes ten times as long to
make a file, for minutes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from bayou_testing.seaweed import SeaweedServer
from sync import BIN, Tools, make_files, run, tell

LIMITS = {"cold push": 0.9, "cold pull": 0.9, "warm push": 1.2, "warm pull": 1.2}
"""Ratios to the better of rclone and s5cmd."""

Measured = dict[tuple[str, str], float]
"""Seconds, by verb and tool."""


def measure(tools: Tools, files: int, size: int, kind: str, turn: int) -> Measured:
    """Push and pull so many files with each tool."""
    named = f"{kind}{turn}"
    folder = tools.folder / named
    source = folder / "source"
    make_files(source, files, size)
    found: Measured = {}

    def note(verb: str, tool: str, measured: tuple[float, float]) -> None:
        found[verb, tool] = measured[0]
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--warm-files", type=int, default=10_000)
    parser.add_argument("--size", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as name, SeaweedServer(Path(name) / "seaweed") as server:
        server.create_bucket("bench")
        tools = Tools(server, Path(name))
        run(BIN / "bayou", "spark", "warm", env=tools.env)
        try:
            found: dict[str, dict[str, list[float]]] = {}
            for kind, files in (("cold", options.files), ("warm", options.warm_files)):
                for turn in range(options.rounds):
                    for (verb, tool), seconds in measure(tools, files, options.size, kind, turn).items():
                        found.setdefault(f"{kind} {verb}", {}).setdefault(tool, []).append(seconds)
        finally:
            run(BIN / "bayou", "spark", "stop", env=tools.env)
        print(f"{options.files:,} files cold, {options.warm_files:,} warm, {options.size:,} bytes each")
        good = tell(found, LIMITS)  # before it is cleaned up, which takes minutes
        print("ok" if good else "FAILED", flush=True)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
