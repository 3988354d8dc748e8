"""A large index in a directory: build, compare, change; what each costs, and what it must not cost.

    ./dev bench index [--entries 1000000]

Ends with 1 if one change writes more than a node per level and two, or if the head outgrows 25 KB.
"""

from __future__ import annotations

import argparse
import hashlib
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from bayou.core.clock import format_ms
from bayou.index.build import build
from bayou.index.entry import Entry
from bayou.index.head import Head, advance, encode_head, first_head
from bayou.index.log import Tally
from bayou.index.merge import merge
from bayou.index.node import Node, Ref, Root
from bayou.index.node_store import LocalNodes, NodeFiles
from bayou.index.tree import IndexTree, diff, find, scan

T = TypeVar("T")

HEAD_LIMIT = 25_000
COMMITS = 1000
START = 1_760_000_000_000


class CountedNodes(LocalNodes):
    """Nodes in a directory, counted."""

    def __init__(self, directory: Path, commit: str) -> None:
        super().__init__(NodeFiles(directory), commit)
        self.loaded = 0
        self._directory = directory

    def load(self, level: int, ref: Ref) -> Node:
        self.loaded += 1
        return super().load(level, ref)

    def bytes_written(self) -> int:
        return sum(
            path.stat().st_size
            for name in self.written
            for path in (self._directory / f"{name}.parquet", self._directory / f"{name[:64]}.parquet")
            if path.exists()
        )


@dataclass(frozen=True, slots=True)
class Line:
    """What one step cost."""

    step: str
    seconds: float
    peak_mb: float
    loaded: int
    written: int
    bytes_written: int
    note: str


def entry(number: int, salt: str = "") -> Entry:
    """Return one of many entries that look like a store's: hashes and ETags do not compress, the rest does."""
    path = f"data/acme/pipeline/model-{number // 1000:04}/result-{number // 5 % 200:03}/{number % 5 + 1}/raw"
    digest = hashlib.sha256(f"{path}{salt}".encode()).digest()
    push = f"01J8{number // 300:022X}"
    return Entry(path, push, number % 100_000, digest, f'"{digest[:16].hex()}"', None, START + number)


def entries(count: int) -> Iterator[Entry]:
    return map(entry, range(count))


class Bench:
    """Runs steps and keeps their lines."""

    def __init__(self, directory: Path) -> None:
        self.lines: list[Line] = []
        self._directory = directory

    def step(self, name: str, work: Callable[[CountedNodes], tuple[T, str]]) -> tuple[T, CountedNodes]:
        nodes = CountedNodes(self._directory, f"bench-{len(self.lines)}")
        start = time.perf_counter()
        result, note = work(nodes)
        seconds = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)
        written = len(nodes.written)
        self.lines.append(Line(name, seconds, peak, nodes.loaded, written, nodes.bytes_written(), note))
        return result, nodes

    def table(self) -> str:
        rows = [("step", "seconds", "peak MB", "loaded", "written", "KB written", "")]
        rows += [
            (
                line.step,
                f"{line.seconds:.3f}",
                f"{line.peak_mb:.0f}",
                f"{line.loaded:,}",
                f"{line.written:,}",
                f"{line.bytes_written / 1000:,.1f}",
                line.note,
            )
            for line in self.lines
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(6)]
        return "\n".join(
            "  ".join(
                [row[0].ljust(widths[0]), *(row[column].rjust(widths[column]) for column in range(1, 6)), row[6]]
            ).rstrip()
            for row in rows
        )


def described(root: Root | None) -> tuple[Root, str]:
    if root is None:
        raise SystemExit("the tree is empty")
    return root, f"{root.entries:,} entries, {root.level + 1} levels"


def counted(tree: Iterator[object]) -> tuple[int, str]:
    count = sum(1 for _ in tree)
    return count, f"{count:,} rows"


def head_after(commits: int, root: Root) -> tuple[int, str]:
    """Return the largest size that the head had."""
    store = "6f1c9b0e-2f5e-4c4e-9a55-0d1c5a4c8b11"
    commit = f"{1:08x}-0000-4000-8000-000000000000"
    at, by = format_ms(START), "ada@build-7.example"
    head: Head = first_head(store=store, commit=commit, at=at, by=by, root=root, tally=Tally())
    largest = 0
    for number in range(2, commits + 1):
        commit = f"{number:08x}-0000-4000-8000-000000000000"
        own = Root(f"{root.digest.hex()}-{commit}", root.digest, root.level, root.entries, root.bytes)
        tally = Tally(added=7, changed=3, bytes=123_456)
        at = format_ms(START + number * 1000)
        head, _ = advance(head, commit=commit, at=at, by=by, root=own, trash=None, tally=tally)
        largest = max(largest, len(encode_head(head)))
    return largest, f"{largest / 1000:.1f} KB at most in {commits:,} commits"


def run(count: int, directory: Path) -> int:
    bench = Bench(directory)
    old, _ = bench.step("build", lambda nodes: described(build(entries(count), nodes)))
    one = {entry(count // 2).path: entry(count // 2, "changed")}
    every = max(1, count // 1000)
    thousand = {entry(number).path: entry(number, "changed") for number in range(0, count, every)}

    first, nodes = bench.step("merge 1 change", lambda nodes: described(merge(IndexTree(nodes, old), one, nodes)))
    many, _ = bench.step(
        f"merge {len(thousand):,} changes", lambda nodes: described(merge(IndexTree(nodes, old), thousand, nodes))
    )
    bench.step("diff of 1 change", lambda nodes: counted(diff(IndexTree(nodes, old), IndexTree(nodes, first))))
    bench.step(
        f"diff of {len(thousand):,} changes", lambda nodes: counted(diff(IndexTree(nodes, old), IndexTree(nodes, many)))
    )
    bench.step("diff with nothing", lambda nodes: counted(diff(IndexTree(nodes, None), IndexTree(nodes, old))))
    bench.step("scan", lambda nodes: counted(scan(IndexTree(nodes, old))))
    bench.step("look up 1", lambda nodes: (find(IndexTree(nodes, old), entry(7).path), "1 row"))
    head, _ = bench.step(f"head, {COMMITS:,} commits", lambda _: head_after(COMMITS, old))

    print(bench.table())
    failures = []
    if len(nodes.written) > first.level + 1 + 2:
        failures.append(f"one change wrote {len(nodes.written)} nodes in a tree of {first.level + 1} levels")
    if head > HEAD_LIMIT:
        failures.append(f"the head has {head:,} bytes")
    for failure in failures:
        print(f"FAILED: {failure}", file=sys.stderr)
    return 1 if failures else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Build, compare and change a large index in a directory.")
    parser.add_argument("--entries", type=int, default=1_000_000)
    count: int = parser.parse_args().entries
    if count < 1:
        parser.error("--entries must be at least 1")
    with tempfile.TemporaryDirectory(prefix="bayou-bench-") as directory:
        return run(count, Path(directory))


if __name__ == "__main__":
    sys.exit(main())
