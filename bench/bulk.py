"""Many files: `bayou datastore sync` against rclone and s5cmd on a SeaweedFS of its own; up to a million on Spark.

    ./dev bench bulk [--files 100000] [--engine auto|point|spark] [--size 5000] [--content random|json] [--rounds 3]
                     [--warm-files 0] [--json FILE]
    ./dev bench bulk --million [--sizes 250000 500000 1000000] [--million-size 1000] [--json FILE]

The engine is the one that Bayou chooses; the row says which. Cold: no Spark server runs when a command begins (its
class archive is there, as on any machine that has used Spark before). `--warm-files` adds rows on Spark with a server
that runs. Interpreter start and all else included. CPU is user and system time of the command with its children, and of
the Spark server; requests are as the server counted them. A ratio is of times of one round, and the median of the
rounds' counts, as in `sync`. Nothing is deleted before the end: after a mass delete ext4 takes ten times as long to
make a file, for minutes.

`--million` pushes a million files and fewer on Spark: planned, uploaded and committed. It exits 1 if the command's own
process takes 1 GB or more, or if the time per file grows by more than a quarter from one size to the next.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import _growth
from _results import Row, add_json_option, result_of, save
from _tools import BUCKET, TOOLS, Measured, Ran, Tools, files_in, in_turn, make_files, move_tree, remove, tell

from bayou_testing.seaweed import SeaweedServer

LIMITS = {"cold push": 0.5, "cold pull": 0.6}
WARM_LIMITS = {"warm push": 1.2, "warm pull": 1.2}
MEMORY_MB = 1000
GROWTH = 1.25
PATIENCE = ("--timeout", "7200")


def one_round(tools: Tools, found: Measured, kind: str, turn: int, options: argparse.Namespace) -> None:
    """Push and pull so many files with each tool."""
    named = f"{kind}{turn}"
    folder = tools.folder / named
    make_files(folder / "source", found.n, options.size, options.content)
    engine = "spark" if kind == "warm" else options.engine

    def note(verb: str, tool: str, ran: Ran) -> None:
        found.add(f"{kind} {verb}", tool, ran)
        said = f" ({ran.engine})" if ran.engine else ""
        print(f"{kind} {verb}, {found.n:,} files, {tool}{said}: {ran.seconds:.2f} s", file=sys.stderr, flush=True)

    def bayou(repo: Path, *arguments: str) -> Ran:
        if kind == "cold":
            tools.stop()
        else:
            tools.warm()
        return tools.sync(repo, *arguments, "--engine", engine, *PATIENCE)

    repo = tools.repo(f"{named}-a", f"bayou-{named}")
    source = move_tree(folder / "source", repo)
    pushes = {
        "bayou": lambda: bayou(repo, "--push", "--adopt"),
        "rclone": lambda: tools.rclone("copy", source, f"S:{BUCKET}/rclone-{named}"),
        "s5cmd": lambda: tools.s5cmd("cp", f"{source}/", f"s3://{BUCKET}/s5cmd-{named}/"),
    }
    for tool in in_turn(TOOLS, turn):
        note("push", tool, pushes[tool]())
    other = tools.repo(f"{named}-b", f"bayou-{named}")
    (folder / "s5cmd").mkdir()
    pulls = {
        "bayou": lambda: bayou(other, "--pull"),
        "rclone": lambda: tools.rclone("copy", f"S:{BUCKET}/rclone-{named}", folder / "rclone"),
        "s5cmd": lambda: tools.s5cmd("cp", f"s3://{BUCKET}/s5cmd-{named}/*", f"{folder}/s5cmd/"),
    }
    for tool in in_turn(TOOLS, turn):
        note("pull", tool, pulls[tool]())
    for tool, pulled in (("bayou", other / ".bayou/tree"), *((one, folder / one) for one in TOOLS[1:])):
        if files_in(pulled) != found.n:
            raise SystemExit(f"{tool} pulled {files_in(pulled)} of {found.n} files")


def compare(tools: Tools, options: argparse.Namespace) -> tuple[bool, list[Row]]:
    rows: list[Row] = []
    for kind, files, limits in (("cold", options.files, LIMITS), ("warm", options.warm_files, WARM_LIMITS)):
        if files:
            found = Measured(files)
            for turn in range(options.rounds):
                one_round(tools, found, kind, turn, options)
            rows += found.rows(limits)
    return tell(rows), rows


def grow(tools: Tools, options: argparse.Namespace) -> tuple[bool, list[Row]]:
    """Push more and more files on a warm server."""
    rows: list[Row] = []
    for files in sorted(options.sizes):
        repo = tools.repo(f"million-{files}", f"million-{files}")
        make_files(tools.folder / "source", files, options.million_size, options.content)
        move_tree(tools.folder / "source", repo)
        tools.warm()
        ran = tools.sync(repo, "--push", "--adopt", "--engine", "spark", *PATIENCE)
        print(f"{files:,} files: {ran.seconds:.1f} s, {ran.memory_mb:.0f} MB", file=sys.stderr, flush=True)
        rows.append(
            Row(
                name="push on Spark",
                n=files,
                tool="bayou",
                seconds=(ran.seconds,),
                cpu=(ran.cpu,),
                requests=(ran.requests,),
                memory_mb=ran.memory_mb,
                engine=ran.engine,
            )
        )
    times = {"push": {row.n: row.time for row in rows}}
    print(*_growth.table(times), sep="\n")
    peak = max(row.memory_mb or 0.0 for row in rows)
    worst = _growth.worst(times, ["push"])
    print(f"the command's process took {peak:.0f} MB at most (under {MEMORY_MB})")
    print(f"the time per file grew {worst:.2f} times from one size to the next at most (limit {GROWTH})")
    return peak < MEMORY_MB and worst <= GROWTH, rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--engine", choices=("auto", "point", "spark"), default="auto")
    parser.add_argument("--warm-files", type=int, default=0)
    parser.add_argument("--size", type=int, default=5_000)
    parser.add_argument("--content", choices=("random", "json"), default="random")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--million", action="store_true", help="push --sizes on Spark instead")
    parser.add_argument("--sizes", type=int, nargs="+", default=[250_000, 500_000, 1_000_000])
    parser.add_argument("--million-size", type=int, default=1_000, help="bytes of a file of --million")
    add_json_option(parser)
    options = parser.parse_args()

    folder = Path(tempfile.mkdtemp(prefix="bayou-bench-"))
    try:
        with SeaweedServer(folder / "seaweed", metrics=True) as server:
            server.create_bucket(BUCKET)
            tools = Tools(server, folder)
            tools.warm()
            try:
                good, rows = grow(tools, options) if options.million else compare(tools, options)
            finally:
                tools.stop()
        size = options.million_size if options.million else options.size
        print(f"files of {size:,} bytes, {options.content}")
        if options.json:
            name = "million" if options.million else "bulk"
            rounds = 1 if options.million else options.rounds
            save(result_of(name, rows, content=options.content, size=size, rounds=rounds), options.json)
        print("ok" if good else "FAILED", flush=True)  # before it is cleaned up, which takes minutes
    finally:
        remove(folder)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
