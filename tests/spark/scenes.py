"""Places where a sync has all kinds of things to decide, made anew in another directory as often as somebody asks."""

from __future__ import annotations

import shutil
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Literal

from bayou.index.head import read_head
from bayou.index.node_store import StoreNodes
from bayou.index.tree import IndexTree, scan
from bayou.repo import open_repo
from bayou.sync.report import SyncReport
from bayou.worktree.hashing import FileStat
from tests.sync.conftest import Clone, Team

Here = Literal["same", "write", "rewrite", "delete", "lose", "edit", "touch", "undone"]
There = Literal["same", "write", "rewrite", "delete"]
Weight = Literal["light", "empty", "middling", "heavy"]

_BYTES: dict[Weight, int] = {"light": 0, "empty": 0, "middling": 30_000, "heavy": 50_000}


@dataclass(frozen=True)
class Fate:
    """What happens to one path: whether both knew it, what each side has done to it since, and how large it is."""

    path: str
    known: bool
    here: Here
    there: There
    weight: Weight = "light"

    def content(self, text: str) -> bytes:
        """Return what the path has where this is said of it: only what both knew from the start may be empty."""
        if self.weight == "empty" and text.startswith("known"):
            return b""
        size = _BYTES[self.weight]
        if len(self.path) % 2:
            return text.encode() + (text.encode() * size)[:size]  # a pack deflates it
        return text.encode() + Random(f"{self.path} {text}").randbytes(size)

    @property
    def first(self) -> bytes:
        """What both knew."""
        return self.content(f"known {self.path}")


@dataclass(frozen=True)
class Scene:
    """The fates of some paths, and how the sync is asked for."""

    fates: tuple[Fate, ...]
    options: dict[str, Any] = field(default_factory=dict)
    marked: str | None = None
    exclude: tuple[str, ...] = ()
    lazy: bool = False

    def make(self, root: Path) -> Clone:
        """Make a store and two clones in `root`; return the one that is to be synced."""
        (root / "store").mkdir(parents=True)
        team = Team(root, (root / "store").as_uri(), {})
        here, there = team.clone("here"), team.clone("there")
        there.write_all({one.path: one.first for one in self.fates if one.known} or {"files/_": b""})
        there.push(engine="point")
        here.pull(engine="point")
        for one in self.fates:
            _there(there, one)
        there.push(engine="point")
        if self.lazy or self.exclude:
            _configure(here, lazy=self.lazy, exclude=self.exclude)
        for one in self.fates:
            _here(here, one)
        if self.marked is not None:
            here.mark_dirty(self.marked or None)
        return here


def _there(clone: Clone, one: Fate) -> None:
    match one.there:
        case "write":
            clone.write(one.path, one.content("one"))
        case "rewrite":
            clone.write(one.path, one.content("two of the others"))
        case "delete" if one.known:
            clone.delete(one.path)


def _here(clone: Clone, one: Fate) -> None:
    file = clone.repo.tree_root / one.path
    match one.here:
        case "write":
            clone.write(one.path, one.content("one"))
        case "rewrite":
            clone.write(one.path, one.content("two of ours"))
        case "delete" if one.known:
            clone.delete(one.path)
        case "undone" if one.known:
            _delete_half(clone, one)
        case "lose":
            file.unlink(missing_ok=True)
        case "edit":
            clone.lay(one.path, one.content("by hand"))
        case "touch" if file.exists():
            file.touch()


def _delete_half(clone: Clone, one: Fate) -> None:
    """Leave what a process leaves that died before it carried out a delete."""
    clone.delete(one.path)
    clone.lay(one.path, one.first)
    with sqlite3.connect(clone.repo.state / "sync.db") as db:
        db.execute("UPDATE journal SET state = 'abandoned' WHERE path = ? AND kind = 'delete'", (one.path,))


def _configure(clone: Clone, *, lazy: bool, exclude: tuple[str, ...]) -> None:
    text = clone.repo.file.read_text()
    more = ['hydrate = "lazy"'] if lazy else []
    more += [f"exclude = {list(exclude)}".replace("'", '"')] if exclude else []
    clone.repo.file.write_text(text.replace("[datastore]\n", "\n".join(["[datastore]", *more, ""])))
    clone.reopen()


def copy(clone: Clone, target: Path) -> Clone:
    """Copy a clone and its store; what is known of files by their stat stays known."""
    root = clone.repo.root.parent
    shutil.copytree(root, target, symlinks=True)
    repo = target / clone.repo.root.name
    file = repo / "bayou.toml"
    file.write_text(file.read_text().replace((root / "store").as_uri(), (target / "store").as_uri()))
    with sqlite3.connect(repo / ".bayou/state/sync.db") as db:
        db.execute("UPDATE place SET url = replace(url, ?, ?)", (str(root), str(target)))
        for path, *known in db.execute("SELECT path, size, mtime, ctime, inode FROM file").fetchall():
            old, new = clone.repo.tree_root / path, repo / ".bayou/tree" / path
            if old.is_file() and FileStat.of(old.lstat()) == FileStat(*known):
                stat = FileStat.of(new.lstat())
                db.execute("UPDATE file SET ctime = ?, inode = ? WHERE path = ?", (stat.ctime_ns, stat.inode, path))
    return Clone(open_repo(repo))


def outcome(clone: Clone, report: SyncReport) -> dict[str, Any]:
    """Return all that a sync leaves behind, but for names, times and what it cost."""
    root = clone.repo.root
    with sqlite3.connect(root / ".bayou/state/sync.db") as db:
        state = {
            name: sorted(db.execute(statement).fetchall(), key=repr)
            for name, statement in {
                "journal": "SELECT kind, path, state FROM journal",
                "absent": "SELECT path, why FROM absent",
                "untracked": "SELECT path, size FROM untracked",
                "intent": "SELECT path FROM intent",
                "upload": "SELECT path, size, done FROM upload",
                "pending": "SELECT rows FROM pending",
                "matches": "SELECT path, hex(sha256) FROM file WHERE matches IS NOT NULL",
            }.items()
        }
        root_of_base, etag = db.execute("SELECT root, etag FROM place").fetchone()
    store = clone.repo.store()
    seen = read_head(store)
    assert seen is not None
    entries = list(scan(IndexTree(StoreNodes(store), seen.head.root)))
    kept = [(one.path, one.kept, Path(one.copy).read_bytes() if one.copy else None) for one in report.conflicts]
    return {
        **state,
        "tree": clone.files,
        "entries": [(one.path, one.size, one.sha256) for one in entries],
        "base": (root_of_base is None, etag is not None),
        "conflicts": sorted(kept, key=repr),
        "report": (report.mode, report.pushed, report.pulled, report.exit_code),
        "told": [sorted(report.untracked), sorted(report.missing), sorted(report.warnings)],
        "failed": sorted((one.path, one.code) for one in report.failed),
        "refused": sorted((one.path, one.reason) for one in report.refused),
        "left": sorted(
            path.name for path in (root / ".bayou/state").iterdir() if path.is_dir() and any(path.iterdir())
        ),
    }
