"""Upload files, each to a key of its own (V11), so that any step can be killed and repeated (V19).

The intent (key and hash) is recorded before, the result after. What a killed push had uploaded is not uploaded again;
what it may have begun goes to the same key with the same bytes; a file that has changed gets a new id. After a power
cut this machine may have forgotten some of it: then those files get a new id too, and a collection takes the old ones.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import cast

from msgspec import Struct
from msgspec.structs import replace

from bayou.core.batched import batched
from bayou.core.clock import parse_ms
from bayou.core.errors import ContentChanged, NotFound, PathRefused, TreeError
from bayou.core.ids import ulid
from bayou.index.entry import Entry
from bayou.index.head import Gc
from bayou.objectstore.transport import Stored
from bayou.sync.context import SyncContext
from bayou.sync.plan.local_scanner import Observed
from bayou.sync.report import Failure
from bayou.sync.transfer.executor import Upload, UploadResults, batch_results
from bayou.worktree.hashing import Content, read_content

_NOTED = 128
"""Uploads whose intents, or results, are noted at a time. Nobody waits for the disk; but nothing is sent meanwhile."""

_LEAST, _MOST = 256, 1024


def per_transaction(count: int) -> int:
    """Return how many of so many paths share a transaction that waits for the disk.

    Whoever is killed in between does that many again.
    """
    return min(max(_LEAST, count // 16), _MOST)


class StartedUploads(Struct, frozen=True):
    """Uploads that have begun: what each is of, the entries of those that were done before, and the rest to come.

    Once all have come, each of `files` that made it has its content.
    """

    files: dict[str, Observed]
    entries: dict[str, Entry]
    results: UploadResults


def upload(context: SyncContext, wanted: Sequence[Observed], gc: Gc) -> dict[str, Entry]:
    """Upload what is not uploaded yet; return the entry of each path that made it. Failures go into the report."""
    return finish(context, begin(context, wanted, gc))


def begin(context: SyncContext, wanted: Sequence[Observed], gc: Gc) -> StartedUploads:
    """Begin to upload what is not uploaded yet. Where other processes do it, they are at it until `finish`."""
    files = {file.path: file for file in wanted if file.stat is not None}
    intending = _Intending(context, files, {}, recorded(context), ulid(), gc.count)
    todo: list[Upload | Observed] = []
    for file in files.values():
        upload = intending.upload_of(file, file.content) if file.content is not None else file
        if upload is not None:
            todo.append(upload)
    context.progress.begin("pushing", len(todo), sum(_size(file) for file in todo))
    results = context.executor.upload(intending.uploads(todo), len(todo))
    return StartedUploads(files, intending.entries, results)


def finish(context: SyncContext, underway: StartedUploads) -> dict[str, Entry]:
    """Wait for uploads, and record each; return the entry of every path that made it."""
    entries = underway.entries
    for batch in batch_results(underway.results, _NOTED, _bytes):
        done = [result for result in batch if isinstance(result, Upload)]
        _record(context, done)
        context.report.failed += [result for result in batch if isinstance(result, Failure)]
        for sent in done:
            if sent.stored is not None:
                entries[sent.path] = _entry(underway.files[sent.path], sent, sent.stored)
        context.progress.advance(files=len(batch), bytes=sum(sent.size for sent in done))
    context.progress.end()
    return entries


def recheck(context: SyncContext, entries: Iterable[Entry], gc: Gc) -> set[str]:
    """After a collection, return the paths whose upload is gone, or may be (T13): they must be made again.

    The store's own clock decides, and each object is looked at once. One that was written by more than one request may
    have been deleted and then written anew by the late one; another DELETE of it may follow.
    """
    uploads = recorded(context)

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
    """After a collection, return entries whose objects are there to stay: those that are, and those made again under a
    new id. A path that could not be made again is left out."""
    lost = recheck(context, entries.values(), gc)
    again = upload(context, [files[path] for path in lost], gc)
    return {**{path: entry for path, entry in entries.items() if path not in lost}, **again}


def recorded(context: SyncContext) -> dict[str, Upload]:
    """Return the uploads, begun or done, that no commit has carried yet."""
    found = context.database.rows(
        "SELECT path, push, size, sha256, gc, done, etag, version, repeated FROM upload WHERE place = ?",
        (context.remote_id,),
    )
    return {
        cast("str", path): Upload(path, push, size, sha256, gc, Stored(etag, version, bool(again)) if done else None)  # type: ignore[arg-type]
        for path, push, size, sha256, gc, done, etag, version, again in found
    }


class _Intending(Struct, frozen=True):
    """What is to be uploaded, and under which id. `files` are brought up to date as they are read; `entries` has what
    an earlier push had uploaded (`before`) and this one need not."""

    context: SyncContext
    files: dict[str, Observed]
    entries: dict[str, Entry]
    before: Mapping[str, Upload]
    push: str
    gc: int

    def uploads(self, todo: Sequence[Upload | Observed]) -> Iterator[Upload]:
        """Yield uploads, a batch of intents on disk ahead of them; what was not read yet is read with its batch.

        Bytes that were kept are not sent once the file is seen to have others: whoever reads it then says what it is.
        """
        context = self.context
        for batch in batched(todo, _NOTED):
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
        """Return the upload of a file; None if it need not be made again, or another look must be taken first."""
        old = self.before.get(file.path)
        if old is None or old.gc != self.gc or (old.sha256, old.size) != (content.sha256, content.size):
            return Upload(file.path, self.push, content.size, content.sha256, self.gc, data=content.data)
        if old.stored is None:
            return replace(old, resumed=True, data=content.data)
        # Nobody will read the file again. If it is another by now, so may be what was looked at beside it, and the
        # two were never one version.
        if self.context.is_unchanged(file):
            self.entries[file.path] = _entry(file, old, old.stored)
        return None

    def _read(self, file: Observed) -> Upload | None:
        """Read a file that was only looked at; None if there is nothing to upload.

        If it is not as it was then, what was seen beside it may be of another version: it is decided again.
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
                # Without its bytes, which are needed no longer than its upload takes.
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
    """Forget uploads of paths that are committed; all at once if those are all there are, in a tenth of the time."""
    kept = {path for (path,) in db.execute("SELECT path FROM upload WHERE place = ?", (remote_id,))}
    if kept <= done:
        db.execute("DELETE FROM upload WHERE place = ?", (remote_id,))
    else:
        db.executemany("DELETE FROM upload WHERE place = ? AND path = ?", [(remote_id, path) for path in kept & done])


def _record(context: SyncContext, done: Sequence[Upload]) -> None:
    with context.database.note() as db:
        db.executemany(
            "UPDATE upload SET done = 1, etag = ?, version = ?, repeated = ? WHERE place = ? AND path = ? AND push = ?",
            [
                (
                    upload.stored.etag,
                    upload.stored.version,
                    upload.stored.repeated,
                    context.remote_id,
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
