"""The three tools that benchmarks compare, as whole commands, and the files that they move."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Literal

from _cpu import Meter
from _results import BIN, Requests, Row, s5cmd_program
from msgspec import Struct
from msgspec.structs import replace

from bayou.config import SyncConfig
from bayou_testing.latency import LatencyProxy
from bayou_testing.seaweed import SeaweedServer

Content = Literal["random", "json"]
"""Random bytes, which nothing compresses: the worst case. Or JSON records, as models produce."""

TOOLS = ("bayou", "rclone", "s5cmd")
PEERS = TOOLS[1:]
BUCKET = "bench"
WORKERS = 64
"""Requests at once, of each tool."""

PACKS = "pack_below" in SyncConfig.__struct_fields__
"""Whether this Bayou has packs."""

_SPAWN = multiprocessing.get_context("spawn")
_MANY = 50_000
"""From so many files on, several processes make them."""

_BLOCK = 5_000
_SETTLE = 0.05


# ---- commands ----


class Ran(Struct, frozen=True):
    """One command, run to its end. `cpu` and `memory_mb` are of its process and of children that it waited for."""

    seconds: float
    cpu: float
    memory_mb: float
    output: bytes = b""
    requests: Requests = Requests()
    engine: str | None = None


def run(*command: str | Path, env: Mapping[str, str], cwd: Path | None = None) -> Ran:
    """Run a command to its end, on a disk that has nothing left to write; an exit code other than 0 ends this run."""
    os.sync()
    with tempfile.TemporaryFile() as output:
        begin = time.perf_counter()
        process = subprocess.Popen(
            [str(part) for part in command], env=dict(env), cwd=cwd, stdout=output, stderr=subprocess.PIPE
        )
        assert process.stderr is not None
        errors = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{' '.join(map(str, command))} failed: {errors.decode(errors='replace')[-2000:]}")
        output.seek(0)
        return Ran(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1000, output.read())


class Tools:
    """The three tools on one bucket, each on a prefix of its own, at `url`: the server's, or a proxy's before it."""

    def __init__(self, server: SeaweedServer, folder: Path, *, url: str | None = None, workers: int = WORKERS) -> None:
        self.server = server
        self.url = url or server.url
        self.folder = folder
        self.workers = workers
        home = folder / "home"
        share_class_archives(home / ".cache")
        # The repos of a run are its own: they may send the server's credentials to the server.
        self.env = {**os.environ, **server.env(), "AWS_ENDPOINT_URL": self.url, "NO_PROXY": "*"}
        self.env |= {"HOME": str(home), "BAYOU_TRUST": "1"}
        self.env |= {
            "RCLONE_CONFIG_S_TYPE": "s3",
            "RCLONE_CONFIG_S_PROVIDER": "Other",
            "RCLONE_CONFIG_S_ENV_AUTH": "true",
            "RCLONE_CONFIG_S_ENDPOINT": self.url,
            "RCLONE_CONFIG_S_REGION": "us-east-1",
        }
        # As installed: what Python compiles it keeps, whatever the environment of this run says.
        for name in ("PYTHONDONTWRITEBYTECODE", "XDG_CACHE_HOME"):
            self.env.pop(name, None)
        self.env["PYTHONPYCACHEPREFIX"] = str(folder / "compiled")

    def repo(self, name: str, prefix: str, *, settings: str = "", lazy: bool = False) -> Path:
        """Make a repo and set it up against the store, as is done once in its life; nothing is moved yet.

        `settings` are sections of `bayou.toml`.
        """
        repo = self.folder / name
        run(BIN / "bayou", "init", repo, env=self.env)
        if not (self.folder / f"{prefix}.made").exists():
            self.bayou(repo, "datastore", "setup", f"s3://{BUCKET}/{prefix}", "--option", f"endpoint={self.url}")
            (self.folder / f"{prefix}.made").touch()
            text = ""
        else:  # joining by `setup` would pull everything; the pull is to be measured
            text = f'url = "s3://{BUCKET}/{prefix}"\n'
            text += 'hydrate = "lazy"\n' if lazy else ""
            text += f'[datastore.options]\nendpoint = "{self.url}"\n'
        with open(repo / "bayou.toml", "a") as file:
            file.write(f"{text}{settings}")
        return repo

    def bayou(self, repo: Path, *arguments: str) -> Ran:
        """Run a command of Bayou in a repo; the processor time of a Spark server is part of it."""
        with Meter(self.spark_servers) as meter:
            ran = self.counted(BIN / "bayou", *arguments, cwd=repo)
        return replace(ran, cpu=ran.cpu + meter.seconds)

    def sync(self, repo: Path, *arguments: str) -> Ran:
        ran = self.bayou(repo, "datastore", "sync", "--json", *arguments)
        return replace(ran, engine=json.loads(ran.output)["engine"])

    def rclone(self, verb: str, source: str | Path, target: str | Path) -> Ran:
        many = str(self.workers)
        flags = ["--transfers", many, "--checkers", many, "--s3-no-check-bucket", "--fast-list"]
        return self.counted(BIN / "rclone", verb, source, target, *flags)

    def s5cmd(self, verb: str, source: str, target: str) -> Ran:
        flags = ["--endpoint-url", self.url, "--numworkers", str(self.workers)]
        return self.counted(s5cmd_program(), *flags, verb, source, target)

    def counted(self, *command: str | Path, cwd: Path | None = None) -> Ran:
        """Run a command, and count the requests that the server had meanwhile."""
        before = self.server.requests()
        ran = run(*command, env=self.env, cwd=cwd)
        after = self.server.requests()
        while (later := _later(self.server)) != after:  # it counts a request after it has answered it
            after = later
        return replace(ran, requests=requests_of(after - before))

    def spark_servers(self) -> Iterator[int]:
        """Yield the process ids of the Spark servers of this run, which no command waits for."""
        for record in Path(self.env["HOME"], ".cache", "bayou", "spark").glob("*/server.json"):
            yield json.loads(record.read_text())["pid"]

    def warm(self) -> None:
        run(BIN / "bayou", "spark", "warm", env=self.env)

    def stop(self) -> None:
        run(BIN / "bayou", "spark", "stop", env=self.env)


def _later(server: SeaweedServer) -> Counter[str]:
    time.sleep(_SETTLE)
    return server.requests()


def requests_of(counted: Mapping[str, int]) -> Requests:
    known = {"put": ("PUT", "POST", "COPY"), "get": ("GET", "HEAD"), "list": ("LIST",)}
    sums = {name: sum(counted.get(kind, 0) for kind in kinds) for name, kinds in known.items()}
    return Requests(**sums, other=sum(counted.values()) - sum(sums.values()))


def share_class_archives(cache: Path) -> None:
    """Let a run's own cache have the archives of Spark's classes that this user has: each takes a minute to make."""
    classes = Path("bayou", "spark", "classes")
    known = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / classes
    (cache / classes).mkdir(parents=True, exist_ok=True)
    for archive in known.glob("*.jsa"):
        if not (cache / classes / archive.name).exists():
            (cache / classes / archive.name).symlink_to(archive)


@contextmanager
def delayed(tools: Tools, milliseconds: float, rate: float | None = None) -> Iterator[tuple[Tools, LatencyProxy]]:
    """Give the tools through a proxy that adds so much to each request, and moves `rate` bytes a second each way."""
    server = tools.server
    with LatencyProxy(server.host, server.port, seconds=milliseconds / 1000, rate=rate) as proxy:
        yield Tools(server, tools.folder, url=proxy.url, workers=tools.workers), proxy


def in_turn(tools: Collection[str], turn: int) -> list[str]:
    """Return the tools in the order of this round."""
    first = turn % len(tools)
    return [*tools][first:] + [*tools][:first]


# ---- files ----


def name_of(number: int) -> str:
    """Name a file as records do: every version has a directory of its own, with two files in it."""
    item = number // 2
    return f"data/bench/m{item % 50}/n{item}/1/{('raw', 'metadata.yaml')[number % 2]}"


def make_files(root: Path, files: int, size: int, content: Content = "random") -> None:
    """Make so many files of about this size, each of other content."""
    blocks = [(first, min(files, first + _BLOCK)) for first in range(0, files, _BLOCK)]
    make = partial(_make_block, str(root), size, content, os.urandom(size * 2) if content == "random" else b"")
    if files < _MANY:
        for block in blocks:
            make(*block)
        return
    with _SPAWN.Pool(max(2, os.cpu_count() or 1)) as pool:
        pool.starmap(make, blocks)


def json_record(number: int, size: int) -> bytes:
    """Return a JSON document of at most `size` bytes, or a little more if that is very small: readings of a host."""
    head = f'{{"id": {number}, "host": "web-{number % 97}.example.com", "total": {number % 1009}, "readings": ['
    parts: list[str] = []
    left, at = size - len(head) - 2, number
    while True:
        reading = (
            f'{{"at": "2031-{at % 12 + 1:02d}-{at % 28 + 1:02d}T{at % 24:02d}:{at * 7 % 60:02d}:00.000Z", '
            f'"status": "{("succeeded", "failed", "skipped")[at % 3]}", "cpu": {at * 37 % 1000 / 10}, '
            f'"disk": {at * 53 % 100}, "memory_bytes": {at * 7919 % (1 << 34)}}}'
        )
        left -= len(reading) + 2
        if parts and left < 0:
            return (head + ", ".join(parts) + "]}").encode()
        parts.append(reading)
        at += 1


def _make_block(root: str, size: int, content: Content, noise: bytes, first: int, last: int) -> None:
    for number in range(first, last):
        path = f"{root}/{name_of(number)}"
        if number % 2 == 0 or number == first:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        if content == "json":
            data = json_record(number, size)
        else:
            data = number.to_bytes(8, "big") + noise[number % size : number % size + size - 8]
        with open(path, "wb") as file:
            file.write(data)


def files_in(root: Path) -> int:
    return sum(len(names) for _, _, names in os.walk(root))


def move_tree(source: Path, repo: Path) -> Path:
    """Make a directory the tree of a repo: a copy of a hundred thousand files would push the rest out of the cache."""
    tree = repo / ".bayou/tree"
    if tree.exists():
        tree.rmdir()
    source.rename(tree)
    return tree


def remove(path: Path) -> None:
    if shutil.which("rm"):
        subprocess.run(["rm", "-rf", "--", str(path)], check=True)
    else:
        shutil.rmtree(path, ignore_errors=True)


# ---- rows ----


class Measured:
    """The commands of a benchmark as they come, by job and tool; their rows at the end."""

    def __init__(self, n: int, *, delay_ms: float = 0.0) -> None:
        self.n = n
        self.delay_ms = delay_ms
        self._ran: dict[str, dict[str, list[Ran]]] = {}

    def add(self, name: str, tool: str, ran: Ran) -> None:
        self._ran.setdefault(name, {}).setdefault(tool, []).append(ran)

    def rows(self, limits: Mapping[str, float]) -> list[Row]:
        """Return a row for each job and tool. Bayou's has the median of the ratios that each round had.

        A ratio is of times that were taken one right after the other: a shared machine is faster in one minute than in
        the next.
        """
        rows = []
        for name, by_tool in self._ran.items():
            for tool, ran in by_tool.items():
                ours = tool == TOOLS[0]
                rows.append(
                    Row(
                        name=name,
                        n=self.n,
                        tool=tool,
                        seconds=tuple(one.seconds for one in ran),
                        cpu=tuple(one.cpu for one in ran),
                        requests=tuple(one.requests for one in ran),
                        ratio=ratio(*([one.seconds for one in by_tool[which]] for which in TOOLS)) if ours else None,
                        limit=limits.get(name) if ours else None,
                        delay_ms=self.delay_ms,
                        memory_mb=max(one.memory_mb for one in ran),
                        engine=ran[-1].engine,
                    )
                )
        return rows


def ratio(ours: Sequence[float], *peers: Sequence[float]) -> float:
    """Return the median over the rounds of our time to the best of the others in that round."""
    if any(len(theirs) != len(ours) for theirs in peers):
        raise ValueError("each round has a time of each tool")
    return median(mine / min(theirs[turn] for theirs in peers) for turn, mine in enumerate(ours))


def tell(rows: Sequence[Row]) -> bool:
    """Print rows of all tools as a table, in medians; return whether every ratio is within its limit."""
    print(
        f"{'':22}{'files':>9}{'delay':>7}"
        + "".join(f"{tool:>9}{'cpu':>7}{'requests':>10}" for tool in TOOLS)
        + f"{'ratio':>8}{'limit':>7}"
    )
    jobs: dict[tuple[str, int, float], dict[str, Row]] = {}
    for row in rows:
        jobs.setdefault((row.name, row.n, row.delay_ms), {})[row.tool] = row
    for (name, n, delay), of in jobs.items():
        line = f"{name:22}{n:>9,}{f'{delay:g} ms' if delay else '':>7}"
        line += "".join(_cells(of.get(tool)) for tool in TOOLS)
        ours = of[TOOLS[0]]
        line += f"{ours.ratio:8.2f}" if ours.ratio is not None else f"{'':8}"
        line += f"{ours.limit:7.2f}" if ours.limit is not None else f"{'':7}"
        print(line + ("  above" if ours.within is False else ""))
    return all(row.within is not False for row in rows)


def _cells(row: Row | None) -> str:
    if row is None:
        return f"{'–':>9}{'':>7}{'':>10}"
    cpu = f"{row.cpu_time:6.2f}s" if row.cpu_time is not None else f"{'':7}"
    count = f"{row.request_count:>10,}" if row.request_count is not None else f"{'':10}"
    return f"{row.time:8.2f}s{cpu}{count}"
