"""A scene for crash tests: two clones whose next sync has everything to do, put back as often as it takes.

The store is a bucket in memory, watched: no head may ever name what is not there. Nodes are small, so that few paths
make two levels of them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from bayou.core.deadline import Deadline
from bayou.index.build import ChunkParams
from bayou.index.head import read_head
from bayou.index.node_store import StoreNodes
from bayou.index.tree import IndexTree, scan
from bayou.objectstore.keys import KeyScope
from bayou.objectstore.retry import RetryPolicy
from bayou.objectstore.store import Store
from bayou.state.database import Database
from bayou.sync.report import Mode, SyncReport
from bayou_testing.faulty import Crash, Fault, FaultyTransport
from tests import api
from tests.sync.simulation.bucket import Blob, Bucket, SimTransport
from tests.sync.simulation.client import Client
from tests.sync.simulation.oracle import Oracle
from tests.sync.simulation.virtual import shaped, swift

SHAPE = ChunkParams(leaf_mod=3, leaf_max=4, branch_mod=4, branch_max=8)
UNIT = "data/t/m/n"


class _Straight:
    """No scheduler: a request goes to the bucket at once."""

    def sending(self, key: str, data: bytes, etag: str | None) -> None:
        return

    def pass_through(self, verb: str, key: str, act: Callable[[], object]) -> object:
        return act()


@dataclass(frozen=True)
class Outcome:
    """What a command leaves behind, here and there, apart from ids and times."""

    entries: dict[str, str]
    files: dict[str, bytes]
    kept: set[tuple[str, bytes]]
    journal: set[str]
    in_sync: bool
    fresh: dict[str, bytes]


@dataclass
class Scene:
    """The scene as it is set at the beginning; `play` plays on a copy of it."""

    root: Path
    pack_below: int
    """Whether small files travel in packs: 0, and each is an object of its own."""
    objects: dict[str, Blob] = field(default_factory=dict)
    plays: int = 0

    def set_up(self) -> None:
        """Let A have adds, changes and deletes to push, B's to pull, and a conflict; some objects were discovered."""
        bucket = Bucket()
        for name in ("kept", "changed", "deleted"):
            bucket.put("nobody", f"files/found/{name}", f"found {name}".encode(), None)
        with calm():
            a, b = (Client.at(name, self.root / "set" / name, _store(bucket, name), self.pack_below) for name in "AB")
            a.write({f"files/{number}": b"first %d" % number for number in range(8)} | {"audit/both": b"first"})
            a.write({f"{UNIT}/1/raw": b"v1", f"{UNIT}/1/metadata.yaml": b"v1 meta"})
            a.sync("sync", walk=True)
            b.sync("sync", walk=True)
            b.write({"files/1": b"of B", "files/new-b": b"new, of B", "audit/both": b"of B"})
            b.write({f"{UNIT}/2/raw": b"v2", f"{UNIT}/2/metadata.yaml": b"v2 meta"})
            b.delete(["files/2", "files/3"])
            b.sync("push", walk=True)
            a.write({"files/4": b"of A", "files/new-a": b"new, of A", "audit/both": b"of A"})
            a.write({"files/found/changed": b"of A", f"{UNIT}/3/raw": b"v3", f"{UNIT}/3/metadata.yaml": b"v3 meta"})
            a.delete(["files/5", "files/found/deleted", f"{UNIT}/1/raw", f"{UNIT}/1/metadata.yaml"])
        self.objects = dict(bucket.objects)

    @contextmanager
    def play(self) -> Iterator[Play]:
        self.plays += 1
        stage = self.root / f"play-{self.plays}"
        shutil.copytree(self.root / "set", stage)
        bucket = Bucket(objects=dict(self.objects), clock=1_800_000_000_000, writes=1000)
        oracle = Oracle(bucket, {})
        oracle.begin_with(self.objects)
        bucket.watcher = oracle
        with calm():
            yield Play(stage, bucket, oracle, self.pack_below)
        shutil.rmtree(stage)


