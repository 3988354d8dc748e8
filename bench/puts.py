"""Many single puts, then a fresh clone: what it costs before and after `bayou datastore compact`.

    ./dev bench puts [--puts 2000] [--models 10] [--size 5000] [--rounds 3] [--delay-ms 20] [--json FILE]

The puts are made by one process through the Python API: each is a session of its own (lease, pull, save, push), so
each sends the requests of one `bayou data put`, without the start of an interpreter. A fresh clone is a whole `bayou
datastore sync --pull` of a new repo, near and through a proxy that adds `--delay-ms` to each request (0 leaves that
out). Requests are as the server counted them. Without the command `compact` in this Bayou, it measures what comes
before.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from _results import BIN, Row, add_json_option, result_of, save
from _tools import BUCKET, Ran, Tools, delayed, files_in, json_record, remove

from bayou_testing.seaweed import SeaweedServer

CHILD = "--as-the-process-that-puts"
BEFORE, AFTER = "fresh clone before compact", "fresh clone after compact"


def put(repo: str, puts: int, models: int, size: int) -> None:
    """Save so many items, each in a session of its own."""
    import bayou

    with bayou.open(repo) as opened:
        for model in range(models):
            opened.models.create("bench/host", f"host-{model}")
        for number in range(puts):
            with opened.session(f"host-{number % models}") as session:
                session.data.save(f"usage-{number}", json_record(number, size), content_type="application/json")


def row_of(name: str, n: int, ran: list[Ran], delay_ms: float = 0.0, before: list[Ran] | None = None) -> Row:
    compared = before and median(one.seconds for one in ran) / median(one.seconds for one in before)
    return Row(
        name=name,
        n=n,
        tool="bayou",
        seconds=tuple(one.seconds for one in ran),
        cpu=tuple(one.cpu for one in ran),
        requests=tuple(one.requests for one in ran),
        ratio=compared or None,
        delay_ms=delay_ms,
        memory_mb=max(one.memory_mb for one in ran),
    )


def clone(tools: Tools, name: str, rounds: int, wanted: int) -> list[Ran]:
    """Clone the store anew so many times."""
    found = []
    for turn in range(rounds):
        repo = tools.repo(f"{name}-{turn}", "puts")
        found.append(tools.sync(repo, "--pull"))
        pulled = files_in(repo / ".bayou/tree")
        if pulled != wanted:
            raise SystemExit(f"the clone has {pulled} of {wanted} files")
    print(f"{name}: {found[-1].seconds:.2f} s, {found[-1].requests.total:,} requests", file=sys.stderr, flush=True)
    return found


def can_compact(tools: Tools) -> bool:
    asked = subprocess.run(
        [BIN / "bayou", "datastore", "compact", "--help"], env=tools.env, capture_output=True, check=False
    )
    return asked.returncode == 0


def measure(near: Tools, far: Tools, options: argparse.Namespace) -> tuple[list[Row], list[str]]:
    repo = near.repo("writer", "puts")
    arguments = [str(one) for one in (repo, options.puts, options.models, options.size)]
    rows = [row_of("single puts", options.puts, [near.counted(sys.executable, __file__, CHILD, *arguments)])]
    wanted = files_in(repo / ".bayou/tree")
    places = [(near, 0.0), *([(far, options.delay_ms)] if options.delay_ms else [])]
    before = [clone(tools, f"before-{delay:g}", options.rounds, wanted) for tools, delay in places]
    rows += [row_of(BEFORE, wanted, ran, delay) for ran, (_, delay) in zip(before, places, strict=True)]
    if not can_compact(near):
        return rows, ["This Bayou has no `datastore compact`: only what comes before it was measured."]
    rows.append(row_of("compact", wanted, [near.bayou(repo, "datastore", "compact")]))
    for earlier, (tools, delay) in zip(before, places, strict=True):
        ran = clone(tools, f"after-{delay:g}", options.rounds, wanted)
        rows.append(row_of(AFTER, wanted, ran, delay, before=earlier))
    return rows, []


def main() -> int:
    if sys.argv[1:2] == [CHILD]:
        put(sys.argv[2], *map(int, sys.argv[3:]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--puts", type=int, default=2_000)
    parser.add_argument("--models", type=int, default=10)
    parser.add_argument("--size", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delay-ms", type=float, default=20.0)
    add_json_option(parser)
    options = parser.parse_args()

    folder = Path(tempfile.mkdtemp(prefix="bayou-bench-"))
    try:
        with SeaweedServer(folder / "seaweed", metrics=True) as server:
            server.create_bucket(BUCKET)
            near = Tools(server, folder)
            with delayed(near, options.delay_ms) as (far, _):
                rows, notes = measure(near, far, options)
        print(f"{options.puts:,} puts of JSON of {options.size:,} bytes, by the Python API in one process")
        print(f"{'':28}{'files':>8}{'delay':>8}{'seconds':>9}{'cpu':>8}{'requests':>10}{'of before':>11}")
        for row in rows:
            delay = f"{row.delay_ms:g} ms" if row.delay_ms else ""
            ratio = f"{row.ratio:11.2f}" if row.ratio is not None else ""
            numbers = f"{row.time:9.2f}{row.cpu_time:8.2f}{row.request_count:10,}"
            print(f"{row.name:28}{row.n:>8,}{delay:>8}{numbers}{ratio}")
        print(*notes, sep="\n", end="\n" if notes else "")
        if options.json:
            done = result_of("puts", rows, content="json", size=options.size, rounds=options.rounds, notes=notes)
            save(done, options.json)
    finally:
        remove(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
