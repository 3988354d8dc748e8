"""What one process does to keep a store: compact it, and delete what no retained root names.

Before it deletes objects, one by one, it copies them to an archive, so that the judge can read every version of the
index afterwards. A line `deleting` is in its file before the first of them is deleted, `upkept` after a command that
returned.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bayou.core.errors import NodeMissing, NotFound, StoreError
from bayou.index.head import read_head
from bayou.objectstore import Store, keys
from bayou.repo import Repo, open_repo
from bayou.sync.report import SyncOptions
from tests import api
from tests.sync.processes.worker import Orders, prepare

GRACES = (0.0, 0.0, 0.0, 0.05, 0.5)
"""How long a root stays readable, in seconds: workers take less than one."""

GRACES_BY_SECONDS = (-1.0, -1.0, 0.0, 1.0)
"""The same where the store's clock tells only seconds: one that ends in the future takes what is as old as that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperOrders(Orders):
    """What a process is to do that keeps the store."""

    archive: str
    """The directory that gets a copy of every object before it is deleted."""
    graces: Sequence[float] = GRACES

    def carry_out(self) -> None:
        prepare(self)
        Keeper(self, open_repo(self.root)).work()


@dataclass(frozen=True, slots=True)
class Deleting:
    """Objects that a collection is about to delete, and what the head then said of collections (`Head.gc`)."""

    keys: tuple[str, ...]
    count: int
    before: str | None


@dataclass(frozen=True, slots=True)
class Upkept:
    """A command that has returned: how many files a compaction has moved, or objects a collection has deleted."""

    what: str
    count: int


@dataclass(frozen=True, slots=True)
class Missed:
    """A command that has failed because a collection without a grace had taken the root that it read."""

    what: str


KeeperLine = Deleting | Upkept | Missed
_LINES: dict[str, type[KeeperLine]] = {"deleting": Deleting, "upkept": Upkept, "missed": Missed}


def read_keeper_log(path: Path) -> list[KeeperLine]:
    """Return what the processes of one keeper have said so far, in order."""
    if not path.exists():
        return []
    lines = (json.loads(text) for text in path.read_text().splitlines())
    return [_LINES[line.pop("line")](**line) for line in lines]


class Keeper:
    """One process that compacts and collects a store, from a clone of its own."""

    def __init__(self, orders: KeeperOrders, repo: Repo) -> None:
        self._orders = orders
        self._rng = random.Random(orders.seed)
        self._repo = repo
        self._log = os.open(orders.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def work(self) -> None:
        self._watch_deletes()
        for _ in range(self._orders.turns):
            self._command()

    def _command(self) -> None:
        what = self._rng.choices(("compact", "collect", "pull"), (4, 4, 2))[0]
        grace = self._rng.choice(self._orders.graces)
        try:
            count = self._do(what, grace)
        except NodeMissing:
            self._say(Missed(what))
        except StoreError:
            if not self._orders.forgiving:
                raise
        else:
            self._say(Upkept(what, count))

    def _do(self, what: str, grace: float) -> int:
        if what == "pull":
            return api.sync(self._repo, SyncOptions(mode="pull")).pulled.files
        if what == "compact":
            moved = api.compact(self._repo, dry_run=False, grace_s=grace, engine="point")
            assert not moved.failures or self._orders.forgiving, moved
            return moved.files
        gone = api.collect(self._repo, dry_run=False, grace_s=grace, engine="point")
        return gone.objects_deleted + gone.leftovers_deleted + gone.nodes_deleted

    def _watch_deletes(self) -> None:
        """Copy and announce every object that this process deletes, and delete them one by one."""
        real = Store.delete

        def delete(store: Store, wanted: Iterable[keys.Key]) -> None:
            listed = list(wanted)
            self._announce(store, [key for key in listed if not key.startswith((f"{keys.PROBES}/", f"{keys.LEASES}/"))])
            for key in listed:
                real(store, [key])

        Store.delete = delete  # type: ignore[assignment, method-assign]

    def _announce(self, store: Store, doomed: Sequence[keys.Key]) -> None:
        for key in doomed:
            copy_object(store, Path(self._orders.archive), key)
        if doomed:
            gc = read_head(store).head.gc
            self._say(Deleting(tuple(doomed), gc.count, gc.before))

    def _say(self, line: KeeperLine) -> None:
        """Write a line at once, in one piece: what is in the file is there, whatever happens to this process."""
        kind = next(name for name, known in _LINES.items() if isinstance(line, known))
        os.write(self._log, (json.dumps({"line": kind, **asdict(line)}) + "\n").encode())


def copy_object(store: Store, archive: Path, key: keys.Key) -> None:
    """Copy an object to the archive, which is a directory store; one that is gone has been copied by who deleted it."""
    copy = archive / key
    if copy.exists():
        return  # no key ever gets other bytes (V11)
    try:
        fetched = store.get(key)
    except NotFound:
        return
    assert fetched is not None
    copy.parent.mkdir(parents=True, exist_ok=True)
    part = archive.parent / f"{archive.name}-{os.getpid()}.part"
    part.write_bytes(bytes(fetched.data))
    os.rename(part, copy)


def complete(archive: Path, store: Store) -> None:
    """Copy to the archive what the store still has: then it has everything that the store ever had."""
    for page in store.list():
        for meta in page:
            copy_object(store, archive, keys.as_listed(meta.key))