@dataclass
class Play:
    """One copy of the scene."""

    stage: Path
    bucket: Bucket
    oracle: Oracle
    pack_below: int

    def command(self, mode: Mode, faults: list[Fault] | None = None, *, attempts: int = 4) -> list[str]:
        """Run one command in a process of its own, so to say; return the requests that it sent."""
        transport = FaultyTransport(SimTransport(self.bucket, "A", _Straight()), faults or [])
        self._client("A", Store(transport, KeyScope.of("", None), concurrency=1, policy=_policy(attempts))).sync(
            mode, walk=True
        )
        return [f"{one.verb} {one.key}" for one in transport.seen]

    def died(self, mode: Mode, faults: list[Fault]) -> BaseException | None:
        """Run one command that is not to end well; return how it ended."""
        try:
            self.command(mode, faults, attempts=1)
        except (Crash, Exception) as error:  # noqa: BLE001  (whatever it was, the next run must cope)
            return error
        return None

    def outcome(self) -> Outcome:
        """Look at everything, and let a newcomer hydrate."""
        self.oracle.check_all()
        store = _store(self.bucket, "C")
        a, fresh = self._client("A", store), Client.at("C", self.stage / "C", store, self.pack_below)
        seen = read_head(store)
        assert seen is not None
        tree = IndexTree(StoreNodes(store), seen.head.root)
        report = fresh.sync("pull", walk=True)
        assert not report.failed
        assert not report.missing
        kept = {(one.path, Path(one.copy).read_bytes()) for one in api.conflicts(a.repo)}
        entries = {entry.path: entry.sha256.hex() if entry.sha256 else "found" for entry in scan(tree)}
        return Outcome(entries, a.files, kept, a.journaled(), api.status(a.repo).in_sync, fresh.files)

    def _client(self, name: str, store: Store) -> Client:
        return Client.reopened(name, self.stage / name, store, self.pack_below)


@contextmanager
def calm() -> Iterator[None]:
    """Small nodes, no waiting, no probing."""
    with swift(), shaped(SHAPE), patch.object(Deadline, "sleep", lambda self, seconds: None):
        yield


@contextmanager
def mortal(dies_at: int | None) -> Iterator[list[str]]:
    """Count local steps: each commit of `sync.db`, each rename, each removal of a file. Die just before one of them.

    (Just after one is just before the next, or the end.) A dead process does nothing more: whatever unwinds and touches
    state or tree dies again.
    """
    points: list[str] = []
    dead = False

    def point(what: str) -> None:
        nonlocal dead
        points.append(what)
        if dead or len(points) == dies_at:
            dead = True
            raise Crash(what)

    def around(real: Callable[..., Any], what: str) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            if what == "rename" or os.path.lexists(args[0]) or "dir_fd" in named:
                point(f"{what} {args[-1]}")
            return real(*args, **named)

        return call

    real_transaction = Database.transaction

    @contextmanager
    def transaction(self: Database) -> Iterator[Any]:
        if dead:
            raise Crash("dead")
        with real_transaction(self) as db:
            yield db
            point("commit")

    with (
        patch.object(Database, "transaction", transaction),
        patch.object(os, "replace", around(os.replace, "rename")),
        patch.object(os, "unlink", around(os.unlink, "removal")),
    ):
        yield points


def run(play: Play, mode: Mode) -> SyncReport:
    """Run a command that nothing disturbs."""
    return play._client("A", _store(play.bucket, "A")).sync(mode, walk=True)


def _store(bucket: Bucket, who: str) -> Store:
    return Store(SimTransport(bucket, who, _Straight()), KeyScope.of("", None), concurrency=1, policy=_policy(4))


def _policy(attempts: int) -> RetryPolicy:
    return RetryPolicy(attempts=attempts, first_contact_attempts=attempts)
