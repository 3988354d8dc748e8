"""Whole sync commands against rclone and s5cmd, on the same SeaweedFS in the same run, near and 20 ms away.

    ./dev bench sync [--files 10000] [--size 5000] [--content random|json] [--rounds 5] [--large-mib 2048]
                     [--delay-ms 20] [--rate-mb 1] [--workers 64] [--json FILE]

Cold push, cold pull, no-op, and one changed file, by the engine that Bayou chooses, interpreter start included; then
the same through a proxy that adds `--delay-ms` to each request, for all three tools (0 leaves that out). With
`--rate-mb` the proxy also moves only so many MB a second each way; then there are only these rows, and Bayou must not
be slower than the others in a cold push or pull. Ratios are to the better of the two others. CPU is user and system
time of the command with its children; requests are as the server counted them. Several `--files` give a row for each;
limits count for 10,000 files and more (the aim is 0.3 for a cold push and 0.4 for a cold pull). Exits 1 when a ratio
is above its limit, or a large file takes more than 400 MB.

A ratio is of times that were taken one right after the other, and the median of the rounds' counts: the machine is
shared, and as a whole faster in one minute than in the next. The tools take turns at being first, and each begins with
a disk that has nothing left to write for the one before.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from _results import Row, add_json_option, result_of, save
from _tools import (
    BUCKET,
    TOOLS,
    WORKERS,
    Measured,
    Ran,
    Tools,
    delayed,
    files_in,
    in_turn,
    make_files,
    name_of,
    tell,
)

from bayou_testing.seaweed import SeaweedServer

LIMITS = {"cold push": 0.5, "cold pull": 0.6, "no-op": 0.2, "one changed file": 0.25}
DELAYED_LIMITS = {"cold push": 0.25, "cold pull": 0.25}
SLOW_LIMITS = {"cold push": 1.05, "cold pull": 1.05}
"""On a slow link the bytes decide, which are the same for all."""
LIMITS_FROM = 10_000
LARGE_MB = 400

Commands = Mapping[str, Callable[[], Ran]]


def one_round(tools: Tools, source: Path, named: str, turn: int, note: Callable[[str, str, Ran], None]) -> None:
    folder = tools.folder
    repo = tools.repo(f"a{named}", f"bayou{named}")
    shutil.copytree(source, repo / ".bayou/tree", dirs_exist_ok=True)
    pushes: Commands = {
        "bayou": lambda: tools.sync(repo, "--push", "--adopt"),
        "rclone": lambda: tools.rclone("copy", source, f"S:{BUCKET}/rclone{named}"),
        "s5cmd": lambda: tools.s5cmd("cp", f"{source}/", f"s3://{BUCKET}/s5cmd{named}/"),
    }
    for tool in in_turn(TOOLS, turn):
        note("cold push", tool, pushes[tool]())

    other = tools.repo(f"b{named}", f"bayou{named}")
    (folder / f"s5cmd{named}").mkdir()
    pulls: Commands = {
        "bayou": lambda: tools.sync(other, "--pull"),
        "rclone": lambda: tools.rclone("copy", f"S:{BUCKET}/rclone{named}", folder / f"rclone{named}"),
        "s5cmd": lambda: tools.s5cmd("cp", f"s3://{BUCKET}/s5cmd{named}/*", f"{folder}/s5cmd{named}/"),
    }
    for tool in in_turn(TOOLS, turn):
        note("cold pull", tool, pulls[tool]())
    wanted = files_in(source)
    for tool, pulled in (("bayou", other / ".bayou/tree"), *((t, folder / f"{t}{named}") for t in TOOLS[1:])):
        if files_in(pulled) != wanted:
            raise SystemExit(f"{tool} pulled {files_in(pulled)} of {wanted} files")

    syncs: Commands = {
        "bayou": lambda: tools.sync(repo),
        "rclone": lambda: tools.rclone("sync", source, f"S:{BUCKET}/rclone{named}"),
        "s5cmd": lambda: tools.s5cmd("sync", f"{source}/", f"s3://{BUCKET}/s5cmd{named}/"),
    }
    for again in range(3):
        for tool in in_turn(TOOLS, turn + again):
            note("no-op", tool, syncs[tool]())
    for again in range(3):
        changed = os.urandom(5000)
        for root in (repo / ".bayou/tree", source):
            (root / name_of(2 * again)).write_bytes(changed)
        for tool in in_turn(TOOLS, turn + again):
            note("one changed file", tool, syncs[tool]())


def measure(tools: Tools, files: int, options: argparse.Namespace, delay_ms: float) -> list[Row]:
    """Go through the rounds for so many files, near or through a proxy."""
    found = Measured(files, delay_ms=delay_ms)

    def note(name: str, tool: str, ran: Ran) -> None:
        if name.startswith("cold"):
            far = f", {delay_ms:g} ms away" if delay_ms else ""
            print(f"{name} of {files:,} files{far}, {tool}: {ran.seconds:.2f} s", file=sys.stderr, flush=True)
        found.add(name, tool, ran)

    source = tools.folder / f"source-{files}-{delay_ms:g}"
    make_files(source, files, options.size, options.content)
    for turn in range(options.rounds):
        one_round(tools, source, f"-{files}-{delay_ms:g}-{turn}", turn, note)
    if options.rate_mb:
        return found.rows(SLOW_LIMITS)
    limits = DELAYED_LIMITS if delay_ms else LIMITS
    return found.rows(limits if files >= LIMITS_FROM else {})


def large(tools: Tools, mib: int) -> tuple[bool, list[Row]]:
    repo = tools.repo("large-a", "large")
    (repo / ".bayou/tree/files").mkdir(parents=True, exist_ok=True)
    with open(repo / ".bayou/tree/files/large", "wb") as file:
        block = os.urandom(1 << 20)
        for number in range(mib):
            file.write(number.to_bytes(8, "big") + block[8:])
    up = tools.sync(repo, "--push", "--adopt")
    down = tools.sync(tools.repo("large-b", "large"), "--pull")
    print(
        f"{mib} MiB: up {up.seconds:.1f} s, {up.memory_mb:.0f} MB; "
        f"down {down.seconds:.1f} s, {down.memory_mb:.0f} MB (limit {LARGE_MB} MB)"
    )
    rows = [
        Row(f"one file of {mib} MiB, {verb}", 1, "bayou", (ran.seconds,), (ran.cpu,), (ran.requests,),
            memory_mb=ran.memory_mb, engine=ran.engine)
        for verb, ran in (("push", up), ("pull", down))
    ]  # fmt: skip
    return max(up.memory_mb, down.memory_mb) <= LARGE_MB, rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, nargs="+", default=[10_000])
    parser.add_argument("--size", type=int, default=5_000)
    parser.add_argument("--content", choices=("random", "json"), default="random")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--large-mib", type=int, default=2048)
    parser.add_argument("--delay-ms", type=float, default=20.0)
    parser.add_argument("--rate-mb", type=float, default=None, help="MB a second of the link, each way")
    parser.add_argument("--workers", type=int, default=WORKERS, help="requests at once of rclone and s5cmd")
    add_json_option(parser)
    options = parser.parse_args()

    rows: list[Row] = []
    notes = [f"rclone and s5cmd have {options.workers} requests at once, Bayou its default of 64."]
    with (
        tempfile.TemporaryDirectory() as name,
        SeaweedServer(Path(name) / "seaweed", metrics=True) as server,
    ):
        server.create_bucket(BUCKET)
        tools = Tools(server, Path(name), workers=options.workers)
        rate = options.rate_mb * 1e6 if options.rate_mb else None
        for files in options.files if rate is None else ():
            rows += measure(tools, files, options, 0.0)
        if options.delay_ms or rate is not None:
            with delayed(tools, options.delay_ms, rate) as (far, proxy):
                for files in options.files:
                    rows += measure(far, files, options, options.delay_ms)
                used = proxy.usage()
            notes.append(
                f"The proxy used {used.cpu / max(1, used.requests) * 1e6:.0f} µs of processor time for each of "
                f"{used.requests:,} requests."
            )
            if rate is not None:
                notes.append(f"The link moved {options.rate_mb:g} MB/s each way.")
        good, more = large(tools, options.large_mib) if options.large_mib else (True, [])

    print(f"files of {options.size:,} bytes, {options.content}; medians of {options.rounds} rounds")
    good &= tell(rows)
    peaks = {tool: max(row.memory_mb or 0.0 for row in rows if row.tool == tool) for tool in TOOLS}
    print("peak memory, MB: " + ", ".join(f"{tool} {peak:.0f}" for tool, peak in peaks.items()))
    print(f"peak memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000:.0f} MB")
    print(*notes, sep="\n")
    if options.json:
        done = result_of(
            "sync", rows + more, content=options.content, size=options.size, rounds=options.rounds, notes=notes
        )
        save(done, options.json)
    print("ok" if good else "FAILED")
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
