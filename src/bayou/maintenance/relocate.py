"""Upload again, from this tree, the bytes of entries that the store has lost; only the location of an entry changes.

`push` says who made the content, and peers compare by it, so it stays as it is (P4, P5). A small file goes into a fresh
pack, another one to a fresh key of its own (`at`), both of which no other attempt uses (V11, P1). Nothing is recorded
on this machine: an upload that is not committed is a leftover, and the next repair makes another. A recorded one could
be taken for the upload of an ordinary push, which must have an id of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress

from msgspec.structs import replace

from bayou.core.ids import ulid
from bayou.index.entry import Entry
from bayou.index.head import Gc
from bayou.objectstore import keys
from bayou.sync.context import SyncContext
from bayou.sync.plan.decision_table import LocalState
from bayou.sync.plan.local_scanner import ObservedPath
from bayou.sync.report import Failure
from bayou.sync.transfer.executor import Upload
from bayou.sync.transfer.push import is_collected
from bayou.worktree.hashing import read_content


def local_files_of(context: SyncContext, lost: Iterable[Entry]) -> Iterator[ObservedPath]:
    """Yield the files of this tree that have the bytes of lost entries, by their hash (V6)."""
    lost = list(lost)
    known = context.base.hashes(lost)
    for entry in lost:
        if context.stat(entry.path) is None:
            continue
        content = read_content(context.root / entry.path, context.deadline)
        if content.sha256 == known.get(entry.path, entry).sha256:
            state = LocalState(content.sha256, content.size)
            yield ObservedPath(entry.path, state, content, context.journal.newest())


class Relocation:
    """Lost entries whose bytes were uploaded again: `rows` has each with its new location.

    A path is missing in `rows` if its file has changed meanwhile, or could not be uploaded; the report has the failure.
    """

    def __init__(self, context: SyncContext, lost: Sequence[Entry], files: Mapping[str, ObservedPath], gc: Gc) -> None:
        """`lost` are entries of pushes; `files` has the file with the bytes of each."""
        self._context = context
        self._lost = {
            entry.path: entry if entry.sha256 is not None else replace(entry, sha256=files[entry.path].state.sha256)
            for entry in lost
        }
        self._repeated: set[keys.Key] = set()
        self.rows: dict[str, Entry] = {}
        self._upload(self._lost, gc)

    def renew(self, gc: Gc) -> None:
        """Upload again what a collection has deleted, or may yet delete: one request for each object or pack (P6)."""
        store = self._context.store
        unsure = list({entry.key for entry in self.rows.values()} - self._repeated)
        gone = self._repeated.union(compress(unsure, store.map(lambda key: is_collected(store, key, gc), unsure)))
        again = [path for path, entry in self.rows.items() if entry.key in gone]
        for path in again:
            del self.rows[path]
        self._upload(again, gc)

    def _upload(self, paths: Iterable[str], gc: Gc) -> None:
        context, fresh = self._context, ulid()
        loose: list[Upload] = []
        packed: list[Upload] = []
        for entry in map(self._lost.__getitem__, paths):
            assert entry.push is not None
            assert entry.sha256 is not None
            alone = entry.size >= context.pack_below
            # The list in a pack says which push made a file (P9); the key of an object says where it is.
            upload = Upload(
                entry.path,
                fresh if alone else entry.push,
                entry.size,
                entry.sha256,
                gc.count,
                modified=entry.modified,
            )
            (loose if alone else packed).append(upload)
        both = (*loose, *packed)
        if not both:
            return
        context.progress.begin("pushing", len(both), sum(upload.size for upload in both))
        for result in context.executor.upload(loose, len(loose), packed):
            if isinstance(result, Failure):
                context.report.failed.append(result)
            elif isinstance(result, Upload) and result.stored is not None:
                row = _relocated(self._lost[result.path], result)
                self.rows[result.path] = row
                if result.stored.repeated:
                    self._repeated.add(row.key)
                context.progress.advance(files=1, bytes=result.size)
        context.progress.end()


def _relocated(entry: Entry, sent: Upload) -> Entry:
    """Return an entry with the location of its new upload, and otherwise unchanged (P4)."""
    assert sent.stored is not None
    if sent.location is None:
        etag, version = sent.stored.etag, sent.stored.version
        return replace(
            entry, etag=etag, version=version, at=sent.push, pack=None, offset=None, stored=None, method=None
        )
    pack, offset, stored, method = sent.location.pack, sent.location.offset, sent.location.stored, sent.location.method
    return replace(entry, etag=None, version=None, at=None, pack=pack, offset=offset, stored=stored, method=method)
