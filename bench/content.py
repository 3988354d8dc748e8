"""Spark over the content of many JSON items in a store: packs against one object for each file.

    ./dev bench content [--items 100000] [--size 5000] [--rounds 3] [--delay-ms 0] [--json FILE]

Two stores hold the same items, one with packs (`[sync] pack_below` as it is), one without (`pack_below = 0`). A lazy
clone of each asks `bayou data sql` for a sum over the content of every item; a clone does not keep what a query reads,
so each round fetches all of it. Times are of whole commands on a warm Spark server, the catalog being there; the same
query without content shows how much of that is not reading. Rounds alternate, the median of their ratios counts, and
the answers are checked. Exits 1 if packs are not 10 times as fast. Without packs in this Bayou it measures one object
for each file alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import median

from _results import Row, add_json_option, result_of, save
from _tools import BUCKET, PACKS, Ran, Tools, delayed, in_turn, json_record, move_tree, remove

from bayou.data.layout import Owner
from bayou.data.metadata import Metadata
from bayou_testing.seaweed import SeaweedServer

LIMIT = 0.1
SETTINGS = {"packs": "", "one object each": "\n[sync]\npack_below = 0\n"}
CONTENT = "SELECT count(*) AS items, sum(int(get_json_object(string(content), '$.total'))) AS total FROM data"
PLAIN = "SELECT count(*) AS items, sum(size) AS total FROM data"
BLOCK = 1000
"""Items of one model."""

Found = dict[str, dict[str, list[Ran]]]
"""What each query took, by its name and the kind of store."""


def make_items(root: Path, count: int, size: int) -> int:
    """Make so many items of one version each; return the sum of their totals."""
    blocks = [(first, min(count, first + BLOCK)) for first in range(0, count, BLOCK)]
    with multiprocessing.get_context("spawn").Pool(max(2, os.cpu_count() or 1)) as pool:
        return sum(pool.starmap(partial(_make_block, str(root), size), blocks))


def _make_block(root: str, size: int, first: int, last: int) -> int:
    model = f"{first // BLOCK:08x}-0000-4000-8000-000000000000"
    owner = Owner(f"model-{first // BLOCK}", model, "acme/pipeline", "bench")
    total = 0
    for number in range(first, last):
        data = json_record(number, size)
        folder = f"{root}/data/acme/pipeline/{model}/result-{number}/1"
        os.makedirs(folder)
        known = Metadata(
            id=f"{number:08x}-0000-4000-9000-000000000000",
            name=f"result-{number}",
            version=1,
            content_type="application/json",
            size=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            owner=owner,
            created_at="2031-01-01T00:00:00.000Z",
        )
        for name, content in (("raw", data), ("metadata.yaml", known.to_bytes())):
            with open(f"{folder}/{name}", "wb") as file:
                file.write(content)
        total += json.loads(data)["total"]
    return total


def make_stores(tools: Tools, options: argparse.Namespace, kinds: Mapping[str, str]) -> int:
    """Push the same items to a store of each kind; return the sum that a query is to find."""
    tree = tools.folder / "source"
    total = make_items(tree, options.items, options.size)
    for kind, settings in kinds.items():
        repo = tools.repo(f"{prefix_of(kind)}-a", prefix_of(kind), settings=settings)
        tree = move_tree(tree, repo)
        ran = tools.sync(repo, "--push", "--adopt", "--timeout", "7200")
        print(f"{kind}: pushed in {ran.seconds:.1f} s, {ran.requests.total:,} requests", file=sys.stderr, flush=True)
    return total


def prefix_of(kind: str) -> str:
    return kind.replace(" ", "-")


def ask(tools: Tools, repo: Path, query: str) -> tuple[Ran, int]:
    """Run a query as a whole command on a warm server; return its second column."""
    tools.warm()
    ran = tools.bayou(repo, "data", "sql", "--json", query)
    return ran, json.loads(ran.output)["results"][0]["total"]


def measure(tools: Tools, options: argparse.Namespace, kinds: Mapping[str, str]) -> Found:
    total = make_stores(tools, options, kinds)
    clones = {}
    for kind in kinds:
        clones[kind] = tools.repo(f"{prefix_of(kind)}-b", prefix_of(kind), lazy=True)
        tools.sync(clones[kind], "--pull", "--timeout", "7200")
        ask(tools, clones[kind], PLAIN)  # makes the catalog
    found: Found = {"content": {}, "no content": {}}
    for turn in range(options.rounds):
        for kind in in_turn(kinds, turn):
            ran, sum_found = ask(tools, clones[kind], CONTENT)
            if sum_found != total:
                raise SystemExit(f"{kind}: the sum is {sum_found}, not {total}")
            said = f"{ran.seconds:.1f} s, {ran.requests.total:,} requests"
            print(f"query over content, {kind}: {said}", file=sys.stderr, flush=True)
            found["content"].setdefault(kind, []).append(ran)
            found["no content"].setdefault(kind, []).append(ask(tools, clones[kind], PLAIN)[0])
    return found


def rows_of(found: Found, items: int, delay_ms: float) -> list[Row]:
    rows = []
    for name, by_kind in found.items():
        for kind, ran in by_kind.items():
            compared = kind == "packs" and "one object each" in by_kind
            pairs = zip(ran, by_kind["one object each"], strict=True) if compared else ()
            rows.append(
                Row(
                    name=f"query, {name}",
                    n=items,
                    tool=kind,
                    seconds=tuple(one.seconds for one in ran),
                    cpu=tuple(one.cpu for one in ran),
                    requests=tuple(one.requests for one in ran),
                    ratio=median(packs.seconds / each.seconds for packs, each in pairs) if compared else None,
                    limit=LIMIT if compared and name == "content" else None,
                    delay_ms=delay_ms,
                    memory_mb=max(one.memory_mb for one in ran),
                    engine="spark",
                )
            )
    return rows


def tell(rows: list[Row]) -> bool:
    print(f"{'':22}{'':18}{'seconds':>9}{'cpu':>9}{'requests':>10}{'ratio':>8}{'limit':>7}")
    for row in rows:
        ratio = f"{row.ratio:8.3f}" if row.ratio is not None else f"{'':8}"
        limit = f"{row.limit:7.2f}" if row.limit is not None else ""
        above = "  above" if row.within is False else ""
        print(
            f"{row.name:22}{row.tool:18}{row.time:9.2f}{row.cpu_time:9.2f}{row.request_count:10,}{ratio}{limit}{above}"
        )
    return all(row.within is not False for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--size", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delay-ms", type=float, default=0.0)
    add_json_option(parser)
    options = parser.parse_args()

    if not PACKS:
        print("this Bayou has no packs ([sync] pack_below): only one object for each file is measured")
    kinds = SETTINGS if PACKS else {"one object each": ""}
    folder = Path(tempfile.mkdtemp(prefix="bayou-bench-"))
    try:
        with SeaweedServer(folder / "seaweed", metrics=True) as server:
            server.create_bucket(BUCKET)
            near = Tools(server, folder)
            with delayed(near, options.delay_ms) as (far, _):
                tools = far if options.delay_ms else near
                try:
                    rows = rows_of(measure(tools, options, kinds), options.items, options.delay_ms)
                finally:
                    tools.stop()
        print(f"{options.items:,} items, JSON of {options.size:,} bytes, medians of {options.rounds} rounds")
        good = tell(rows)
        if options.json:
            save(result_of("content", rows, content="json", size=options.size, rounds=options.rounds), options.json)
        print("ok" if good else "FAILED", flush=True)
    finally:
        remove(folder)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
