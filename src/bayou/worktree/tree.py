"""The one way to change payload on this machine (V7)."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from bayou.core import paths
from bayou.core.errors import BayouError
from bayou.worktree.atomic_write import AtomicFile, append, is_temporary
from bayou.worktree.durability import parallel_fsync, refused, translate_oserror, tree_error
from bayou.worktree.hashing import FileStat
from bayou.worktree.journal import Journal, Kind
from bayou.worktree.safe_root import SafeRoot
from bayou.worktree.staged_directory import StagedDirectory

if TYPE_CHECKING:
    from typing_extensions import Buffer

_CHUNK = 1 << 20
_OPEN_AT_ONCE = 64

Source = bytes | BinaryIO | Iterable[bytes]


class Worktree:
    """The payload directory. Every change opens its journal rows first and closes them last; no caller can forget.

    A name that is not payload, or that a link, a directory or another spelling stands in the way of, is refused
    (`PathRefused`) before anything is journaled; a failure of the file system is a `TreeError`, and what was there is
    still there. Safe to use from many threads and processes.
    """

    def __init__(self, root: Path, journal: Journal) -> None:
        self.root = root
        self._journal = journal
        self._ground = SafeRoot(root)

    def write(self, path: str, content: Source) -> None:
        """Make `content` the file at `path`: whole and durable when this returns, the old file until then."""
        with self.writing(path) as file:
            for chunk in _chunks(content):
                file.write(chunk)

    def write_many(self, items: Sequence[tuple[str, bytes]]) -> None:
        """Write several files under one opening of the journal; all are durable before the first gets its name."""
        if not items:
            return
        with self._changing("write", [path for path, _ in items]) as touched, contextlib.ExitStack() as open_drafts:
            drafts: list[AtomicFile] = []
            for start in range(0, len(items), _OPEN_AT_ONCE):
                for path, content in items[start : start + _OPEN_AT_ONCE]:
                    draft = open_drafts.enter_context(AtomicFile(self._ground, path, touched))
                    drafts.append(draft)
                    draft.file.write(content)
                parallel_fsync(AtomicFile.seal, drafts[start:])
            for draft in drafts:
                draft.place()

    @contextlib.contextmanager
    def writing(self, path: str) -> Iterator[BinaryIO]:
        """Yield a file that becomes `path` when the block ends, and never existed if the block raises (V14)."""
        with self._changing("write", [path]) as touched, AtomicFile(self._ground, path, touched) as draft:
            yield draft.file
            draft.seal()
            draft.place()

    def append(self, path: str, data: bytes, *, at: int | None = None) -> None:
        """Add `data` to the end of `path`, durable when this returns; nothing is added if it raises.

        With `at`, the file must be there and have that many bytes: what lies beyond was left by somebody who did not
        live to say so, and is cut off; `ContentChanged` if it has fewer.
        """
        with self._changing("write", [path]) as touched, translate_oserror(f"cannot append to {path}"):
            append(self._ground, path, data, touched, at)

    def assemble(self, parent: str) -> StagedDirectory:
        """Return the `with` block of a new directory below `parent`, which `Assembly.place` puts into its place."""
        return StagedDirectory(self._ground, self._journal, _checked_directory(parent))

    def assembled(self, parent: str, temporary: str) -> StagedDirectory | None:
        """Return a directory that `Assembly.keep` left behind, to go on with it; None if it is not there any more."""
        with translate_oserror(f"cannot look at {parent}"):
            found = self._ground.status(f"{_checked_directory(parent)}/{temporary}")
        if found is None or not is_temporary(temporary):
            return None
        return StagedDirectory(self._ground, self._journal, parent, temporary)

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory of the tree, in no order, temporaries included; none if it is not there."""
        try:
            with (
                self._ground.spot(f"{_checked_directory(directory)}/.") as spot,
                os.scandir(spot.directory) as entries,
            ):
                return [entry.name for entry in entries]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise tree_error(error, f"cannot read {directory}") from error

    def delete(self, path: str) -> None:
        """Delete the file at `path`. Journaled also if there is none here: the store may have it."""
        self.delete_many([path])

    def delete_many(self, doomed: Sequence[str]) -> None:
        """Delete several files under one opening of the journal, and the directories that this leaves empty."""
        if not doomed:
            return
        with self._changing("delete", list(doomed)) as touched:
            for path in doomed:
                with translate_oserror(f"cannot delete {path}"):
                    self._ground.remove(path, touched)

    def place(self, path: str) -> Path:
        """Return where `path` is on this machine, reached through real directories only (V21)."""
        found = self._status(path)
        if found is not None and stat.S_ISLNK(found.st_mode):
            raise refused(path, "it is a symbolic link")
        return self.root / path

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading; `FileNotFoundError` if there is none here."""
        try:
            with self._ground.spot(paths.check(path)) as spot:
                spot.check_free()
                return os.fdopen(os.open(spot.name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=spot.directory), "rb")
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(errno.ENOENT, "no such file in the tree", path) from None
        except OSError as error:
            raise tree_error(error, f"cannot read {path}") from error

    def stat(self, path: str) -> FileStat | None:
        """Look at the regular file at `path`; None if there is none here."""
        found = self._status(path)
        return FileStat.of(found) if found is not None and stat.S_ISREG(found.st_mode) else None

    def exists(self, path: str) -> bool:
        return self.stat(path) is not None

    def _status(self, path: str) -> os.stat_result | None:
        with translate_oserror(f"cannot look at {path}"):
            return self._ground.status(paths.check(path))

    @contextlib.contextmanager
    def _changing(self, kind: Kind, changed: Sequence[str]) -> Iterator[set[str]]:
        """Check, open rows, let the change happen, sync the directories that it names, close the rows (V7)."""
        check = self._ground.check_free if kind == "write" else self._ground.check_gone
        for path in changed:
            with translate_oserror(f"cannot {kind} {path}"):
                check(paths.check(path))
        ticket = self._journal.open(kind, changed)
        touched: set[str] = set()
        try:
            yield touched
            self._ground.sync(touched)
        except BaseException:
            # The first error is the one to tell; a row that stays open is looked at once this process is gone.
            with contextlib.suppress(BayouError):
                self._journal.close(ticket)
            raise
        self._journal.close(ticket)


def _checked_directory(directory: str) -> str:
    """Return a directory whose files would be payload, or raise `PathRefused`."""
    paths.check(f"{directory}/x")
    return directory


def _chunks(content: Source) -> Iterator[Buffer]:
    if isinstance(content, bytes | bytearray | memoryview):
        yield content
    elif hasattr(content, "read"):
        while chunk := content.read(_CHUNK):
            yield chunk
    else:
        yield from content
