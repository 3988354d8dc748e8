"""A directory of files on its way to its place: all of it gets there in one step, or none of it."""

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
    """The `with` block of one temporary directory beside its place. Unless `place` said yes, or `keep` was called,
    nothing of it stays behind (V14).

    A directory that holds anything is never replaced: of all who want one place, on this machine or on others that
    share the file system, one gets it.
    """

    def __init__(self, ground: SafeRoot, journal: Journal, parent: str, temporary: str | None = None) -> None:
        self.parent = parent
        self.temporary = temporary or temporary_name()
        self._ground = ground
        self._journal = journal
        self._made = temporary is not None
        self._gained: set[str] = set()
        self._staying = False

    @property
    def path(self) -> Path:
        """The directory as it is on this machine, for programs that write into it themselves."""
        return self._ground.root / self.parent / self.temporary

    def __enter__(self) -> StagedDirectory:
        if not self._made:
            with translate_oserror(f"cannot write below {self.parent}"):
                self._ground.make(f"{self.parent}/{self.temporary}", self._gained, _make_directory)
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
                # The directory was made here, for this user alone or for others too: so is what lies in it.
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
        """Make `content` a file of the directory, durable when this returns."""
        with self.writing(name) as file:
            file.write(content)

    def link(self, name: str, path: str) -> None:
        """Give a file of the tree a second name in the directory, or a copy where the file system has no links."""
        what = f"cannot copy {path}"
        with self._inside(what) as directory, translate_oserror(what), self._ground.spot(paths.check(path)) as spot:
            spot.check_free()
            try:
                os.link(spot.name, name, src_dir_fd=spot.directory, dst_dir_fd=directory, follow_symlinks=False)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                source = os.open(spot.name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=spot.directory)
                import shutil  # noqa: PLC0415  (with every compression there is; hardly ever needed)

                with os.fdopen(source, "rb") as reader, self.writing(name) as writer:
                    shutil.copyfileobj(reader, writer, _BUFFER)

    def sync(self, *names: str) -> None:
        """Make the directory durable, and these of its files, which somebody else may have written."""
        what = f"cannot write below {self.parent}"
        with self._inside(what) as directory, translate_oserror(what):
            for name in names:
                fsync_file(name, dir_fd=directory)
            fsync_directory(directory)

    def place(self, directory: str, names: Sequence[str]) -> bool:
        """Make this the directory `directory`, with the files `names`, in one step; say no if something is there.

        It must be synced. Journaled, as every change of the tree is (V7).
        """
        with translate_oserror(f"cannot write {directory}"):
            if not self._vacant(directory):
                return False
        ticket = self._journal.open("write", [paths.check(f"{directory}/{name}") for name in names])
        try:
            with translate_oserror(f"cannot write {directory}"), self._ground.spot(directory) as spot:
                try:
                    os.rename(self.temporary, spot.name, src_dir_fd=spot.directory, dst_dir_fd=spot.directory)
                except OSError as error:
                    if error.errno not in _TAKEN:
                        raise
                    return False
                self._staying = True
            self._ground.sync(self._gained | {self.parent})
        finally:
            # The first error is the one to tell; a row that stays open is looked at once this process is gone.
            with contextlib.suppress(BayouError):
                self._journal.close(ticket)
        return True

    @staticmethod
    def keep(assemblies: Sequence[StagedDirectory]) -> None:
        """Leave directories as they are when their blocks end: somebody is to go on with them (`Tree.assembled`)."""
        if assemblies:
            touched = {directory for one in assemblies for directory in (one.parent, *one._gained)}
            assemblies[0]._ground.sync(touched)
        for one in assemblies:
            one._staying = True

    def discard(self) -> None:
        """Remove what there is; what cannot be removed is a temporary that everybody ignores."""
        import shutil  # noqa: PLC0415

        self._staying = True
        with contextlib.suppress(BayouError, OSError), self._ground.spot(f"{self.parent}/{self.temporary}") as spot:
            shutil.rmtree(spot.name, dir_fd=spot.directory)
        self._ground.prune(f"{self.parent}/{self.temporary}")

    def _vacant(self, directory: str) -> bool:
        """Whether nothing, or an empty directory, is at a place; `PathRefused` for what does not belong in a tree."""
        try:
            with self._ground.spot(f"{directory}/.") as spot, os.scandir(spot.directory) as entries:
                return next(entries, None) is None
        except FileNotFoundError:
            return True
        except NotADirectoryError:
            return False

    @contextlib.contextmanager
    def _inside(self, what: str) -> Iterator[int]:
        with contextlib.ExitStack() as way:
            with translate_oserror(what):
                spot = way.enter_context(self._ground.spot(f"{self.parent}/{self.temporary}"))
                directory = os.open(spot.name, DIRECTORY, dir_fd=spot.directory)
            way.callback(os.close, directory)
            yield directory


def _make_directory(spot: DirEntryRef) -> None:
    os.mkdir(spot.name, 0o700 if spot.private else 0o777, dir_fd=spot.directory)
