"""The catalog at 10,000 and 100,000 versions: rebuild, list, query, and what a look at an unchanged tree costs.

    ./dev bench catalog [--versions 10000 100000] [--rounds 3]

For a datastore that is a directory, and for the cache of a store. Ten versions of each item, ten items of each model.
Whole commands include the start of the interpreter, with compiled modules, as installed ones are. CPU is user and
system time, and what to look at where others use the machine too; the best of the rounds counts, but for the rebuild,
which is done once, by this process alone: noise only ever adds. Growth is how the CPU time per version changes from
the smaller to the larger: 1.0 is linear.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bayou.data.catalog import Catalog
from bayou.data.engine import CatalogEngine
from bayou.data.layout import Owner
from bayou.data.metadata import Metadata
from bayou.data.query import query
from bayou.data.records import Records
from bayou.repo import Repo, init_repo, open_repo

BAYOU = Path(sys.executable).parent / "bayou"
VERSIONS, ITEMS = 10, 10
INDEXED = 'name == "item-3" && latest && size > 10'
SCANNED = 'content_type == "application/json" && tags.env == "prod" && size == 17'


def metadata(number: int) -> Metadata:
    item, version = divmod(number, VERSIONS)
    model, place = divmod(item, ITEMS)
    owner = Owner(f"model-{model}", f"{model:08x}-0000-4000-8000-000000000000", "aws/ec2", "repo")
    return Metadata(
        id=f"{item:08x}-0000-4000-9000-000000000000",
        name=f"item-{place}",
        version=version + 1,
        content_type="application/json" if item % 2 else "text/plain",
        size=number % 1000,
        sha256="0" * 64,
        owner=owner,
        created_at=f"2026-01-{version + 1:02d}T00:00:00.000Z",
        tags={"env": "prod"} if item % 3 else {},
    )


def lay(repo: Repo, versions: int) -> None:
    """Write the files of versions, without the care that a repository takes of each."""
    for number in range(versions):
        made = metadata(number)
        path = repo.tree_root / made.location.metadata
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(made.to_bytes())
        (path.parent / "raw").write_bytes(b"{}")
    for directory, _, _ in os.walk(repo.tree_root):
        os.utime(directory, (1, 1))  # as a tree that nobody has touched for a while


def make_repo(folder: Path, kind: str, versions: int) -> Repo:
    repo = init_repo(folder / f"{kind}-{versions}")
    repo.tree_root.mkdir()
    if kind == "store":
        store = folder / f"bucket-{versions}"
        store.mkdir()
        repo.file.write_text(f'{repo.file.read_text()}url = "{store.as_uri()}"\n')
        repo = open_repo(repo.root)
    lay(repo, versions)
    return repo


class Cost(NamedTuple):
    """Seconds, of this process and those that it has waited for."""

    cpu: float
    wall: float

    @property
    def text(self) -> str:
        return f"{self.cpu * 1000:>9,.0f} ms {self.wall * 1000:>9,.0f} ms"


def cpu_time() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def timed(work: Callable[[], object]) -> Cost:
    begin, cpu = time.perf_counter(), cpu_time()
    work()
    return Cost(cpu_time() - cpu, time.perf_counter() - begin)


def best(rounds: int, work: Callable[[], object]) -> Cost:
    found = [timed(work) for _ in range(rounds)]
    return Cost(min(one.cpu for one in found), min(one.wall for one in found))


def command(repo: Repo, *arguments: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(repo.root.parent / "compiled")
    done = subprocess.run([BAYOU, *arguments, "--repo", repo.root], capture_output=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"bayou {' '.join(arguments)} failed: {done.stderr.decode(errors='replace')[-2000:]}")


def measure(repo: Repo, rounds: int) -> dict[str, Cost]:
    with Records(repo, engine=CatalogEngine("point")) as records:
        catalog: Catalog = records.catalog
        found = {"rebuild": timed(catalog.refresh)}
        catalog.refresh()
        found["look at an unchanged tree"] = best(rounds, catalog.refresh)
        found["list"] = best(rounds, catalog.find)
        found["query, indexed"] = best(rounds, lambda: query(records, INDEXED))
        found["query, scanned"] = best(rounds, lambda: query(records, SCANNED))
    command(repo, "data", "query", INDEXED)  # compiles
    found["bayou data list"] = best(rounds, lambda: command(repo, "data", "list"))
    found["bayou data list --json"] = best(rounds, lambda: command(repo, "data", "list", "--json"))
    found["bayou data query"] = best(rounds, lambda: command(repo, "data", "query", INDEXED))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Rebuild, list and query catalogs of two sizes.")
    parser.add_argument("--versions", type=int, nargs=2, default=(10_000, 100_000), metavar=("SMALL", "LARGE"))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    small, large = options.versions
    if not 0 < small < large:
        parser.error("--versions wants a smaller and a larger number")
    for kind in ("directory", "store"):
        with tempfile.TemporaryDirectory(prefix="bayou-bench-") as folder:
            few, many = (measure(make_repo(Path(folder), kind, count), options.rounds) for count in (small, large))
        print(f"{kind:<26} {small:>12,} {'':>12} {large:>12,} {'':>12}    growth")
        print(f"{'':<26} {'CPU':>12} {'elapsed':>12} {'CPU':>12} {'elapsed':>12}")
        for name in few:
            growth = (many[name].cpu / large) / (few[name].cpu / small)
            print(f"{name:<26} {few[name].text} {many[name].text} {growth:>9.2f}")
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
