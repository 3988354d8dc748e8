"""Real processes that work on one repo: forked from one that has loaded everything, so that many cost little.

Run as a program: `forks.py together REPO WORK…` starts one process for each word of work, lets them begin at once, and
prints a line of JSON for each; `forks.py die REPO WORK FOLDER` does one piece of work again and again, each time on a
fresh copy of the repo, in a process that is killed one step later than the one before, until it lives to the end.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import shutil
import signal
import sqlite3
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import bayou.worktree.atomic_write
from bayou.core.errors import DataNotFound
from bayou.data.records import Records
from bayou.repo import open_repo
from bayou.state.database import Database
from tests.data.models import MODEL, OTHER


def save(records: Records, who: int, rounds: int = 2) -> list[int]:
    return [records.data.save(MODEL, "x", f"{who} {number}".encode()).version for number in range(rounds)]


def put(records: Records, who: int) -> list[int]:
    return save(records, who, 25)


def delete(records: Records, who: int) -> list[int]:
    counts = []
    for _ in range(25):
        try:
            counts.append(records.data.delete(MODEL, "x"))
        except DataNotFound:
            counts.append(0)
    return counts


def append(records: Records, who: int) -> list[int]:
    return [records.data.append(MODEL, "log", f"{who} {number}\n".encode()).size for number in range(5)]


def publish_all(records: Records, who: int) -> list[int]:
    """Publish twelve times, and on until the reader has seen enough."""
    for number in itertools.count():
        if number >= 12 and (records.context.repo.root / "seen").exists():
            break
        with records.data.stage() as stage:
            for name in "abc":
                stage.save(MODEL, name, b"%d" % number)
            stage.publish()
    return []


def stream(records: Records, who: int) -> list[int]:
    return [records.data.append(MODEL, "log", f"{who} {number}\n".encode()).size for number in range(20)]


def save_one(records: Records) -> None:
    records.data.save(MODEL, "x", b"new")


def save_first(records: Records) -> None:
    records.data.save(OTHER, "first", b"new")


def append_one(records: Records) -> None:
    records.data.append(MODEL, "log", b"new\n")


def publish(records: Records) -> None:
    with records.data.stage() as stage:
        stage.save(MODEL, "x", b"new")
        stage.save(OTHER, "y", b"new")
        stage.save(MODEL, "x", b"newer")
        stage.publish()


def rename(records: Records) -> None:
    records.data.rename(MODEL, "x", "renamed")


def rename_back(records: Records) -> None:
    records.data.rename(MODEL, "now", "before")


def delete_all(records: Records) -> None:
    records.data.delete(MODEL, "x")


def delete_highest(records: Records) -> None:
    records.data.delete(MODEL, "x", 2)


def delete_rows(records: Records) -> None:
    records.data.delete_many(row for row in records.data.find(all_versions=True) if row.version != 2)


def main() -> None:
    match sys.argv[1:]:
        case ["together", repo, *work]:
            together(Path(repo), work)
        case ["die", repo, work, folder]:
            die_at_every_step(Path(repo), globals()[work], Path(folder))


def together(repo: Path, work: list[str]) -> None:
    ready_read, ready_write = os.pipe()
    go_read, go_write = os.pipe()
    children = []
    for who, verb in enumerate(work):
        read, write = os.pipe()

        def job(who: int = who, verb: str = verb, write: int = write) -> None:
            os.close(go_write)
            with Records(open_repo(repo)) as records:
                os.write(ready_write, b".")
                os.read(go_read, 1)  # until everybody is there
                answer = globals()[verb](records, who)
            with os.fdopen(write, "w") as out:
                json.dump(answer, out)

        children.append((fork(job), read))
        os.close(write)
    for _ in children:
        os.read(ready_read, 1)
    os.close(go_write)
    for pid, read in children:
        with os.fdopen(read) as answer:
            print(answer.read())
        _, status = os.waitpid(pid, 0)
        if status:
            sys.exit(f"a child ended with {status}")


def fork(job: Callable[[], None]) -> int:
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        job()
        os._exit(0)
    except BaseException:  # noqa: BLE001  (nothing of the parent's may go on in a child)
        traceback.print_exc()
        os._exit(1)


def die_at_every_step(repo: Path, work: Callable[[Records], None], folder: Path) -> None:
    without_a_disk()
    for step in range(1, 1000):
        copy = folder / str(step)
        shutil.copytree(repo, copy, symlinks=True)

        def job(copy: Path = copy, step: int = step) -> None:
            with Records(open_repo(copy)) as records:
                records.catalog.refresh()
                mortal(step)
                work(records)
                os._exit(0)  # what comes after is not the work's

        _, status = os.waitpid(fork(job), 0)
        if status == 0:
            print(step)
            return
        if status != signal.SIGKILL:
            sys.exit(f"at step {step} a child ended with {status}")


def without_a_disk() -> None:
    """Wait for no disk: a process that is killed loses nothing that it has told the kernel."""
    os.fsync = lambda descriptor: None  # type: ignore[assignment]
    Database.pragmas = ("journal_mode = WAL", "synchronous = OFF")


def mortal(step: int) -> None:
    """Die before the step-th change that anybody could see: a name made, moved or removed, an append, a commit."""
    left = step

    def point() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def call(*args: Any, **named: Any) -> Any:
            point()
            return real(*args, **named)

        setattr(owner, name, call)

    for name in ("replace", "rename", "mkdir", "unlink", "rmdir", "link", "ftruncate"):
        around(os, name)
    around(bayou.worktree.atomic_write, "_append")

    def trace(statement: str) -> None:
        if statement.strip().upper().startswith("COMMIT"):
            point()

    for found in gc.get_objects():
        if isinstance(found, sqlite3.Connection):
            with suppress(sqlite3.ProgrammingError):  # closed
                found.set_trace_callback(trace)
    real_connect = sqlite3.connect

    def connect(*args: Any, **named: Any) -> sqlite3.Connection:
        connection = real_connect(*args, **named)
        connection.set_trace_callback(trace)
        return connection

    sqlite3.connect = connect  # type: ignore[assignment]


if __name__ == "__main__":
    main()
