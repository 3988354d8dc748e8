"""What workers tell of records, as plain values that can travel, and what becomes of it here.

Both ways of a rebuild read with the same functions; here is only how their answers cross.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from bayou.records.catalog.derive import is_record
from bayou.records.catalog.files import Absent, Read, read_all
from bayou.records.catalog.survey import Survey, survey_below
from bayou.worktree.scan import Found, scan

Line = tuple[str, str, str | None, str | None, str | None, int | None]
"""`path, kind, row, stamp, why, mtime`: what `bayou.pipeline.kernels.metadata` carries."""


class Folder(Struct, frozen=True):
    """A directory to be remembered, with its mtime."""

    path: str
    mtime: int | None


class Closed(Struct, frozen=True):
    """A directory that could not be looked into."""

    path: str
    why: str


Told = Read | Absent | Folder | Closed


class Part(Struct, frozen=True):
    """What one task looks at: directories with all that is below them, and records that were found already."""

    below: Sequence[str] = ()
    records: Sequence[str] = ()


class CacheReader(Struct, frozen=True):
    """Reads the records of a part of a store's cache. It can be pickled."""

    root: Path

    def __call__(self, part: Part) -> Iterator[Line]:
        here = (found.path for top in part.below for found in scan(self.root, top) if isinstance(found, Found))
        return map(line_of, read_all(self.root, filter(is_record, here)))


class DirectoryReader(Struct, frozen=True):
    """Reads the records of a part of a directory datastore, and tells of its directories. It can be pickled."""

    root: Path

    def __call__(self, part: Part) -> Iterator[Line]:
        for place in part.below:
            seen = survey_below(self.root, [place])
            yield from map(line_of, directories(seen))
            yield from map(line_of, read_all(self.root, seen.found))
        yield from map(line_of, read_all(self.root, part.records))


def directories(seen: Survey) -> Iterator[Folder | Closed]:
    """Yield the directories of a survey."""
    yield from (Folder(path, mtime) for path, mtime in seen.folders.items())
    yield from (Closed(path, f"{path} cannot be read: {why}") for path, why in seen.hidden.items())


def line_of(one: Told) -> Line:
    """Return an answer as it crosses."""
    match one:
        case Read(path, None, stamp, why, hidden):
            return path, "hidden" if hidden else "bad", None, stamp, why, None
        case Read(path, row, stamp):
            return path, "row", json.dumps(row), stamp, None, None
        case Folder(path, mtime):
            return path, "folder", None, None, None, mtime
        case Closed(path, why):
            return path, "closed", None, None, why, None
        case Absent(path):
            return path, "absent", None, None, None, None


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
