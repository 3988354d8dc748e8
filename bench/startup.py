"""Start-up: five short commands as whole processes, of this Bayou and of another one.

    ./dev bench startup [--against PROGRAM] [--rounds 15] [--files 100]

Each program has a repo of its own with so many files in a directory store, so that nothing but the start of the
interpreter, imports and a few files count. `--against` names the `bayou` of another environment, such as an earlier
commit's. The programs take turns; the median of the rounds counts. Exits 1 if a command of this Bayou takes 20 ms
longer than the other program's.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from statistics import median

from _results import BIN
from _tools import Ran, remove, run

SLOWER_S = 0.02
COMMANDS = {
    "bayou --help": ("--help",),
    "bayou --version": ("--version",),
    "no-op sync": ("datastore", "sync"),
    "status": ("datastore", "status"),
    "data list": ("data", "list"),
}


def make_repo(program: Path, folder: Path, files: int, env: dict[str, str]) -> Path:
    """Make a repo whose tree is in sync with a directory store."""
    store = folder / "store"
    store.mkdir(parents=True)
    repo = folder / "repo"
    run(program, "init", repo, env=env)
    for number in range(files):
        path = repo / f".bayou/tree/files/{number % 10}/{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{number}\n")
    run(program, "datastore", "setup", store.as_uri(), env=env, cwd=repo)
    run(program, "datastore", "sync", "--adopt", env=env, cwd=repo)
    return repo


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", type=Path, help="the bayou program of another environment")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--files", type=int, default=100)
    options = parser.parse_args()

    programs = {"this": BIN / "bayou"} | ({"other": options.against} if options.against else {})
    folder = Path(tempfile.mkdtemp(prefix="bayou-bench-"))
    try:
        env = {**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "XDG_CACHE_HOME": str(folder)}
        repos = {name: make_repo(program, folder / name, options.files, env) for name, program in programs.items()}
        found: dict[tuple[str, str], list[Ran]] = {}
        for _ in range(options.rounds):
            for command, arguments in COMMANDS.items():
                for name, program in programs.items():
                    ran = run(program, *arguments, env=env, cwd=repos[name])
                    found.setdefault((command, name), []).append(ran)
    finally:
        remove(folder)
    print(f"{'milliseconds, CPU':20}", *(f"{name:>16}" for name in programs))
    good = True
    for command in COMMANDS:
        seconds = [median(ran.seconds for ran in found[command, name]) for name in programs]
        cpu = [median(ran.cpu for ran in found[command, name]) for name in programs]
        good &= seconds[0] - seconds[-1] < SLOWER_S
        print(f"{command:20}", *(f"{one * 1e3:9.0f}{two * 1e3:7.0f}" for one, two in zip(seconds, cpu, strict=True)))
    print("ok" if good else "FAILED", flush=True)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
