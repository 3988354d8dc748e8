"""A file on its way to its place: a temporary beside it until it is whole and durable."""

from __future__ import annotations

import contextlib
import io
import os
import re
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO

from bayou.core.errors import BayouError
from bayou.core.ids import ulid
from bayou.tree.failure import explained
from bayou.tree.ground import Ground
from bayou.tree.spot import Spot

if TYPE_CHECKING:
    from typing_extensions import Buffer

_PREFIX, _SUFFIX = ".bayou-", ".tmp"
_MADE = re.compile(r"\.bayou-[0-9A-HJKMNP-TV-Z]{26}\.tmp", re.ASCII)
_BUFFER = 1 << 17


def temporary_name() -> str:
    """Return a name that no payload may have and no other file has."""
    return f"{_PREFIX}{ulid()}{_SUFFIX}"


def is_temporary(name: str) -> bool:
    return name.startswith(_PREFIX) and name.endswith(_SUFFIX)


def is_made(name: str) -> bool:
    """Whether a name is one that `temporary_name` gives, and nobody else thinks of."""
    return _MADE.fullmatch(name) is not None


def made_id(name: str) -> str:
    """Return the ULID in such a name: it tells when it was given."""
    return name.removeprefix(_PREFIX).removesuffix(_SUFFIX)


class OutFile(io.FileIO):
    """A file being written, whose failures are explained where they happen, in whatever code writes to it."""

    def __init__(self, descriptor: int, what: str, *, closefd: bool) -> None:
        super().__init__(descriptor, "wb", closefd=closefd)
        self._what = what

    def write(self, data: Buffer, /) -> int:
        with explained(self._what):
            return os.write(self.fileno(), data)


class Draft:
    """The `with` block of one temporary file. Unless `place` was reached, nothing of it stays behind (V14)."""

    def __init__(self, ground: Ground, path: str, gained: set[str]) -> None:
        self.path = path
        self._ground = ground
        self._gained = gained
        self._temporary = temporary_name()
        self._what = f"cannot write {path}"
        self._descriptor = -1
        self._placed = False
        self.file: BinaryIO

    def __enter__(self) -> Draft:
        try:
            with explained(self._what):
                self._descriptor = self._ground.make(self.path, self._gained, self._create)
            # The descriptor is ours: it can be synced also when the caller has closed the file.
            raw = OutFile(self._descriptor, self._what, closefd=False)
            self.file = io.BufferedWriter(raw, _BUFFER)
        except BaseException:
            self._discard()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._placed:
            with contextlib.suppress(BayouError, OSError):
                self.file.close()
            self._discard()

    def seal(self) -> None:
        """End the writing, and make the content durable."""
        self.file.close()
        with explained(self._what):
            os.fsync(self._descriptor)
            self._close()

    def place(self) -> None:
        """Give the file its name, in one step. It must be sealed: a name never stands for half a file."""
        with explained(self._what), self._ground.spot(self.path) as spot:
            spot.check_free()
            os.replace(self._temporary, spot.name, src_dir_fd=spot.directory, dst_dir_fd=spot.directory)
        self._placed = True
        self._gained.add(self.path.rpartition("/")[0])

    def _create(self, spot: Spot) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        return os.open(self._temporary, flags, spot.file_mode, dir_fd=spot.directory)

    def _discard(self) -> None:
        """Remove what there is; what cannot be removed is a temporary that everybody ignores."""
        with contextlib.suppress(BayouError, OSError):
            self._close()
        with contextlib.suppress(BayouError, OSError), self._ground.spot(self.path) as spot:
            os.unlink(self._temporary, dir_fd=spot.directory)
        self._ground.prune(self.path)

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
