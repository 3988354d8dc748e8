"""A directory that is staged beside its final place and gets its name in one rename: completely, or not at all."""

from __future__ import annotations

import contextlib
import errno
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from bayou.core import paths
from bayou.core.atomic_file import fsync_directory, fsync_file
from bayou.core.errors import BayouError
from bayou.worktree.atomic_write import OutFile, temporary_name
from bayou.worktree.durability import translate_oserror
from bayou.worktree.journal import Journal
from bayou.worktree.safe_root import DIRECTORY, DirEntryRef, SafeRoot, is_private

_BUFFER = 1 << 17
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
_NO_LINKS = (errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EXDEV, errno.EACCES)


class StagedDirectory:
    """A temporary directory, for a `with` block. Unless `install` returned True or `keep` was called, nothing of it
    stays behind (V14).

    A directory that is not empty is never replaced: of several processes that want the same name, on this machine or
    on others that share the file system, exactly one gets it.
    """

    def __init__(self, safe_root: SafeRoot, journal: Journal, parent: str, temporary: str | None = None) -> None:
        self.parent = parent
        self.temporary = temporary or temporary_name()
        self._safe_root = safe_root
        self._journal = journal
        self._made = temporary is not None
        self._changed_dirs: set[str] = set()
        self._staying = False

    @property
    def path(self) -> Path:
        """The directory as it is on this machine, for programs that write into it themselves."""
        return self._safe_root.root / self.parent / self.temporary

    def __enter__(self) -> StagedDirectory:
        if not self._made:
            with translate_oserror(f"cannot write below {self.parent}"):
                self._safe_root.create(f"{self.parent}/{self.temporary}", self._changed_dirs, _make_directory)
            self._made = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._staying:
            self.discard()

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        """Yield a file of the directory; it is durable when the block ends."""
        what = f"cannot write {self.parent}/{name}"
        with self._inside(what) as directory:
            with translate_oserror(what):
                # The directory is open to this user only, or to others too, and its files get the same access.
                mode = 0o600 if is_private(os.fstat(directory).st_mode) else 0o666
                descriptor = os.open(name, _CREATE, mode, dir_fd=directory)
            try:
                with io.BufferedWriter(OutFile(descriptor, what, closefd=False), _BUFFER) as file:
                    yield file
                with translate_oserror(what):
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def write(self, name: str, content: bytes) -> None:
        """Write a file of the directory, durable when this returns."""
        with self.writing(name) as file:
            file.write(content)

    def link(self, name: str, path: str) -> None:
        """Hard-link a file of the tree into the directory, or copy it where the file system has no hard links."""
        what = f"cannot copy {path}"
        with self._inside(what) as directory, translate_oserror(what), self._safe_root.locate(paths.check(path)) as ref:
            ref.check_free()
            try:
                os.link(ref.name, name, src_dir_fd=ref.directory, dst_dir_fd=directory, follow_symlinks=False)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                source = os.open(ref.name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=ref.directory)
                import shutil  # noqa: PLC0415  (imports every compression; rarely needed)

                with os.fdopen(source, "rb") as reader, self.writing(name) as writer:
                    shutil.copyfileobj(reader, writer, _BUFFER)

    def adopt(self, name: str, source: Path) -> None:
        """Hard-link a durable file of this user's state into the directory, or copy it where that cannot be.

        A directory that others may read gets a copy, with the access that its files have.
        """
        what = f"cannot write {self.parent}/{name}"
        with self._inside(what) as directory, translate_oserror(what):
            if is_private(os.fstat(directory).st_mode):
                try:
                    os.link(source, name, dst_dir_fd=directory, follow_symlinks=False)
                except OSError as error:
                    if error.errno not in _NO_LINKS:
                        raise
                else:
                    return
            import shutil  # noqa: PLC0415

            with source.open("rb") as reader, self.writing(name) as writer:
                shutil.copyfileobj(reader, writer, _BUFFER)

    def sync(self, *names: str) -> None:
        """Make the directory durable, and these of its files, which another program may have written."""
        what = f"cannot write below {self.parent}"
        with self._inside(what) as directory, translate_oserror(what):
            for name in names:
                fsync_file(name, dir_fd=directory)
            fsync_directory(directory)

    def install(self, directory: str, names: Sequence[str]) -> bool:
        """Rename this to `directory`, with the files `names`, atomically; return False if that name is taken.

        Call `sync` first. The rename is journaled, as every change of the tree is (V7).
        """
        with translate_oserror(f"cannot write {directory}"):
            if not self._vacant(directory):
                return False
        ticket = self._journal.open("write", [paths.check(f"{directory}/{name}") for name in names])
        try:
            with translate_oserror(f"cannot write {directory}"), self._safe_root.locate(directory) as ref:
                try:
                    os.rename(self.temporary, ref.name, src_dir_fd=ref.directory, dst_dir_fd=ref.directory)
                except OSError as error:
                    if error.errno not in _TAKEN:
                        raise
                    return False
                self._staying = True
            self._safe_root.sync(self._changed_dirs | {self.parent})
        finally:
            # The first error is the one to report; a sync checks a row that stays open after this process has ended.
            with contextlib.suppress(BayouError):
                self._journal.close(ticket)
        return True

    @staticmethod
    def keep(staged: Sequence[StagedDirectory]) -> None:
        """Keep directories after their blocks, so that a process can continue them (`Worktree.resume_directory`)."""
        if staged:
            changed_dirs = {path for directory in staged for path in (directory.parent, *directory._changed_dirs)}
            staged[0]._safe_root.sync(changed_dirs)
        for directory in staged:
            directory._staying = True

    def discard(self) -> None:
        """Delete the directory; if that fails, it stays as a temporary, which every scan ignores."""
        import shutil  # noqa: PLC0415

        self._staying = True
        with contextlib.suppress(BayouError, OSError), self._safe_root.locate(f"{self.parent}/{self.temporary}") as ref:
            shutil.rmtree(ref.name, dir_fd=ref.directory)
        self._safe_root.prune(f"{self.parent}/{self.temporary}")

    def _vacant(self, directory: str) -> bool:
        """Return whether nothing, or an empty directory, has the name `directory`; `PathRefused` if a link has."""
        try:
            with self._safe_root.locate(f"{directory}/.") as ref, os.scandir(ref.directory) as entries:
                return next(entries, None) is None
        except FileNotFoundError:
            return True
        except NotADirectoryError:
            return False

    @contextlib.contextmanager
    def _inside(self, what: str) -> Iterator[int]:
        """Yield a descriptor of the temporary directory."""
        with contextlib.ExitStack() as stack:
            with translate_oserror(what):
                ref = stack.enter_context(self._safe_root.locate(f"{self.parent}/{self.temporary}"))
                directory = os.open(ref.name, DIRECTORY, dir_fd=ref.directory)
            stack.callback(os.close, directory)
            yield directory


def _make_directory(ref: DirEntryRef) -> None:
    os.mkdir(ref.name, 0o700 if ref.private else 0o777, dir_fd=ref.directory)
