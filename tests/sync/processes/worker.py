"""What one process does to its clone: write, delete, push, pull, and say so in a file that outlives it.

A line `begun` is in the file before the tree is touched, `done` after; `synced` after a push that returned. Every file
has an id of its own, so that it is known wherever it turns up.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from bayou.core.clock import now_ms
from bayou.core.errors import NodeMissing, StoreError
from bayou.data.sync_hooks import renumber
from bayou.index import node_store
from bayou.index.build import ChunkParams
from bayou.index.node import Node, Ref
from bayou.repo import open_repo
from bayou.sync.report import Renumber, SyncOptions, SyncReport
from bayou.sync.service import Datastore
from bayou.worktree.atomic_write import is_temporary
from tests import api
from tests.sync.simulation.virtual import shaped

FILES = ("files/one", "outputs/t/m/two.yaml", "audit/day/three")
NAMES = ("data/t/m/first", "data/t/m/second")

_SMALL_NODES = ChunkParams(leaf_mod=2, leaf_max=3, branch_mod=2, branch_max=3)


@dataclass(frozen=True, slots=True)
class Orders:
    """What a process is to do. `point`: kind, count and side of the step that it dies at; None: it lives."""

    root: str
    log: str
    clone: str
    seed: str
    turns: int
    point: tuple[str, int, bool] | None = None
    renumbers: bool = False
    """Versions that two clones made get numbers of their own, as in every session; else they are in conflict."""
    forgiving: bool = False
    """The store may be away for a while: a command may fail for that."""
    environment: Mapping[str, str] = field(default_factory=dict)
    collected: bool = False
    """Another process collects the store without a grace: a command may fail because its root was collected."""
    small: bool = False
    """Nodes and pages of the log are as small as in `small_index`."""
    quick: bool = False
    """No other process parses nodes, as in `parsed_here`."""

    def document(self) -> dict[str, Any]:
        return asdict(self)

    def carry_out(self) -> None:
        """Be a process that carries out these orders, or dies on the way."""
        prepare(self)
        with Datastore(open_repo(self.root), renumber=rule(self.renumbers)) as datastore:
            Worker(self, datastore).work()


@dataclass(frozen=True, slots=True)
class Begun:
    """A change that was announced: the id that each path gets (None: it is deleted), and what the tree had there."""

    number: int
    paths: Mapping[str, str | None]
    saw: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Done:
    """A change that has returned to the program that made it."""

    number: int


@dataclass(frozen=True, slots=True)
class Synced:
    """A push that has returned: it speaks for every change through `number`, but for the paths in `left`.

    `commit` may be of an earlier process that was killed, or of an earlier pass than the one that saw that another
    client had deleted the same: so only versions that were made after `at`, the time in ms, must have every change.
    """

    number: int
    commit: str | None
    seq: int | None
    left: tuple[str, ...]
    finished: bool
    at: int


@dataclass(frozen=True, slots=True)
class Kept:
    """A sync, of whatever kind, has told that deletes through `number` met changes in the store, which were kept."""

    number: int
    paths: tuple[str, ...]


Line = Begun | Done | Synced | Kept
_LINES: dict[str, type[Line]] = {"begun": Begun, "done": Done, "synced": Synced, "kept": Kept}


def read_log(path: Path) -> list[Line]:
    """Return what a clone's processes have said so far, in order."""
    if not path.exists():
        return []
    lines = (json.loads(text) for text in path.read_text().splitlines())
    return [_LINES[line.pop("line")](**line) for line in lines]


def file_bytes(path: str, identity: str, padding: int) -> bytes:
    """Return the content of a file; the metadata of a version also says its number."""
    directory, _, name = path.rpartition("/")
    number = f"version: {directory.rpartition('/')[2]}\n" if name == "metadata.yaml" else ""
    return f"id: {json.dumps(identity)}\n{number}padding: {json.dumps('.' * padding)}\n".encode()


def identity_of(path: str, content: bytes) -> str:
    """Return the id of a file's bytes, which must be whole, and belong there."""
    identity = str(json.loads(content.partition(b"\n")[0].removeprefix(b"id: ")))
    padding = json.loads(content.rpartition(b"padding: ")[2])
    assert content == file_bytes(path, identity, len(padding)), f"not what belongs to {path}: {content[:80]!r}"
    return identity


def rule(renumbers: bool) -> Renumber | None:
    return renumber if renumbers else None


