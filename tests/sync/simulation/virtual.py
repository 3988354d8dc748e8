"""What makes the real code obey: one clock, one source of ids, one order, and no waiting for a disk.

Nothing of the protocol is replaced. Waiting becomes a step of the scheduler; parallel requests go out one by one in an
order that the seed gives; the size of nodes and of the log's pages is small, so that few paths make a deep tree. Times
of files are virtual too, and a coin decides whether a stat can be trusted already: both verdicts must be safe.
"""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import datetime, tzinfo
from functools import lru_cache
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, Self
from unittest.mock import patch

from msgspec.structs import force_setattr, replace

import bayou.index.build
import bayou.index.head
import bayou.index.node_store
import bayou.sync.run
from bayou.core.deadline import Deadline
from bayou.index.build import ChunkParams
from bayou.index.entry import Entry
from bayou.objectstore.store import Store
from bayou.packs.archive import PackBuilder
from bayou.state.database import Database
from bayou.sync.plan.local_scanner import FileScan
from bayou.worktree.hashing import FileStat

_WINDOW = 4
_decode = lru_cache(4096)(bayou.index.node_store.decode)
_encode = lru_cache(4096)(bayou.index.node_store.encode)
_parse_head = lru_cache(1024)(bayou.index.head.parse_head)


class Rules(Protocol):
    """The world that the code is to live in."""

    rng: random.Random
    shape: ChunkParams
    page_rows: int

    def now_ms(self) -> int: ...

    def local_step(self, what: str) -> None:
        """Called before and after every transaction of a client, and before each look at a file, in its thread."""

    def committing(self) -> None:
        """Called before a transaction is committed, while it holds the lock."""

    def wait(self, seconds: float) -> None: ...


