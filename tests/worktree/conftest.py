"""A tree of its own for each test, and file systems that fail or fold on demand."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bayou.worktree.tree import Worktree
from tests.worktree.commoner import Commoner
from tests.worktree.journals import RecordingJournal


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "tree"


@pytest.fixture
def journal() -> RecordingJournal:
    return RecordingJournal()


@pytest.fixture
def tree(root: Path, journal: RecordingJournal) -> Worktree:
    return Worktree(root, journal)


@pytest.fixture
def files(root: Path) -> Callable[[], dict[str, bytes]]:
    """All that lies in the tree, temporaries included, as it is now."""

    def look() -> dict[str, bytes]:
        return {
            found.relative_to(root).as_posix(): found.read_bytes()
            for found in root.rglob("*")
            if found.is_file() and not found.is_symlink()
        }

    return look


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch, journal: RecordingJournal) -> list[str]:
    """What the journal and the file system were asked to do, in order."""
    log = journal.events

    def spied(name: str, describe: Callable[..., str]) -> None:
        real = getattr(os, name)

        def spy(*args: Any, **kwargs: Any) -> Any:
            result = real(*args, **kwargs)
            log.append(describe(*args))
            return result

        monkeypatch.setattr(os, name, spy)

    def synced(descriptor: int) -> str:
        return "sync directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "sync file"

    spied("fsync", synced)
    spied("replace", lambda *_: "rename")
    spied("unlink", lambda *_: "unlink")
    spied("rmdir", lambda *_: "rmdir")
    spied("ftruncate", lambda *_: "truncate")
    return log


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make one function of `os` fail, from its nth call on that `only` agrees with."""

    def break_it(
        name: str, code: int = errno.ENOSPC, *, after: int = 0, only: Callable[..., bool] | None = None
    ) -> None:
        real = getattr(os, name)
        calls = 0

        def failing(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            if only is None or only(*args):
                calls += 1
                if calls > after:
                    raise OSError(code, os.strerror(code))
            return real(*args, **kwargs)

        monkeypatch.setattr(os, name, failing)

    return break_it


@pytest.fixture
def folding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the file system take names that differ by case only for one, as those of macOS do."""

    def fold(name: str, directory: int) -> str:
        names = os.listdir(directory)
        return name if name in names else next((n for n in names if n.casefold() == name.casefold()), name)

    def folded(function: str, where: str, position: int = 0) -> None:
        real = getattr(os, function)

        def folds(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get(where) is not None:
                head, tail = args[:position], args[position + 1 :]
                args = (*head, fold(args[position], kwargs[where]), *tail)
            return real(*args, **kwargs)

        monkeypatch.setattr(os, function, folds)

    for function in ("stat", "open", "mkdir", "unlink", "rmdir"):
        folded(function, "dir_fd")
    folded("replace", "dst_dir_fd", 1)


@pytest.fixture
def commoner() -> Iterator[Commoner]:
    """A user without privileges; not in pytest's own directory, which is closed to others."""
    with tempfile.TemporaryDirectory() as directory:
        somebody = Commoner.at(Path(directory))
        yield somebody
        somebody.open_up()
