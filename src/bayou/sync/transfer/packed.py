"""Upload small files in packs, beside the uploads of large files as objects of their own.

The caller's thread reads the files and fills the packs; a few threads upload them (`packs.write`). A file's bytes come
from one read, and its entry has the hash of these bytes (P3). A file that has changed since the scan is left out, and
stays journaled; of a file that has only grown, the pack gets the bytes that were there at the scan.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import partial
from itertools import chain
from pathlib import Path

from msgspec.structs import replace

from bayou.core.errors import ContentChanged, TreeError, Unavailable
from bayou.core.iterators import Prefetcher
from bayou.objectstore.multipart import read_checked
from bayou.objectstore.store import Store
from bayou.objectstore.transport import PutResult
from bayou.packs.write import PackWriter, SealedPack, SentPack
from bayou.sync.report import Failure
from bayou.sync.transfer.executor import (
    PAUSE,
    PackLocation,
    Pause,
    Sender,
    Upload,
    UploadResults,
    failure,
    open_regular,
    outage,
    path_failure,
    read_sample,
    send_all,
    with_data,
)

_READERS = 16
"""Threads that read files from a slow disk."""

_OUTAGE_PACKS = 2
"""Consecutive packs that fail with `Unavailable` before the store counts as down."""


def upload_all(
    sender: Sender, uploads: Iterable[Upload], count: int, packed: Iterable[Upload], pack_size: int
) -> UploadResults:
    """Upload `count` files as objects of their own and, at the same time, packs of the `packed` files."""
    loose = Prefetcher(send_all(sender, uploads, count), name="bayou-uploads") if count else None
    with closing(PackWriter(sender.store, pack_size)) as writer:
        files = _PackedFiles(writer, sender)
        try:
            for upload in _read_all(sender.store, sender.root, packed):
                if loose is not None and isinstance(upload, Upload) and writer.completes(upload.size):
                    yield from _while_full(writer, loose)
                yield from files.add(upload)
            if loose is not None:
                yield from _while_full(writer, loose)
            yield from files.seal()
            for result in loose.poll() if loose is not None else ():
                yield PAUSE if result is None else result
                yield from files.sent()
            yield None
            yield from files.drain()
        except (Exception, KeyboardInterrupt):
            # The store has these files: the next push need not send them again.
            yield from files.arrived()
            if loose is not None:
                loose.close()
                yield from loose.unread()
            raise
        finally:
            if loose is not None:
                loose.close()


def _while_full(writer: PackWriter, loose: Prefetcher[Upload | Failure]) -> Iterator[Upload | Failure | Pause]:
    """Wait until the next pack can be sent; yield the files that have arrived meanwhile, so that they are recorded."""
    while writer.is_full():
        yield from loose.ready()
        yield PAUSE
        writer.wait()


class _PackedFiles:
    """Puts files into packs, and yields each file when its pack is made, and again when its upload is over."""

    def __init__(self, writer: PackWriter, sender: Sender) -> None:
        self._writer = writer
        self._sender = sender
        self._waiting: dict[str, Upload] = {}
        self._failed = 0

    def add(self, upload: Upload | Failure) -> Iterator[Upload | Failure]:
        if isinstance(upload, Failure) or upload.data is None:
            yield upload
            return
        self._waiting[upload.path] = replace(upload, data=None)
        sealed = self._writer.add(upload.path, upload.push, upload.data, upload.sha256, upload.modified)
        if sealed is not None:
            yield from self._located(sealed)

    def seal(self) -> Iterator[Upload | Failure]:
        """Complete the last pack."""
        sealed = self._writer.seal()
        if sealed is not None:
            yield from self._located(sealed)

    def drain(self) -> Iterator[Upload | Failure | Pause]:
        """Wait for every upload."""
        for sent in self._writer.drain():
            yield from self._sent(sent)
            yield PAUSE

    def arrived(self) -> Iterator[Upload | Failure]:
        """Yield the files of packs that the store has acknowledged so far."""
        for sent in self._writer.arrived():
            yield from self._sent(sent)

    def _located(self, sealed: SealedPack) -> Iterator[Upload | Failure]:
        for member in sealed.members:
            location = PackLocation(sealed.name, member.offset, member.stored, member.method)
            self._waiting[member.path] = located = replace(self._waiting[member.path], location=location)
            yield located
        yield from self.sent()

    def sent(self) -> Iterator[Upload | Failure]:
        """Yield the files of packs whose upload is over, without waiting for others."""
        for sent in self._writer.sent():
            yield from self._sent(sent)

    def _sent(self, sent: SentPack) -> Iterator[Upload | Failure]:
        uploads = [self._waiting.pop(member.path) for member in sent.pack.members]
        if sent.error is None and sent.stored is not None:
            self._failed = 0
            stored = PutResult(None, None, sent.stored.repeated)  # the index needs no fingerprint of a pack
            for upload in uploads:
                self._sender.metered(upload).moved(upload.size)
            yield from (replace(upload, stored=stored) for upload in uploads)
            return
        assert sent.error is not None
        failures = [path_failure(upload.path, sent.error) for upload in uploads]
        self._failed += isinstance(sent.error, Unavailable)
        yield from failures
        if self._failed >= _OUTAGE_PACKS:
            raise outage(failures[0])


def _read_all(store: Store, root: Path, packed: Iterable[Upload]) -> Iterator[Upload | Failure]:
    """Yield uploads with their bytes; on a slow disk, threads read ahead."""
    source = iter(packed)
    read = partial(_read, root)
    first, slow = read_sample(source, read)
    rest = store.map(read, source, threads=_READERS) if slow else map(read, source)
    return chain(first, rest)


def _read(root: Path, upload: Upload) -> Upload | Failure:
    """Return an upload with its bytes; without them if the file has changed since the scan (P3)."""
    found = with_data(root, upload, upload.size)
    if found.data is not None:
        return found
    try:
        with open(f"{root}/{upload.path}", "rb", buffering=0, opener=open_regular) as file:
            return replace(upload, data=read_checked(file, upload.size, upload.sha256))
    except (ContentChanged, FileNotFoundError):
        return upload
    except TreeError as error:
        return failure(upload.path, error)
    except OSError as error:
        return Failure(upload.path, "unreadable", f"{upload.path}: {os.strerror(error.errno or 0)}")
