"""Content on its way in, from a file or the standard input, and out, to a file or the standard output."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NoReturn, cast

import click

from bayou.core.atomic_file import atomic_file
from bayou.core.errors import UsageError

if TYPE_CHECKING:
    from bayou.data.items import DataRepository, Item

_JSON = frozenset({"application/json"})
_TEXT = frozenset({"application/yaml", "application/x-yaml", "application/toml", "application/xml", "application/sql"})
_CHUNK = 1 << 20
_IN_MEMORY = 8 << 20


@contextmanager
def source(name: str | None) -> Iterator[BinaryIO]:
    """Open what a command is to read: a file, or for `-` or nothing the standard input.

    The standard input is read to its end before anything else is done: whoever writes it may take hours, and a lease is
    not to be held that long.
    """
    if name is not None and name != "-":
        with _open(name) as opened:
            yield opened
        return
    if name is None and sys.stdin.isatty():
        raise click.UsageError("nothing to read: name a FILE, or - for what you type")
    from tempfile import SpooledTemporaryFile  # noqa: PLC0415

    with SpooledTemporaryFile(_IN_MEMORY) as kept:
        shutil.copyfileobj(sys.stdin.buffer, kept, _CHUNK)
        kept.seek(0)
        yield cast("BinaryIO", kept)


def pour(content: BinaryIO) -> None:
    """Write content to the standard output as it is, to the last byte.

    A terminal would obey it: there controls are made visible, but for newlines and tabs.
    """
    sys.stdout.flush()
    if sys.stdout.isatty():
        from bayou.core.text import VisibleStream  # noqa: PLC0415

        stream = VisibleStream()
        while data := content.read(_CHUNK):
            sys.stdout.write(stream.add(data))
        sys.stdout.write(stream.add(b"", last=True))
        return
    shutil.copyfileobj(content, sys.stdout.buffer, _CHUNK)
    sys.stdout.buffer.flush()


def write_whole(content: BinaryIO, target: Path) -> None:
    """Make content the file `target`: whole when this returns; if this raises, what was there is still there."""
    with atomic_file(target) as opened:
        shutil.copyfileobj(content, opened, _CHUNK)


def parsed(repository: DataRepository, item: Item) -> object:
    """Return content as JSON can have it: parsed if it is JSON, as text if it is text, else None."""
    kind = item.metadata.content_type.partition(";")[0].strip().lower()
    is_json = kind in _JSON or kind.endswith("+json")
    if not is_json and not kind.startswith("text/") and kind not in _TEXT:
        return None
    try:
        text = repository.read(item).decode()
    except UnicodeDecodeError:
        return None
    if is_json:
        from json import loads  # noqa: PLC0415

        with suppress(ValueError, RecursionError):
            return loads(text, parse_constant=_no_constant)
    return text


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


def _open(name: str) -> BinaryIO:
    try:
        return open(name, "rb")
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror}", hint="- reads the standard input") from None
