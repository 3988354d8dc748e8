"""Upload files, each to its own key (V11) or in packs, so that a push can be killed at any point and repeated (V19).

The client records the upload of an object (key and hash) before it starts, and its result afterwards. The next push
does not repeat an upload that a killed push has finished; it repeats one that may have started, with the same key and
the same bytes; a file that has changed since gets a new push id. The files of a pack are recorded only once the store
has acknowledged the pack: a pack that may have arrived is abandoned, and its files go into a new one (P1). A power cut
may lose some of these records: then those files are uploaded again too, and gc deletes the old objects.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import compress, takewhile
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from bayou.core import kept
from bayou.core.clock import parse_ms
from bayou.core.errors import ContentChanged, NotFound, PathRefused, TreeError
from bayou.core.ids import ulid
from bayou.core.iterators import batched
from bayou.index.entry import Entry
from bayou.index.head import Gc
from bayou.objectstore import keys
from bayou.objectstore.store import Store
from bayou.objectstore.transport import PutResult
from bayou.state.database import Database
from bayou.state.part_log import PartLogs
from bayou.sync.context import SyncContext
from bayou.sync.plan.local_scanner import ObservedPath
from bayou.sync.report import Failure
from bayou.sync.transfer.executor import PackLocation, Pause, Upload, UploadResults, batch_results
from bayou.worktree.hashing import Content, read_content

_RECORD_BATCH = 128
"""Uploads that are recorded at a time. The write does not wait for the disk, but nothing is sent meanwhile."""

_MIN_PER_TRANSACTION, _MAX_PER_TRANSACTION = 256, 1024


def per_transaction(count: int) -> int:
    """Return how many of `count` paths share a transaction that waits for the disk.

    A process that is killed repeats at most so many.
    """
    return min(max(_MIN_PER_TRANSACTION, count // 16), _MAX_PER_TRANSACTION)


class StartedUploads(Struct):
    """Uploads that have started: their files, the known entries, and the results to come.

    Once all results have come, each uploaded file in `files` has its content. `entries` has the files that were
    uploaded before, those that have arrived, and those of packs that are still on their way.
    """

    files: dict[str, ObservedPath]
    entries: dict[str, Entry]
    results: UploadResults
    acknowledged: bool = False


def upload(context: SyncContext, files_to_push: Sequence[ObservedPath], gc: Gc) -> dict[str, Entry]:
    """Upload files that are not uploaded yet; return the entry of each uploaded path. Failures go into the report."""
    return finish(context, begin(context, files_to_push, gc))


def begin(context: SyncContext, files_to_push: Sequence[ObservedPath], gc: Gc) -> StartedUploads:
    """Start to upload files that are not uploaded yet; `finish` waits for the results."""
    files = {file.path: file for file in files_to_push if file.stat is not None}
    plan = _UploadPlan(context, files, {}, recorded(context.database, context.remote_id), ulid(), gc.count)
    loose: list[Upload | ObservedPath] = []
    packed: list[Upload | ObservedPath] = []
    for file in files.values():
        upload = plan.upload_of(file, file.content) if file.content is not None else file
        if upload is not None:
            alone = _size(upload) >= context.pack_below or (isinstance(upload, Upload) and upload.resumed)
            (loose if alone else packed).append(upload)
    packed.sort(key=lambda file: file.path)  # files that are read together lie together
    context.progress.begin("pushing", len(loose) + len(packed), sum(map(_size, loose)) + sum(map(_size, packed)))
    results = context.executor.upload(plan.uploads(loose), len(loose), plan.packed(packed))
    return StartedUploads(files, plan.entries, results)


def finish(context: SyncContext, started: StartedUploads) -> dict[str, Entry]:
    """Wait for the uploads and record each; return the entry of every uploaded path."""
    collect(context, started)
    acknowledge(context, started)
    return started.entries


def collect(context: SyncContext, started: StartedUploads) -> Mapping[str, Entry]:
    """Wait until every entry is known; packs that hold some of the files may still be on their way."""
    _take(context, started, takewhile(lambda result: result is not None, started.results))
    return started.entries


def acknowledge(context: SyncContext, started: StartedUploads) -> set[str]:
    """Wait until the store has acknowledged all uploads; return the paths that failed since `collect`.

    No commit may name a file before that (V11). A second call finds nothing to wait for.
    """
    before = set(started.entries)
    if not started.acknowledged:
        _take(context, started, started.results)
        started.acknowledged = True
        context.progress.end()
        _abort_abandoned(context)
    return before - started.entries.keys()


def _take(context: SyncContext, started: StartedUploads, results: Iterable[Upload | Failure | Pause | None]) -> None:
    """Record results as they come."""
    entries = started.entries
    for batch in batch_results(results, _RECORD_BATCH, _bytes):
        done: list[Upload] = []
        last = len(batch)
        for result in batch:
            if isinstance(result, Failure):
                context.report.failed.append(result)
                entries.pop(result.path, None)
            elif result is None or (result.stored is None and result.location is None):
                continue  # the file has changed meanwhile
            else:
                entries[result.path] = _entry(started.files[result.path], result)
                if result.stored is not None:
                    done.append(result)
                else:
                    last -= 1  # its last result comes with the response to its pack
        if done:
            _record(context.database, context.remote_id, done)
        context.progress.advance(files=last, bytes=sum(context.meter.rest(sent.path, sent.size) for sent in done))


def _abort_abandoned(context: SyncContext) -> None:
    """Abort the uploads in parts of files that have changed since, so that the store keeps no parts of them."""
    logs = PartLogs(context.database, context.remote_id)
    for upload in logs.abandoned():
        context.store.abort_upload(keys.payload(upload.path, upload.push), upload.upload)
        logs.of(upload.path, upload.push).forget()


def recheck(context: SyncContext, entries: Iterable[Entry], gc: Gc) -> set[str]:
    """Return the paths whose upload a collection has deleted, or may yet delete (T13): they must be uploaded again.

    The store's own clock decides, with one request for each object or pack (P6). An object that more than one request
    has written may have been deleted and then written again by a late request; another DELETE of it may follow.
    """
    uploads = recorded(context.database, context.remote_id)
    entries = list(entries)
    doubtful = {entry.key for entry in entries if _is_doubtful(entry, uploads.get(entry.path))}

    def lost(key: keys.Key) -> bool:
        return is_collected(context.store, key, gc)

    unsure = list({entry.key for entry in entries} - doubtful)
    gone = doubtful.union(compress(unsure, context.store.map(lost, unsure)))
    return {entry.path for entry in entries if entry.key in gone}


def is_collected(store: Store, key: keys.Key, gc: Gc) -> bool:
    """Whether a collection has deleted an object that no head names yet, or may still delete it."""
    try:
        meta = store.head(key)
    except NotFound:
        return True
    return gc.before is not None and meta.modified < parse_ms(gc.before)


def _is_doubtful(entry: Entry, sent: Upload | None) -> bool:
    """Whether it is not known that just one request has written the object of an entry (K13)."""
    if sent is None or sent.push != entry.push or sent.stored is None or sent.stored.repeated:
        return True
    return (sent.location.pack if sent.location is not None else None) != entry.pack


def renew(
    context: SyncContext, entries: Mapping[str, Entry], files: Mapping[str, ObservedPath], gc: Gc
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
        "SELECT path, push, size, sha256, gc, done, etag, version, repeated, pack, pack_offset, stored, method"
        " FROM upload WHERE place = ?",
        (remote_id,),
    )
    uploads: dict[str, Upload] = {}
    for path, push, size, sha256, gc, done, etag, version, again, *location in cast("list[tuple[Any, ...]]", found):
        stored = PutResult(etag, version, bool(again)) if done else None
        uploads[path] = Upload(
            path, push, size, sha256, gc, stored, location=PackLocation(*location) if location[0] is not None else None
        )
    return uploads


class _UploadPlan(Struct, frozen=True):
    """The uploads of one push, and their id.

    Reading a file updates `files`. `entries` collects the files that an earlier push (`before`) has uploaded already.
    """

    context: SyncContext
    files: dict[str, ObservedPath]
    entries: dict[str, Entry]
    before: Mapping[str, Upload]
    push: str
    gc: int

    def uploads(self, items: Sequence[Upload | ObservedPath]) -> Iterator[Upload]:
        """Yield uploads, a batch at a time after the batch is recorded; unread files are read with their batch.

        If a file has changed since the scan, its bytes in memory are not sent: the executor reads the file again.
        """
        context = self.context
        for batch in batched(items, _RECORD_BATCH):
            ready: list[tuple[Upload, bool]] = []
            for item in batch:
                upload = self._read(item) if isinstance(item, ObservedPath) else item
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
            for upload, in_memory in ready:
                moved = in_memory and not context.is_unchanged(self.files[upload.path])
                yield replace(upload, data=None) if moved else upload

    def packed(self, items: Sequence[Upload | ObservedPath]) -> Iterator[Upload]:
        """Yield the uploads of files that travel in packs. They are recorded once their pack has arrived (P1)."""
        for item in items:
            upload = self._read(item) if isinstance(item, ObservedPath) else item
            if upload is None:
                continue
            moved = upload is item and upload.data is not None and not self.context.is_unchanged(self.files[item.path])
            yield replace(upload, data=None) if moved else upload

    def upload_of(self, file: ObservedPath, content: Content) -> Upload | None:
        """Return the upload of a file; None if an earlier push has uploaded it, or it must be scanned again first."""
        old = self.before.get(file.path)
        if old is None or old.gc != self.gc or (old.sha256, old.size) != (content.sha256, content.size):
            return Upload(
                file.path,
                self.push,
                content.size,
                content.sha256,
                self.gc,
                data=content.data,
                modified=content.stat.mtime_ns // 1_000_000,
            )
        if old.stored is None:
            return replace(old, resumed=True, data=content.data)
        # The file is not read again. If it has changed since the scan, so may have the other files of its version,
        # and the tree never had the scanned files at the same time.
        if self.context.is_unchanged(file):
            self.entries[file.path] = _entry(file, old)
        return None

    def _read(self, file: ObservedPath) -> Upload | None:
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
            self.context.progress.advance(files=1)
            self.context.progress.skip(_size(file))
        return upload


def _bytes(result: Upload | Failure | None) -> int:
    return result.size if isinstance(result, Upload) else 0


def _size(item: Upload | ObservedPath) -> int:
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
    """Record what has arrived, so that no push sends it again."""
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
                if upload.stored and upload.location is None
            ],
        )
        db.executemany(
            "INSERT OR REPLACE INTO upload (place, path, push, size, sha256, gc, done, repeated, pack, pack_offset,"
            " stored, method) VALUES (?, ?, ?, ?, ?, ?, 1, ?, ?, ?, ?, ?)",
            [
                (
                    remote_id,
                    upload.path,
                    upload.push,
                    upload.size,
                    upload.sha256,
                    upload.gc,
                    upload.stored.repeated,
                    upload.location.pack,
                    upload.location.offset,
                    upload.location.stored,
                    upload.location.method,
                )
                for upload in done
                if upload.stored and upload.location is not None
            ],
        )
    kept.arrived(len(done), sum(upload.size for upload in done))


def _entry(observed: ObservedPath, sent: Upload) -> Entry:
    assert observed.content is not None
    modified = observed.content.stat.mtime_ns // 1_000_000
    location = sent.location
    if location is not None:
        packed = (None, location.pack, location.offset, location.stored, location.method)
        return Entry(observed.path, sent.push, sent.size, sent.sha256, None, None, modified, *packed)
    assert sent.stored is not None
    return Entry(observed.path, sent.push, sent.size, sent.sha256, sent.stored.etag, sent.stored.version, modified)
