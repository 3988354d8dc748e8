"""Upload files, each to its own key (V11), so that a push can be killed at any point and repeated (V19).

The client records each upload (key and hash) before it starts, and its result afterwards. The next push does not repeat
an upload that a killed push has finished; it repeats one that may have started, with the same key and the same bytes; a
file that has changed since gets a new push id. A power cut may lose some of these records: then those files get a new
id too, and gc deletes the old objects.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import cast

from msgspec import Struct
from msgspec.structs import replace

from bayou.core.clock import parse_ms
from bayou.core.errors import ContentChanged, NotFound, PathRefused, TreeError
from bayou.core.ids import ulid
from bayou.core.iterators import batched
from bayou.index.entry import Entry
from bayou.index.head import Gc
from bayou.objectstore.transport import Stored
from bayou.state.database import Database
from bayou.sync.context import SyncContext
from bayou.sync.plan.local_scanner import Observed
from bayou.sync.report import Failure
from bayou.sync.transfer.executor import Upload, UploadResults, batch_results
from bayou.worktree.hashing import Content, read_content

_RECORD_BATCH = 128
"""Uploads that are recorded at a time. The write does not wait for the disk, but nothing is sent meanwhile."""

_MIN_PER_TRANSACTION, _MAX_PER_TRANSACTION = 256, 1024


def per_transaction(count: int) -> int:
    """Return how many of `count` paths share a transaction that waits for the disk.

    A process that is killed repeats at most so many.
    """
    return min(max(_MIN_PER_TRANSACTION, count // 16), _MAX_PER_TRANSACTION)


class StartedUploads(Struct, frozen=True):
    """Uploads that have started: their files, the entries of files that were uploaded before, and results to come.

    Once all results have come, each uploaded file in `files` has its content.
    """

    files: dict[str, Observed]
    entries: dict[str, Entry]
    results: UploadResults


def upload(context: SyncContext, files_to_push: Sequence[Observed], gc: Gc) -> dict[str, Entry]:
    """Upload files that are not uploaded yet; return the entry of each uploaded path. Failures go into the report."""
    return finish(context, begin(context, files_to_push, gc))


def begin(context: SyncContext, files_to_push: Sequence[Observed], gc: Gc) -> StartedUploads:
    """Start to upload files that are not uploaded yet; `finish` waits for the results."""
    files = {file.path: file for file in files_to_push if file.stat is not None}
    plan = _UploadPlan(context, files, {}, recorded(context.database, context.remote_id), ulid(), gc.count)
    items: list[Upload | Observed] = []
    for file in files.values():
        upload = plan.upload_of(file, file.content) if file.content is not None else file
        if upload is not None:
            items.append(upload)
    context.progress.begin("pushing", len(items), sum(_size(file) for file in items))
    results = context.executor.upload(plan.uploads(items), len(items))
    return StartedUploads(files, plan.entries, results)


def finish(context: SyncContext, started: StartedUploads) -> dict[str, Entry]:
    """Wait for the uploads and record each; return the entry of every uploaded path."""
    entries = started.entries
    for batch in batch_results(started.results, _RECORD_BATCH, _bytes):
        done = [result for result in batch if isinstance(result, Upload)]
        _record(context.database, context.remote_id, done)
        context.report.failed += [result for result in batch if isinstance(result, Failure)]
        for sent in done:
            if sent.stored is not None:
                entries[sent.path] = _entry(started.files[sent.path], sent, sent.stored)
        context.progress.advance(files=len(batch), bytes=sum(sent.size for sent in done))
    context.progress.end()
    return entries


def recheck(context: SyncContext, entries: Iterable[Entry], gc: Gc) -> set[str]:
    """Return the paths whose upload a collection has deleted, or may yet delete (T13): they must be uploaded again.

    The store's own clock decides, with one request for each object. An object that more than one request has written
    may have been deleted and then written again by a late request; another DELETE of it may follow.
    """
    uploads = recorded(context.database, context.remote_id)

    def lost(entry: Entry) -> str | None:
        sent = uploads.get(entry.path)
        if sent is None or sent.push != entry.push or sent.stored is None or sent.stored.repeated:
            return entry.path
        try:
            meta = context.store.head(entry.key)
        except NotFound:
            return entry.path
        return entry.path if gc.before is not None and meta.modified < parse_ms(gc.before) else None

    return {path for path in context.store.map(lost, entries) if path is not None}


def renew(
    context: SyncContext, entries: Mapping[str, Entry], files: Mapping[str, Observed], gc: Gc
) -> dict[str, Entry]:
    """Return entries whose objects a collection has not deleted and will not: the given ones, or new uploads of them.

    A path that could not be uploaded again is left out.
    """
    lost = recheck(context, entries.values(), gc)
    again = upload(context, [files[path] for path in lost], gc)
    return {**{path: entry for path, entry in entries.items() if path not in lost}, **again}


def recorded(database: Database, remote_id: int) -> dict[str, Upload]:
    """Return the recorded uploads, started or finished, that no commit contains yet."""
    found = database.rows(
        "SELECT path, push, size, sha256, gc, done, etag, version, repeated FROM upload WHERE place = ?",
        (remote_id,),
    )
    return {
        cast("str", path): Upload(path, push, size, sha256, gc, Stored(etag, version, bool(again)) if done else None)  # type: ignore[arg-type]
        for path, push, size, sha256, gc, done, etag, version, again in found
    }


class _UploadPlan(Struct, frozen=True):
    """The uploads of one push, and their id.

    Reading a file updates `files`. `entries` collects the files that an earlier push (`before`) has uploaded already.
    """

    context: SyncContext
    files: dict[str, Observed]
    entries: dict[str, Entry]
    before: Mapping[str, Upload]
    push: str
    gc: int

    def uploads(self, items: Sequence[Upload | Observed]) -> Iterator[Upload]:
        """Yield uploads, a batch at a time after the batch is recorded; unread files are read with their batch.

        If a file has changed since the scan, its bytes in memory are not sent: the executor reads the file again.
        """
        context = self.context
        for batch in batched(items, _RECORD_BATCH):
            ready: list[tuple[Upload, bool]] = []
            for item in batch:
                upload = self._read(item) if isinstance(item, Observed) else item
                if upload is not None:
                    ready.append((upload, upload.data is not None and upload is item))
            with context.database.note() as db:
                db.executemany(
                    "INSERT OR REPLACE INTO upload (place, path, push, size, sha256, gc) VALUES (?, ?, ?, ?, ?, ?)",
                    [
                        (context.remote_id, upload.path, upload.push, upload.size, upload.sha256, upload.gc)
                        for upload, _ in ready
                    ],
                )
            for upload, kept in ready:
                moved = kept and not context.is_unchanged(self.files[upload.path])
                yield replace(upload, data=None) if moved else upload

    def upload_of(self, file: Observed, content: Content) -> Upload | None:
        """Return the upload of a file; None if an earlier push has uploaded it, or it must be scanned again first."""
        old = self.before.get(file.path)
        if old is None or old.gc != self.gc or (old.sha256, old.size) != (content.sha256, content.size):
            return Upload(file.path, self.push, content.size, content.sha256, self.gc, data=content.data)
        if old.stored is None:
            return replace(old, resumed=True, data=content.data)
        # The file is not read again. If it has changed since the scan, so may have the other files of its version,
        # and the tree never had the scanned files at the same time.
        if self.context.is_unchanged(file):
            self.entries[file.path] = _entry(file, old, old.stored)
        return None

    def _read(self, file: Observed) -> Upload | None:
        """Read a file that the scanner only statted; None if there is nothing to upload.

        A file that has changed since the scan is planned again, because the other files of its version may have, too.
        """
        upload = None
        try:
            content = read_content(f"{self.context.root}/{file.path}", self.context.deadline, _size(file))
        except (ContentChanged, FileNotFoundError, PathRefused):
            pass
        except TreeError as error:
            self.context.report.failed.append(Failure(file.path, error.code, error.message))
        else:
            if content.stat == file.unread:
                # Keep no bytes here: only the upload needs them.
                self.files[file.path] = read = file.read(Content(content.sha256, content.size, content.stat))
                upload = self.upload_of(read, content)
        if upload is None:
            self.context.progress.advance(files=1, bytes=_size(file))
        return upload


def _bytes(result: Upload | Failure) -> int:
    return result.size if isinstance(result, Upload) else 0


def _size(item: Upload | Observed) -> int:
    if isinstance(item, Upload):
        return item.size
    return item.stat.size if item.stat is not None else 0


def forget(db: sqlite3.Connection, remote_id: int, done: Set[str]) -> None:
    """Forget the uploads of committed paths; deleting all rows at once takes a tenth of the time."""
    kept = {path for (path,) in db.execute("SELECT path FROM upload WHERE place = ?", (remote_id,))}
    if kept <= done:
        db.execute("DELETE FROM upload WHERE place = ?", (remote_id,))
    else:
        db.executemany("DELETE FROM upload WHERE place = ? AND path = ?", [(remote_id, path) for path in kept & done])


def _record(database: Database, remote_id: int, done: Sequence[Upload]) -> None:
    with database.note() as db:
        db.executemany(
            "UPDATE upload SET done = 1, etag = ?, version = ?, repeated = ? WHERE place = ? AND path = ? AND push = ?",
            [
                (
                    upload.stored.etag,
                    upload.stored.version,
                    upload.stored.repeated,
                    remote_id,
                    upload.path,
                    upload.push,
                )
                for upload in done
                if upload.stored
            ],
        )


def _entry(observed: Observed, sent: Upload, stored: Stored) -> Entry:
    assert observed.content is not None
    modified = observed.content.stat.mtime_ns // 1_000_000
    return Entry(observed.path, sent.push, sent.size, sent.sha256, stored.etag, stored.version, modified)
