"""The journal as of one moment, and what its rows say of a path together.

A row is numbered when it is opened, and knows the newest number of the moment when it was closed: so of two rows one
can tell which came first, and where they overlap, that the file itself must tell.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from msgspec import Struct, field

from bayou.sync.journal import Row


class Journaled(Struct):
    """The last row of each path, and the rows that name directories or everything."""

    through: int = 0
    last: dict[str, Row] = field(default_factory=dict)
    marks: list[Row] = field(default_factory=list)
    _rows: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Journaled:
        self = cls()
        for row in rows:
            self.through = row.id
            if row.kind == "tree":
                self.marks.append(row)
            else:
                self.last[row.path] = row
                self._rows[row.path].append(row)
        return self

    def closed_through(self, path: str) -> int:
        """Return the newest row that a look at this path can settle: what is open may still change the file (T7)."""
        still_open = (row.id for row in self._rows.get(path, ()) if row.state == "open")
        return next(still_open, self.through + 1) - 1

    def written(self, path: str) -> bool:
        """Whether a program wrote it: then a file that is there is meant to go up."""
        return any(row.kind == "write" for row in self._rows.get(path, ()))

    def deleted(self, path: str) -> bool:
        """Whether a file that is not here was deleted: no write was begun after the delete that came to anything.

        A write that its process did not live to carry out is nothing, so the delete before it still stands (T10: one
        whose file somebody wiped is no delete).
        """
        rows = self._rows.get(path, ())
        began = max((row.id for row in rows if row.kind == "write" and row.state != "abandoned"), default=0)
        return any(row.kind == "delete" and began <= _end(row) for row in rows)

    def undone(self, path: str) -> bool:
        """Whether a file that is here was to be deleted by a process that did not live to carry it out.

        A delete that was carried out is not meant for a file that somebody put there afterwards; nor is one whose
        process died, if a write or a mark was not over by then.
        """
        row = self.last.get(path)
        if row is None or row.kind != "delete" or row.state != "abandoned":
            return False
        others = [one for one in self._rows[path] if one.kind == "write"] + self._marks_of(path)
        return all(one.closed is not None and one.closed < row.id for one in others)

    def marked(self, path: str) -> bool:
        """Whether a row names a directory that the path lies in, or the path itself, or everything."""
        return bool(self._marks_of(path))

    def open_in(self, directory: str, paths: Iterable[str]) -> bool:
        """Whether somebody is still writing to a directory, which has these paths: by a row or by a mark."""
        rows = [row for path in paths for row in self._rows.get(path, ())] + self._marks_of(directory)
        rows += [row for row in self.marks if row.path.startswith(f"{directory}/")]
        return any(row.state == "open" for row in rows)

    @property
    def everything(self) -> bool:
        return any(not row.path for row in self.marks)

    def _marks_of(self, path: str) -> list[Row]:
        return [row for row in self.marks if not row.path or path == row.path or path.startswith(f"{row.path}/")]


def _end(row: Row) -> int:
    """Return the newest number when a row was closed; of one that is open, the least that it can be."""
    return row.closed if row.closed is not None else row.id
