"""What the workers of a rebuild tell of records and directories, and the rows in which that crosses to the driver."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from bayou.quick import dataclass
from bayou.records.catalog.files import Absent, Read
from bayou.records.catalog.survey import Survey


class Line(NamedTuple):
    """A row: what is told of one file or directory. `kind` says of what class it is, `row` is JSON."""

    path: str
    kind: str
    row: str | None = None
    stamp: str | None = None
    why: str | None = None
    mtime: int | None = None


@dataclass(frozen=True, slots=True)
class Folder:
    """A directory to be remembered, with its mtime."""

    path: str
    mtime: int | None


@dataclass(frozen=True, slots=True)
class Closed:
    """A directory that could not be looked into."""

    path: str
    why: str


Told = Read | Absent | Folder | Closed


def directories(seen: Survey) -> Iterator[Folder | Closed]:
    """Yield the directories of a survey."""
    yield from (Folder(path, mtime) for path, mtime in seen.folders.items())
    yield from (Closed(path, f"{path} cannot be read: {why}") for path, why in seen.hidden.items())


def line_of(one: Told) -> Line:
    """Return an answer as it crosses."""
    match one:
        case Read(path, None, stamp, why, hidden):
            return Line(path, "hidden" if hidden else "bad", stamp=stamp, why=why)
        case Read(path, row, stamp):
            return Line(path, "row", json.dumps(row), stamp)
        case Folder(path, mtime):
            return Line(path, "folder", mtime=mtime)
        case Closed(path, why):
            return Line(path, "closed", why=why)
        case Absent(path):
            return Line(path, "absent")


def told_by(line: Line) -> Told:
    """Return the answer that crossed."""
    path, kind, row, stamp, why, mtime = line
    match kind:
        case "row":
            return Read(path, tuple(json.loads(row or "")), stamp)
        case "folder":
            return Folder(path, mtime)
        case "closed":
            return Closed(path, why or "")
        case "absent":
            return Absent(path)
    return Read(path, None, stamp, why or "", hidden=kind == "hidden")


def records_of(told: Iterable[Told]) -> Iterator[Read | Absent]:
    """Yield the answers about records, and none about directories."""
    return (one for one in told if isinstance(one, Read | Absent))
