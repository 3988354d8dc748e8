"""The catalog at 10,000 and 100,000 versions: rebuild, list, query, and what a look at an unchanged tree costs.

    ./dev bench catalog [--versions 10000 100000] [--rounds 3]

For a datastore that is a directory, and for the cache of a store. Ten versions of each item, ten items of each model.
Whole commands include the start of the interpreter. The best of the rounds counts, but for the rebuild, which is done
once: the machine is shared, and noise only ever adds. Growth is how the time per version changes from the smaller to
the larger: 1.0 is linear.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bayou.records.catalog import Catalog
from bayou.records.metadata import Metadata
from bayou.records.owner import Owner
from bayou.records.query import query
from bayou.records.records import Records
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
        path = repo.tree_root / made.place.metadata
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


def timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def best(rounds: int, work: Callable[[], object]) -> float:
    return min(timed(work) for _ in range(rounds))


def command(repo: Repo, *arguments: str) -> None:
    done = subprocess.run([BAYOU, *arguments, "--repo", repo.root, "--json"], capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"bayou {' '.join(arguments)} failed: {done.stderr.decode(errors='replace')[-2000:]}")


def measure(repo: Repo, rounds: int) -> dict[str, float]:
    with Records(repo) as records:
        catalog: Catalog = records.catalog
        found = {"rebuild": timed(catalog.refresh)}
        catalog.refresh()
        found["look at an unchanged tree"] = best(rounds, catalog.refresh)
        found["list"] = best(rounds, catalog.find)
        found["query, indexed"] = best(rounds, lambda: query(records, INDEXED))
        found["query, scanned"] = best(rounds, lambda: query(records, SCANNED))
    found["bayou data list"] = best(rounds, lambda: command(repo, "data", "list"))
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
        print(f"{kind:<26} {small:>12,} {large:>12,}       growth")
        for name in few:
            growth = (many[name] / large) / (few[name] / small)
            print(f"{name:<26} {few[name] * 1000:>9,.0f} ms {many[name] * 1000:>9,.0f} ms {growth:>12.2f}")
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