class Worker:
    """One process at work on one clone."""

    def __init__(self, orders: Orders, datastore: Datastore) -> None:
        self._orders = orders
        self._rng = random.Random(orders.seed)
        self._datastore = datastore
        self._log = os.open(orders.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._number = max((line.number for line in read_log(Path(orders.log))), default=0)

    def work(self) -> None:
        for _ in range(self._orders.turns):
            for _ in range(self._rng.choice((0, 1, 1, 2, 3))):
                self._change()
            self._command()

    def _change(self) -> None:
        match self._rng.choices(("write", "delete", "version", "drop"), (4, 3, 3, 1))[0]:
            case "write":
                some = self._rng.sample(FILES, self._rng.choice((1, 1, 2)))
                self._write(some)
            case "delete":
                self._delete([self._rng.choice(FILES)])
            case "version":
                name = self._rng.choice(NAMES)
                unit = f"{name}/{1 + max(self._versions(name), default=0)}"
                more = [f"{unit}/of-{self._orders.clone}"] if self._rng.random() < 0.3 else []
                self._write([f"{unit}/raw", *more, f"{unit}/metadata.yaml"])
            case "drop":
                whole = [unit for name in NAMES for unit in self._whole_versions(name)]
                if whole:
                    unit = self._rng.choice(whole)
                    names = os.listdir(self._datastore.tree.root / unit)
                    self._delete(sorted(f"{unit}/{name}" for name in names if not is_temporary(name)))

    def _command(self) -> None:
        way = self._rng.choices(("push", "sync", "pull"), (4, 3, 2))[0]
        through = self._number
        try:
            sync = self._datastore.sync
            report = {"pull": sync.pull_changed, "push": sync.push_changed, "sync": self._sync}[way]()
        except NodeMissing:
            if not self._orders.collected:
                raise
            return
        except StoreError:
            if not self._orders.forgiving:
                raise
            return
        kept = [text.partition(" was deleted here")[0] for text in report.warnings if "it was kept" in text]
        if kept:
            self._say(Kept(self._number, tuple(kept)))
        if way == "pull":
            return
        left = [*(one.path for one in report.failed), *kept]
        finished = not any("kept changing" in text for text in report.warnings)
        commit = report.commit
        number, seq = (commit.commit, commit.seq) if commit else (None, None)
        self._say(Synced(through, number, seq, tuple(left), finished, now_ms()))

    def _sync(self) -> SyncReport:
        return api.sync(self._datastore.repo, SyncOptions(renumber=rule(self._orders.renumbers)))

    def _write(self, paths: list[str]) -> None:
        identity = f"{self._orders.clone}-{self._number + 1}"
        padding = self._rng.choice((0, 100, 3000, 60_000))
        with self._changing(dict.fromkeys(paths, identity)):
            self._datastore.tree.write_many([(path, file_bytes(path, identity, padding)) for path in paths])

    def _delete(self, paths: list[str]) -> None:
        with self._changing(dict.fromkeys(paths)):
            self._datastore.tree.delete_many(paths)

    @contextmanager
    def _changing(self, paths: Mapping[str, str | None]) -> Iterator[None]:
        self._number += 1
        self._say(Begun(self._number, paths, {path: self._identity(path) for path in paths}))
        yield
        self._say(Done(self._number))

    def _identity(self, path: str) -> str | None:
        try:
            with self._datastore.tree.open(path) as file:
                return identity_of(path, file.read())
        except FileNotFoundError:
            return None

    def _versions(self, name: str) -> list[int]:
        try:
            return [int(entry) for entry in os.listdir(self._datastore.tree.root / name) if entry.isdigit()]
        except FileNotFoundError:
            return []

    def _whole_versions(self, name: str) -> list[str]:
        units = [f"{name}/{number}" for number in sorted(self._versions(name))]
        return [unit for unit in units if self._datastore.tree.exists(f"{unit}/metadata.yaml")]

    def _say(self, line: Line) -> None:
        """Write a line at once, in one piece: what is in the file is there, whatever happens to this process."""
        kind = next(name for name, known in _LINES.items() if isinstance(line, known))
        os.write(self._log, (json.dumps({"line": kind, **asdict(line)}) + "\n").encode())


def prepare(orders: Orders) -> None:
    """Make this process the one that the orders describe: its environment, its name, and the step it dies at."""
    os.environ.update(orders.environment)
    os.environ["LOGNAME"] = orders.clone  # who commits, in the store's log
    if orders.small:
        ExitStack().enter_context(small_index())
    if orders.quick:
        ExitStack().enter_context(parsed_here())
    if orders.point is not None:
        from tests.sync.processes.points import arm

        kind, count, after = orders.point
        arm(kind, count, after=after)


@contextmanager
def small_index() -> Iterator[None]:
    """Let an index of a few entries have nodes of several levels, and its log pages; every process has to agree."""
    with shaped(_SMALL_NODES), patch("bayou.index.head.PAGE_ROWS", 5):
        yield


@contextmanager
def parsed_here() -> Iterator[None]:
    """Parse nodes in this process: another one takes longer to start than most commands, and kills would hit that."""
    decode = node_store.decode

    def of_our_own(data: Any, level: int, ref: Ref, *, ours: bool = False) -> Node:
        return decode(data, level, ref, ours=True)

    with patch.object(node_store, "decode", of_our_own), patch.object(node_store, "prepare", lambda: None):
        yield
