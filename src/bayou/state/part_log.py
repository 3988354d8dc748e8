"""Uploads in parts that were begun and not completed: the store's id, and the parts that it has acknowledged.

The rows belong to an intent in the table `upload` (path, push id, hash), which is recorded before. A row that has lost
its intent, because the file has changed or was committed otherwise, is abandoned: the push aborts its upload. The rows
survive the end of the process, and need not survive a power cut: then parts are sent again, and a collection aborts
what no record names.
"""

from __future__ import annotations

from typing import cast

from msgspec import Struct

from bayou.objectstore.uploads import Resumable, UploadPart
from bayou.state.database import Database


class AbandonedUpload(Struct, frozen=True):
    """An upload that no command is going to resume."""

    path: str
    push: str
    upload: str


class PartLogs(Struct, frozen=True):
    """The uploads in parts of one remote."""

    database: Database
    remote_id: int

    def of(self, path: str, push: str) -> ObjectPartLog:
        """Return the log of one object."""
        return ObjectPartLog(self.database, (self.remote_id, path, push))

    def abandoned(self) -> list[AbandonedUpload]:
        """Return the uploads without an intent."""
        found = self.database.rows(
            "SELECT path, push, upload FROM part_upload AS begun WHERE place = ? AND NOT EXISTS (SELECT 1 FROM upload"
            " WHERE upload.place = begun.place AND upload.path = begun.path AND upload.push = begun.push"
            " AND upload.done = 0)",
            (self.remote_id,),
        )
        return [AbandonedUpload(*row) for row in cast("list[tuple[str, str, str]]", found)]


class ObjectPartLog(Struct, frozen=True):
    """The record of the upload of one object. A `bayou.objectstore.uploads.PartLog`."""

    database: Database
    key: tuple[int, str, str]

    def resumable(self) -> Resumable | None:
        begun = self.database.rows(
            "SELECT upload, part_size FROM part_upload WHERE place = ? AND path = ? AND push = ?", self.key
        )
        if not begun:
            return None
        parts = self.database.rows(
            "SELECT number, tag, sha256 FROM part WHERE place = ? AND path = ? AND push = ?", self.key
        )
        upload, part_size = cast("tuple[str, int]", begun[0])
        known = [UploadPart(*row) for row in cast("list[tuple[int, str, bytes]]", parts)]
        return Resumable(upload, part_size, {part.number: part for part in known})

    def begun(self, upload: str, part_size: int) -> None:
        self.forget()
        with self.database.note() as db:
            db.execute("INSERT INTO part_upload VALUES (?, ?, ?, ?, ?)", (*self.key, upload, part_size))

    def acknowledged(self, part: UploadPart) -> None:
        with self.database.note() as db:
            db.execute(
                "INSERT OR REPLACE INTO part VALUES (?, ?, ?, ?, ?, ?)",
                (*self.key, part.number, part.tag, part.sha256),
            )

    def forget(self) -> None:
        with self.database.note() as db:
            for table in ("part", "part_upload"):
                db.execute(f"DELETE FROM {table} WHERE place = ? AND path = ? AND push = ?", self.key)