@contextmanager
def virtual(rules: Rules) -> Iterator[None]:
    """Let everything in this process live by these rules."""
    rng, dice = rules.rng, random.Random(0)
    clock = SimpleNamespace(time_ns=lambda: rules.now_ms() * 1_000_000)

    class Moment(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return cls.fromtimestamp(rules.now_ms() / 1000, tz)

    patches: list[Any] = [
        patch("bayou.core.ids.os", SimpleNamespace(urandom=rng.randbytes)),
        patch("bayou.core.ids.time", clock),
        # How long a retry waits is what time it is then; what time a file has is part of its nodes' names; and whether
        # its stat proves its content is a matter of milliseconds: every write here has a time of its own.
        patch("bayou.objectstore.retry.random", dice),
        patch.object(FileStat, "settled", lambda self, now_ns: dice.random() < 0.5),
        patch.object(FileStat, "precedes", lambda self, stamp_ns: False),
        patch("bayou.sync.transfer.push.Entry", lambda *fields: replace(Entry(*fields), modified=rules.now_ms())),
        patch.object(PackBuilder, "add", _timed(rules, PackBuilder.add)),
        patch("bayou.core.clock.datetime", Moment),
        patch("bayou.index.head.PAGE_ROWS", rules.page_rows),
        patch.object(Deadline, "sleep", lambda self, seconds: rules.wait(seconds)),
        # Leases live by real time. Who has the commit lease pauses less between two attempts, and that is all.
        *(
            patch(f"bayou.{module}.commit_lease", lambda store, deadline: nullcontext(rng.random() < 0.5))
            for module in ("sync.commit.commit", "maintenance.compact")
        ),
        patch.object(Database, "transaction", _stepped(rules, Database.transaction)),
        patch.object(FileScan, "at", _looking(rules, FileScan.at)),
    ]
    with _connections() as handed_on, swift(rng), shaped(rules.shape), _all([*patches, *handed_on]):
        yield


@contextmanager
def swift(rng: random.Random | None = None) -> Iterator[None]:
    """Run without threads, without waiting for a disk, and without reading the same bytes twice.

    Parallel requests go out one by one, in an order that `rng` gives; without one, in theirs.
    """
    patches: list[Any] = [
        # What a store can do is not in question here.
        patch("bayou.sync.plan.remote_snapshot.probe", lambda store: None),
        patch("bayou.maintenance.rebuild.probe", lambda store: None),
        # Nothing here waits for a disk, so that threads would only change the order.
        *(patch(f"bayou.worktree.{name}.parallel_fsync", _one_by_one) for name in ("staging", "tree", "safe_root")),
        # Every node here is of a client of ours, so that no process of its own has to parse it.
        patch(
            "bayou.index.node_store.decode", lambda data, level, ref, **_: _decode(bytes(data), level, ref, ours=True)
        ),
        patch("bayou.index.node_store.prepare", lambda: None),
        patch("bayou.index.node_store.encode", _encode),
        patch("bayou.index.head.parse_head", _parse_head),
        patch.object(os, "fsync", lambda descriptor: None),
        patch.object(Store, "map", _in_some_order(rng)),
        patch.object(Store, "map_as_completed", _in_some_order(rng, completed=True)),
        # A pack goes up at once, or when its answer is waited for, with nodes and other packs before it.
        patch("bayou.packs.write.ThreadPool", lambda _: _Pool(rng)),
        patch("bayou.packs.write.wait_for_result", lambda future: future.result()),
        patch("bayou.packs.write.wait", lambda futures, timeout: [future.exception() for future in futures]),
        patch("bayou.sync.transfer.packed.Prefetcher", _Inline),
        patch.object(Database, "pragmas", ("journal_mode = MEMORY", "synchronous = OFF")),
        # No signal has to get through to anybody who waits for a request.
        patch("bayou.objectstore.retry.run_interruptible", lambda call: call()),
        patch("bayou.objectstore.store.run_interruptible", lambda call: call()),
        patch("bayou.objectstore.listing.run_cancellable", lambda call, _: call()),
    ]
    with _all(patches):
        yield


@contextmanager
def _connections() -> Iterator[Sequence[Any]]:
    """Hand on connections from one process that ends to the next that begins: opening one, and SQLite's first look at
    the tables, take longer than most do with it. One that was to a file that is gone is not for its successor."""
    really_open, really_close = Database._open, Database.close
    files: dict[sqlite3.Connection, tuple[Path, int]] = {}
    idle: dict[tuple[Path, int], list[sqlite3.Connection]] = {}

    def opened(self: Database) -> sqlite3.Connection:
        if waiting := idle.get((self.path, _inode(self.path))):
            return waiting.pop()
        connection = really_open(self)
        files[connection] = self.path, _inode(self.path)
        return connection

    def close(self: Database) -> None:
        file = files[self._connection]
        if file != (self.path, _inode(self.path)) or self._connection.in_transaction:
            really_close(self)
        else:
            self._closer.detach()  # the next process has it: the end of this object must not close it
            idle.setdefault(file, []).append(self._connection)

    try:
        yield [patch.object(Database, "_open", opened), patch.object(Database, "close", close)]
    finally:
        for connection in files:
            connection.close()


def _inode(path: Path) -> int:
    """Return what tells a file from one that had its name before; as long as somebody has that one open, at least."""
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return 0


@contextmanager
def _all(patches: Sequence[Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for one in patches:
            stack.enter_context(one)
        yield


@contextmanager
def shaped(shape: ChunkParams) -> Iterator[None]:
    """Give the one shape that everybody has taken by now other sizes."""
    names = ChunkParams.__struct_fields__
    before = {name: getattr(bayou.index.build.SHAPE, name) for name in names}
    try:
        for name in names:
            force_setattr(bayou.index.build.SHAPE, name, getattr(shape, name))
        yield
    finally:
        for name, value in before.items():
            force_setattr(bayou.index.build.SHAPE, name, value)


class _Later(Future[Any]):
    """A call that runs when its result is asked for."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__()
        self._call = call

    def run(self) -> None:
        try:
            self.set_result(self._call())
        except Exception as error:  # noqa: BLE001  (raised where the result is asked for)
            self.set_exception(error)

    def result(self, timeout: float | None = None) -> Any:
        if not self.done() and not self.cancelled():
            self.run()
        return super().result(timeout)


class _Pool:
    """A pool without threads: a call runs when it is submitted, or when its result is asked for."""

    def __init__(self, rng: random.Random | None) -> None:
        self._rng = rng

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        future = _Later(call)
        if self._rng is None or self._rng.random() < 0.5:
            future.run()
        return future

    def cancel_and_join(self, pending: Iterable[Future[Any]], stop: object) -> None:
        for future in pending:
            future.cancel()


class _Inline:
    """Reads a source in the thread of whoever asks for the next item."""

    def __init__(self, source: Iterable[Any], *, name: str) -> None:
        self._source = source

    def __iter__(self) -> Iterator[Any]:
        return iter(self._source)

    def poll(self) -> Iterator[Any]:
        return iter(self._source)

    def ready(self) -> Iterator[Any]:
        return iter(())

    def unread(self) -> Iterator[Any]:
        return iter(())

    def close(self) -> None: ...


def _in_some_order(rng: random.Random | None, *, completed: bool = False) -> Callable[..., Iterator[Any]]:
    def ordered(
        self: Store, function: Callable[[Any], Any], items: Iterable[Any], *, threads: int | None = None, ahead: int = 1
    ) -> Iterator[Any]:
        """Do a few at a time, in any order, and yield their results in theirs, or (`completed`) as they come."""
        source = iter(items)
        while window := list(islice(source, _WINDOW)):
            futures: list[Future[Any]] = [Future() for _ in window]
            turns = list(range(len(window)))
            if rng is not None:
                rng.shuffle(turns)
            for at in turns:
                try:
                    futures[at].set_result(function(window[at]))
                except Exception as error:  # noqa: BLE001  (raised in its item's turn)
                    futures[at].set_exception(error)
            for future in [futures[at] for at in turns] if completed else futures:
                yield future.result()

    return ordered


def _timed(rules: Rules, real: Callable[..., None]) -> Callable[..., None]:
    """Give files in packs a virtual time: the list in a pack has it, and so has the size in the pack's name."""

    def add(self: PackBuilder, path: str, push: str, data: bytes, sha256: bytes, modified: int) -> None:
        real(self, path, push, data, sha256, rules.now_ms())

    return add


def _looking(rules: Rules, real: Callable[..., Any]) -> Callable[..., Any]:
    """Let programs write between the looks at two files."""

    def at(self: FileScan, *args: Any, **kwargs: Any) -> Any:
        rules.local_step("look")
        return real(self, *args, **kwargs)

    return at


def _stepped(rules: Rules, real: Callable[[Database], Any]) -> Callable[[Database], Any]:
    @contextmanager
    def stepped(self: Database) -> Iterator[sqlite3.Connection]:
        rules.local_step("transaction")
        with real(self) as connection:
            yield connection
            rules.committing()
        rules.local_step("committed")

    return stepped


def _one_by_one(sync: Callable[[Any], None], items: Iterable[Any]) -> None:
    for item in items:
        sync(item)
