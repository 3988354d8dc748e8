"""A datastore and its replica, for tests of replication; and a compaction, done by hand."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from bayou.core.errors import BayouError
from bayou.index.entry import Entry
from bayou.objectstore import Store, keys, open_store
from bayou.repo import open_repo
from bayou.sync.report import ReplicateReport
from tests import api
from tests.packs.moving import move
from tests.sync.conftest import Clone, Team
from tests.sync.indexes import entries_of

FILES = {f"files/{number}.txt": f"content {number}".encode() for number in range(12)}


@dataclass
class Scene:
    """A datastore with some files, and an empty place for its replica."""

    team: Team
    alice: Clone
    url: str

    def replicate(self, **options: Any) -> ReplicateReport:
        return api.replicate(self.alice.repo, self.url, **options)

    def replicate_at_once(self, number: int) -> list[ReplicateReport | BayouError]:
        """Start several replications at once; return what came of each."""

        def run(_: int) -> ReplicateReport | BayouError:
            try:
                return api.replicate(open_repo(self.alice.repo.root), self.url)
            except BayouError as error:
                return error

        with ThreadPoolExecutor(number) as pool:
            return list(pool.map(run, range(number)))

    def push(self, files: dict[str, bytes]) -> None:
        self.alice.write_all(files)
        self.alice.push()

    @property
    def store(self) -> Store:
        return open_store(self.url)

    @property
    def replica(self) -> Team:
        return Team(self.team.root, self.url, {})


def listed(store: Store) -> set[str]:
    return {meta.key for page in store.list() for meta in page}


def payload(store: Store) -> list[str]:
    """Return the keys of what holds files: objects of their own, and packs."""
    return sorted(key for key in listed(store) if not key.startswith(".bayou/") or key.startswith(keys.PACKS))


def compact(store: Store) -> str:
    """Move every file into one new pack, as a compaction does: only locations change (P4). Return the pack's name."""
    move(store)
    (pack,) = {entry.pack for entry in entries_of(store).values()}
    return pack


def damage(team: Team, entry: Entry) -> None:
    """Change a byte of a file in its pack, in a store that is a directory."""
    assert entry.offset is not None
    file = team.root / "store" / entry.key
    data = bytearray(file.read_bytes())
    data[entry.offset] ^= 1
    file.write_bytes(data)
