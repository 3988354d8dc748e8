"""One machine of a simulation: a tree, programs that write into it, and commands."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from bayou.config.settings import Config, DatastoreConfig, SyncConfig
from bayou.index.entry import Entry
from bayou.index.node_store import LocalNodes, NodeFiles
from bayou.objectstore.store import Store
from bayou.repo import LOCAL, Repo
from bayou.state.base import SyncBase
from bayou.state.database import Database
from bayou.state.journal import Journal
from bayou.sync.conflicts.copies import Conflicts
from bayou.sync.report import CollectReport, CompactReport, Mode, SyncOptions, SyncReport, VerifyReport
from bayou.sync.service import Datastore, OpenMark
from bayou.worktree.atomic_write import is_temporary, temporary_name
from tests import api

URL = "memory://sim"


@lru_cache(16)
def _places(root: Path) -> tuple[Path, Path, Path]:
    local = root / LOCAL
    return local / "tree", local / "state", local / "conflicts"


class SimRepo(Repo, frozen=True):
    """A repo whose store is the one it was given. It is asked for its places a hundred times in each command."""

    given: Store | None = None

    @property
    def tree_root(self) -> Path:
        return _places(self.root)[0]

    @property
    def state(self) -> Path:
        return _places(self.root)[1]

    @property
    def conflicts(self) -> Path:
        return _places(self.root)[2]

    def store(self) -> Store:
        assert self.given is not None
        return self.given


@dataclass(eq=False)
class Busy:
    """A program that has said that it writes, and has not ended yet."""

    datastore: Datastore
    marked: OpenMark
    under: str | None


@dataclass(eq=False)
class Slow:
    """A program that takes its time to write one file: its row is open, and the file not there yet."""

    path: str
    file: BinaryIO
    _open: ExitStack

    @classmethod
    def begin(cls, repo: Repo, path: str) -> Slow:
        stack = ExitStack()
        datastore = stack.enter_context(Datastore(repo))
        return cls(path, stack.enter_context(datastore.tree.writing(path)), stack)

    def end(self, content: bytes) -> None:
        self.file.write(content)
        self._open.close()


@dataclass(eq=False)
class Client:
    """A clone. Programs act on it from the scheduler's own thread, at once; commands run in threads of their own."""

    name: str
    repo: SimRepo
    busy: list[Busy] = field(default_factory=list)
    slow: list[Slow] = field(default_factory=list)
    dead: bool = False
    """The running command was killed: nothing that unwinds may touch anything any more."""
    lost_state: bool = False
    marked_since_loss: bool = False
    begun_since_loss: set[str] = field(default_factory=set)
    """What programs said they would write, and died: a file that is there may be theirs."""
    missed: set[str] = field(default_factory=set)
    """What the tree had when it was wiped."""
    scribbles: int = 0
    _kept: tuple[frozenset[str], list[tuple[str, bytes]]] = (frozenset(), [])

    @classmethod
    def at(cls, name: str, root: Path, store: Store, pack_below: int = 0) -> Client:
        (root / ".bayou" / "tree").mkdir(parents=True)
        return cls.reopened(name, root, store, pack_below)

    @classmethod
    def reopened(cls, name: str, root: Path, store: Store, pack_below: int = 0) -> Client:
        """Return a clone that is there already."""
        config = Config("sim", DatastoreConfig(url=URL), SyncConfig(pack_below=pack_below))
        return cls(name, SimRepo(root, config, given=store))

    # ---- programs ----

    def write(self, files: dict[str, bytes]) -> None:
        with Datastore(self.repo) as datastore:
            datastore.tree.write_many(list(files.items()))

    def delete(self, paths: list[str]) -> None:
        with Datastore(self.repo) as datastore:
            datastore.tree.delete_many(paths)

    def half(self, kind: str, path: str) -> None:
        """Open a row and die before the change is made."""
        with Datastore(self.repo) as datastore:
            assert isinstance(datastore.tree._journal, Journal)
            datastore.tree._journal.open("write" if kind == "write" else "delete", [path])
        if kind == "write":
            self.begun_since_loss.add(path)

    def leave_temporary(self, directory: str) -> None:
        """Leave the temporary file of a killed writer in a directory, if there is such a directory."""
        if (self.repo.tree_root / directory).is_dir():
            (self.repo.tree_root / directory / temporary_name()).write_bytes(b"half of a file")

    def mark(self, under: str | None) -> Busy:
        """Say that a program writes by itself; it goes on until `end`."""
        datastore = Datastore(self.repo)
        program = Busy(datastore, datastore.sync.mark_dirty(under), under)
        self.busy.append(program)
        self.marked_since_loss = True
        return program

    def scribble(self, path: str, content: bytes) -> None:
        """Write into the tree without a word, in place, as a program does that has marked it dirty."""
        file = self.repo.tree_root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        self.scribbles += 1
        os.utime(file, ns=(self.scribbles, self.scribbles))  # `settled` of `virtual` relies on it

    def end(self, program: Busy, *, clean: bool) -> None:
        """End a program: it says so, or it dies."""
        self.busy.remove(program)
        if clean:
            program.marked.done()
        program.datastore.close()

    def begin_slowly(self, path: str) -> None:
        self.slow.append(Slow.begin(self.repo, path))
        self.begun_since_loss.add(path)

    def writes(self, path: str) -> bool:
        """Whether a program is about to write there."""
        return any(writer.path == path for writer in self.slow)

    def end_slowly(self, content: bytes) -> str:
        """Let the slowest writer finish; return what it wrote to."""
        writer = self.slow.pop(0)
        writer.end(content)
        return writer.path

    def wipe(self) -> None:
        self.missed.update(self.files)
        shutil.rmtree(self.repo.tree_root)
        self.repo.tree_root.mkdir()

    def lose_state(self) -> None:
        shutil.rmtree(self.repo.state, ignore_errors=True)
        self.lost_state, self.marked_since_loss = True, False
        self.begun_since_loss.clear()

    # ---- commands ----

    def sync(self, mode: Mode, *, walk: bool) -> SyncReport:
        return api.sync(self.repo, SyncOptions(mode=mode, walk=walk))

    def gc(self, grace_s: float) -> CollectReport:
        return api.collect(self.repo, dry_run=False, grace_s=grace_s)

    def compact(self, grace_s: float) -> CompactReport:
        return api.compact(self.repo, dry_run=False, grace_s=grace_s)

    def verify(self, *, repair: bool, deep: bool = False) -> VerifyReport:
        return api.verify(self.repo, deep=deep, repair=repair)

    # ---- looking ----

    @property
    def files(self) -> dict[str, bytes]:
        root = self.repo.tree_root
        files = (file for file in root.rglob("*") if file.is_file() and not is_temporary(file.name))
        return {file.relative_to(root).as_posix(): file.read_bytes() for file in files}

    def below(self, directory: str) -> list[str]:
        """Return the files of a directory."""
        try:
            names = os.listdir(self.repo.tree_root / directory)
            return sorted(f"{directory}/{name}" for name in names if not is_temporary(name))
        except FileNotFoundError:
            return []

    def content(self, path: str) -> bytes | None:
        try:
            with open(f"{self.repo.tree_root}/{path}", "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def kept(self, path: str) -> set[bytes]:
        """Return what conflicts kept of a path; ask while no command runs here."""
        folder = self.repo.conflicts
        stamps = frozenset(os.listdir(folder)) if folder.is_dir() else frozenset()
        if stamps != self._kept[0]:
            copies = [(one.path, Path(one.copy).read_bytes()) for one in Conflicts(folder).list()]
            self._kept = stamps, copies
        return {content for name, content in self._kept[1] if name == path}

    def journaled(self, *, marks: bool = True) -> set[str]:
        """Return the paths that rows name, those of marks included or not."""
        if not (self.repo.state / "sync.db").exists():
            return set()
        with sqlite3.connect(self.repo.state / "sync.db") as db:
            found = {path for path, kind in db.execute("SELECT path, kind FROM journal") if marks or kind != "tree"}
        db.close()
        return found

    def base(self, paths: set[str]) -> dict[str, Entry]:
        """Return what base says of these paths at this moment."""
        with Database(self.repo.state / "sync.db") as database:
            nodes = LocalNodes(NodeFiles(self.repo.state / "nodes"), "look")
            return SyncBase(database, URL, None, nodes).lookup(paths)
