"""A workflow of many steps over some models: what each step costs beyond its own time, and how pushes overlap.

    ./dev bench workflow [--steps 500] [--models 50] [--concurrency 8] [--work 0.0] [--store s3|file]

Every step runs a command that sleeps for `--work` seconds: it holds its model's lease, pulls, evaluates, records, runs
the command, saves what it printed, and pushes. The steps form `steps / models` levels, each of which waits for the one
before it. The store is a real S3 server (SeaweedFS) on this machine, or a directory. Overhead is the whole time less
the sleep, as many at once as are allowed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bayou.core.ids import ulid
from bayou.maintenance.setup import setup
from bayou.models import create_model
from bayou.repo import Repo, init_repo, open_repo
from bayou.session import Session, write_session
from bayou.state.connection import Connection
from bayou.sync.plan.policy import ModelRef
from bayou.sync.status import log
from bayou.workflows.run import Outcome, new_run


def lay(repo: Repo, options: argparse.Namespace) -> None:
    """Write the models and the workflow."""
    command = f"sleep {options.work}" if options.work else ":"
    for model in range(options.models):
        create_model(repo, "command/shell", f"m{model:03d}", {"run": command})
    jobs, levels = [], -(-options.steps // options.models)
    for level in range(levels):
        steps = [
            f"      - {{name: s{number:04d}, model: m{number % options.models:03d}, method: execute}}"
            for number in range(level * options.models, min(options.steps, (level + 1) * options.models))
        ]
        waits = f"    depends_on: [level{level - 1}]\n" if level else ""
        jobs.append(f"  - name: level{level}\n{waits}    steps:\n" + "\n".join(steps))
    (repo.root / "workflows" / "bench.yaml").write_text(
        "id: 7f3c0000-0000-4000-8000-00000000000b\nname: bench\n"
        f"concurrency: {options.concurrency}\njobs:\n" + "\n".join(jobs) + "\n"
    )


class Watch:
    """Counts how often a session pushed while another step was at work."""

    def __init__(self, repo: Repo) -> None:
        self._repo = repo
        self._at_work = 0
        self.overlapped = self.sessions = 0

    @contextmanager
    def session(self, model: ModelRef) -> Iterator[Session]:
        with write_session(self._repo, models=[model]) as session:
            self._at_work += 1
            yield session
            self._at_work -= 1
            self.sessions += 1
            self.overlapped += self._at_work > 0


@contextmanager
def place(kind: str, folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    if kind == "file":
        (folder / "store").mkdir()
        yield (folder / "store").as_uri(), {}
        return
    from bayou_testing.seaweed import SeaweedServer

    with SeaweedServer(folder / "seaweed") as server:
        os.environ.update(server.env())
        server.create_bucket("bench")
        yield f"s3://bench/{ulid()}", {"endpoint": server.url}


def measure(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="bayou-bench-") as name, place(options.store, Path(name)) as (url, more):
        repo = init_repo(Path(name) / "repo")
        setup(repo, url, namespace=None, options=more, lazy=False, skip_migration=False, timeout=None)
        repo = open_repo(repo.root)
        lay(repo, options)
        before = len(log(repo, 1 << 20))
        watch = Watch(repo)
        begin = time.perf_counter()
        going = new_run(repo, "bench")
        checked = time.perf_counter() - begin
        begin = time.perf_counter()
        outcome: Outcome = going.run(Connection(repo), watch.session)
        seconds = time.perf_counter() - begin
        commits = len(log(repo, 1 << 20)) - before
    if outcome.run.status != "succeeded":
        print(f"the run {outcome.run.status}: {outcome.run.failed_step}", file=sys.stderr)
        return 1
    own = sum(step.duration_s or 0.0 for job in outcome.run.jobs for step in job.steps)
    slept = options.work * options.steps / options.concurrency
    print(f"{options.steps:,} steps over {options.models} models, {options.concurrency} at once, on {options.store}")
    print(f"  checked before it began   {checked:>9.2f} s")
    print(f"  ran                       {seconds:>9.2f} s")
    print(f"  in methods, all together  {own:>9.2f} s")
    print(f"  overhead for each step    {(seconds - slept) / options.steps * 1000:>9.1f} ms")
    print(f"  commits                   {commits:>9,} ({commits / options.steps:.2f} for each step)")
    print(f"  pushed while others ran   {watch.overlapped:>9,} of {watch.sessions:,}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what a step of a workflow costs beyond its own time.")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--models", type=int, default=50)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--work", type=float, default=0.0, help="seconds that each step sleeps")
    parser.add_argument("--store", choices=("s3", "file"), default="s3")
    return measure(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
