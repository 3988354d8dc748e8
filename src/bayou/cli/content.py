"""The content of data on its way into a command, from a file or stdin, and out of it, to a file or stdout."""

from __future__ import annotations

import fcntl
import io
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NoReturn, TextIO, cast

import click

from bayou.core import activity, limits
from bayou.core.atomic_file import atomic_file
from bayou.core.errors import UsageError

if TYPE_CHECKING:
    from bayou.data.items import DataRepository, Item

_TEXT = frozenset({"application/yaml", "application/x-yaml", "application/toml", "application/xml", "application/sql"})
_CHUNK = 1 << 20


@contextmanager
def open_input(name: str | None) -> Iterator[BinaryIO]:
    """Open the file `name`, or stdin if it is `-` or None; the caller reads it to its end before it takes a lease."""
    if name is not None and name != "-":
        with _open_file(name) as opened:
            yield counted(opened, "reading", os.fstat(opened.fileno()).st_size)
        return
    if name is None and sys.stdin.isatty():
        raise click.UsageError("nothing to read: name a FILE, or - for what you type")
    if not _is_readable(sys.stdin):
        raise UsageError("the standard input is closed", hint="name a FILE, or give it an input: < FILE")
    yield counted(sys.stdin.buffer, "reading", None)


def _is_readable(stream: TextIO) -> bool:
    try:
        flags = fcntl.fcntl(stream.fileno(), fcntl.F_GETFL)
    except (OSError, ValueError):  # no file of the system
        return True
    return flags & os.O_ACCMODE != os.O_WRONLY


def counted(file: BinaryIO, what: str, size: int | None) -> BinaryIO:
    """Return a file that shows, as a stage of this name, how much of it has been read."""
    return cast("BinaryIO", _CountedFile(file, what, size))


class _CountedFile:
    """A file to read from its start to its end. The stage begins with the first read, and ends with the last byte."""

    def __init__(self, file: BinaryIO, what: str, size: int | None) -> None:
        self._file = file
        self._what = what
        self._size = size
        self._begun = False

    def read(self, size: int = -1) -> bytes:
        progress = activity.current()
        if not self._begun:
            self._begun = True
            progress.begin(self._what, None, self._size)
        data = self._file.read(size)
        if data:
            progress.advance(bytes=len(data))
        else:
            progress.end()
        return data

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


def _open_file(name: str) -> BinaryIO:
    try:
        return open(name, "rb")
    except OSError as error:
        raise UsageError(
            f"cannot read {name}: {error.strerror}", hint="name a file that is there, or - for the standard input"
        ) from None


def write_stdout(content: BinaryIO, size: int | None = None) -> None:
    """Copy content to stdout, byte for byte.

    A terminal would obey control characters, so there they are made visible, except newlines and tabs. Binary content
    is refused there: a NUL anywhere, or a beginning of which a fifth is no UTF-8.
    """
    sys.stdout.flush()
    if sys.stdout.isatty():
        from bayou.core.text import VisibleStream  # noqa: PLC0415

        stream = VisibleStream()
        last = b""
        while data := content.read(_CHUNK):
            if b"\0" in data or (not last and _is_noise(data)):
                raise UsageError(
                    "this is binary, and nothing for a terminal", hint="write it to a file: -o FILE, or > FILE"
                )
            last = data[-1:]
            sys.stdout.write(stream.add(data))
        # The prompt begins on a line of its own; files and pipes get the bytes as they are.
        sys.stdout.write(stream.add(b"", last=True) + ("" if last in (b"", b"\n") else "\n"))
        return
    shutil.copyfileobj(counted(content, "writing", size), sys.stdout.buffer, _CHUNK)
    sys.stdout.buffer.flush()


def _is_noise(data: bytes) -> bool:
    """Whether so much is no UTF-8 that it is no text, in whatever old encoding."""
    return data.decode(errors="replace").count("\ufffd") * 5 > len(data)


def write_file(content: BinaryIO, target: Path, size: int | None = None) -> None:
    """Copy content to the file `target`, whole; if this raises, the old file is unchanged."""
    with _open_target(target) as opened:
        shutil.copyfileobj(counted(content, "writing", size), opened, _CHUNK)


@contextmanager
def _open_target(target: Path) -> Iterator[BinaryIO]:
    """Open a file that appears at `target`, or where this link leads; a device or a pipe gets the bytes as they come.

    A rename would put a file where /dev/null was. A directory that does not exist is refused by its own name, and not
    by that of a temporary file.
    """
    if target.exists() and not target.is_file():
        with open(target, "wb") as opened:
            yield opened
        return
    file = Path(os.path.realpath(target)) if target.is_symlink() else target
    os.stat(file.parent)
    with atomic_file(file) as opened:
        yield opened


@contextmanager
def open_text_file(target: Path) -> Iterator[TextIO]:
    """Open a text file that appears at `target` when all is written; if the body raises, the old file is unchanged."""
    with _open_target(target) as file:
        stream = io.TextIOWrapper(file, encoding="utf-8", newline="")
        yield stream
        stream.detach()  # flushes, and leaves the file open


def text_of(content: BinaryIO, size: int) -> str | None:
    """Return content for a JSON document: text as a string, None for other or too many bytes."""
    if size > limits.CONTENT_BYTES:
        return None
    try:
        return content.read().decode()
    except UnicodeDecodeError:
        return None


def as_json(repository: DataRepository, item: Item) -> object:
    """Return content for a JSON document: the value of JSON content, text content as a string, else None."""
    media_type = item.metadata.content_type.partition(";")[0].strip().lower()
    is_json = media_type == "application/json" or media_type.endswith("+json")
    if not is_json and not media_type.startswith("text/") and media_type not in _TEXT:
        return None
    try:
        text = repository.read(item).decode()
    except UnicodeDecodeError:
        return None
    if is_json:
        from json import loads  # noqa: PLC0415

        with suppress(ValueError, RecursionError):
            return loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    return text


def _refuse_constant(text: str) -> NoReturn:
    """Refuse NaN and Infinity, which Python reads and JSON does not have."""
    raise ValueError(f"{text} is no JSON")


def _finite(text: str) -> float:
    """Return a number; refuse one like 1e999, which Python reads as an infinity and could not write again."""
    value = float(text)
    if not isfinite(value):
        raise ValueError(f"{text} is too large a number")
    return value
