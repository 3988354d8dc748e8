"""`Worktree`: the only way for a program to change payload on this machine (V7).

Each change checks the path, opens its journal rows, writes, makes the result durable, and closes the rows.
"""

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
from bayou.worktree.durability import parallel_fsync, path_refused, translate_oserror, tree_error
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
    """The payload directory. Every change opens its journal rows first and closes them last; no caller can omit it.

    `PathRefused` is raised before anything is journaled, for a path that is not payload or whose place a link, a
    directory or another spelling occupies. A failure of the file system raises `TreeError`, and the old content is
    unchanged. Safe to use from many threads and processes.
    """

    def __init__(self, root: Path, journal: Journal) -> None:
        self.root = root
        self._journal = journal
        self._safe_root = SafeRoot(root)

    def write(self, path: str, content: Source) -> None:
        """Make `content` the file at `path`, complete and durable when this returns; until then the old file stays."""
        with self.writing(path) as file:
            for chunk in _chunks(content):
                file.write(chunk)

    def write_many(self, items: Sequence[tuple[str, bytes]]) -> None:
        """Write several files with one transaction of the journal; all are durable before the first gets its name."""
        if not items:
            return
        with (
            self._changing("write", [path for path, _ in items]) as changed_dirs,
            contextlib.ExitStack() as open_drafts,
        ):
            drafts: list[AtomicFile] = []
            for start in range(0, len(items), _OPEN_AT_ONCE):
                for path, content in items[start : start + _OPEN_AT_ONCE]:
                    draft = open_drafts.enter_context(AtomicFile(self._safe_root, path, changed_dirs))
                    drafts.append(draft)
                    draft.file.write(content)
                parallel_fsync(AtomicFile.seal, drafts[start:])
            for draft in drafts:
                draft.rename()

    @contextlib.contextmanager
    def writing(self, path: str) -> Iterator[BinaryIO]:
        """Yield a file that becomes `path` when the block ends; if the block raises, nothing stays behind (V14)."""
        with self._changing("write", [path]) as changed_dirs, AtomicFile(self._safe_root, path, changed_dirs) as draft:
            yield draft.file
            draft.seal()
            draft.rename()

    def append(self, path: str, data: bytes, *, at: int | None = None) -> None:
        """Add `data` to the end of `path`, durable when this returns; nothing is added if it raises.

        With `at`, the file must exist and have at least that many bytes, or `ContentChanged` is raised. Bytes beyond
        `at` are of a writer that ended before it recorded them, and are cut off.
        """
        with self._changing("write", [path]) as changed_dirs, translate_oserror(f"cannot append to {path}"):
            append(self._safe_root, path, data, changed_dirs, at)

    def stage_directory(self, parent: str) -> StagedDirectory:
        """Return a new directory below `parent`, for a `with` block; `StagedDirectory.install` gives it its name."""
        return StagedDirectory(self._safe_root, self._journal, _checked_directory(parent))

    def resume_directory(self, parent: str, temporary: str) -> StagedDirectory | None:
        """Return a directory that `StagedDirectory.keep` left behind, to continue it; None if it is gone."""
        with translate_oserror(f"cannot look at {parent}"):
            found = self._safe_root.lstat(f"{_checked_directory(parent)}/{temporary}")
        if found is None or not is_temporary(temporary):
            return None
        return StagedDirectory(self._safe_root, self._journal, parent, temporary)

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory of the tree, in no order, temporaries included; none if it is missing."""
        try:
            with (
                self._safe_root.locate(f"{_checked_directory(directory)}/.") as ref,
                os.scandir(ref.directory) as entries,
            ):
                return [entry.name for entry in entries]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise tree_error(error, f"cannot read {directory}") from error

    def delete(self, path: str) -> None:
        """Delete the file at `path`. The delete is journaled even if the file is missing: the store may have it."""
        self.delete_many([path])

    def delete_many(self, deleted: Sequence[str]) -> None:
        """Delete several files with one transaction of the journal, and the directories that this leaves empty."""
        if not deleted:
            return
        with self._changing("delete", list(deleted)) as changed_dirs:
            for path in deleted:
                with translate_oserror(f"cannot delete {path}"):
                    self._safe_root.remove(path, changed_dirs)

    def local_path(self, path: str) -> Path:
        """Return the absolute path of `path`, after checking that no directory above it is a link (V21)."""
        found = self._status(path)
        if found is not None and stat.S_ISLNK(found.st_mode):
            raise path_refused(path, "it is a symbolic link")
        return self.root / path

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading; `FileNotFoundError` if it is missing."""
        return open_file(self._safe_root, path)

    def stat(self, path: str) -> FileStat | None:
        """Return the stat of the regular file at `path`; None if there is none."""
        found = self._status(path)
        return FileStat.of(found) if found is not None and stat.S_ISREG(found.st_mode) else None

    def exists(self, path: str) -> bool:
        return self.stat(path) is not None

    def _status(self, path: str) -> os.stat_result | None:
        with translate_oserror(f"cannot look at {path}"):
            return self._safe_root.lstat(paths.check(path))

    @contextlib.contextmanager
    def _changing(self, kind: Kind, changed: Sequence[str]) -> Iterator[set[str]]:
        """Check the paths, open their rows, yield for the change, sync the directories it adds, close the rows (V7)."""
        check = self._safe_root.check_free if kind == "write" else self._safe_root.check_gone
        for path in changed:
            with translate_oserror(f"cannot {kind} {path}"):
                check(paths.check(path))
        ticket = self._journal.open(kind, changed)
        changed_dirs: set[str] = set()
        try:
            yield changed_dirs
            self._safe_root.sync(changed_dirs)
        except BaseException:
            # The first error is the one to report; a sync checks a row that stays open after this process has ended.
            with contextlib.suppress(BayouError):
                self._journal.close(ticket)
            raise
        self._journal.close(ticket)


def open_file(safe_root: SafeRoot, path: str) -> BinaryIO:
    """Open a file of a tree for reading; `FileNotFoundError` if it is missing."""
    try:
        with safe_root.locate(paths.check(path)) as ref:
            ref.check_free()
            return os.fdopen(os.open(ref.name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=ref.directory), "rb")
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(errno.ENOENT, "no such file in the tree", path) from None
    except OSError as error:
        raise tree_error(error, f"cannot read {path}") from error


def _checked_directory(directory: str) -> str:
    """Return `directory` if its files are payload, or raise `PathRefused`."""
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
