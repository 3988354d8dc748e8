"""`datastore export`: write the files of a datastore as plain files, under their names, into a directory of their own.

Files of packs are read by joined ranges, and each file is proved by its hash before it gets its name. Paths are checked
as those of a pull (V21). An export takes no lease and writes nothing to the store (V15), nor to the tree.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from bayou.core import paths
from bayou.core.errors import BayouError, NotFound, PathRefused, UsageError
from bayou.core.iterators import batched, prefetch
from bayou.core.progress import NoProgress, Progress
from bayou.index.entry import Entry
from bayou.index.key_range import KeyRange
from bayou.index.tree import IndexTree, find, find_many, scan
from bayou.repo import Repo
from bayou.state.connection import Connection
from bayou.sync.read_file import StoreIndex, nearest_path
from bayou.sync.report import ExportReport, Failure
from bayou.sync.transfer.executor import failure, fetch_all, raise_if_down
from bayou.worktree.staging import StagingArea

MOST_FAILED = 1000
"""Failures that the report lists; of more, it has only the number."""

_WINDOW = 20_000
"""Entries that are in memory at once."""

_AHEAD = 8
"""Downloads for each connection that may finish before they get their names."""

_STAGING = ".bayou-export"
"""The directory of downloads within the target; no payload path can have this name."""


def export(
    connection: Connection,
    directory: Path,
    *,
    prefix: str | None = None,
    timeout: float | None = None,
    progress: Progress | None = None,
) -> ExportReport:
    """Write the files of the store's index, or one file or directory of it, below an empty or new directory.

    A file that cannot be written is a `Failure` of the report. If an error ends the export, a note of it says how much
    was written.
    """
    repo = connection.repo
    if repo.config.datastore.url is None:
        raise UsageError(
            f"the datastore is a directory, whose files have their names: {repo.tree_root}", hint="copy that directory"
        )
    repo.require_online("an export reads the store")
    wanted = (paths.relative(repo.tree_root, prefix) or None) if prefix is not None else None
    target = _empty_directory(repo, directory)
    report = ExportReport(str(target))
    index = StoreIndex.of(repo, connection, timeout)
    tree = index.tree()
    _check_prefix(tree, wanted)
    target.mkdir(parents=True, exist_ok=True)
    with _note_of(report), _staging(target) as incoming:
        _Export(index, incoming, _mode(), report, progress or NoProgress()).run(tree, wanted)
    return report


class _Export(Struct):
    """One export: where from, where to, and what was done so far."""

    index: StoreIndex
    incoming: StagingArea
    mode: int
    report: ExportReport
    progress: Progress

    def run(self, tree: IndexTree, wanted: str | None) -> None:
        root = tree.root if wanted is None else None
        self.progress.begin("exporting", root.entries if root else None, root.bytes if root else None)
        for window in batched(_entries(tree, wanted), _WINDOW):
            gone = self._write(self._safe(window))
            if gone:
                self._write_moved(gone)
        self.incoming.sync_directories()
        self.progress.end()

    def _safe(self, entries: Iterable[Entry]) -> list[Entry]:
        """Return the entries that a client may act on; the others fail (V25)."""
        safe: list[Entry] = []
        for entry in entries:
            why = entry.refusal()
            if why is None:
                safe.append(entry)
            else:
                self._fail(Failure(entry.path, PathRefused.code, f"{entry.path}: {why}"))
        return safe

    def _write(self, entries: Sequence[Entry]) -> list[Entry]:
        """Download files and give them their names; return those whose object or pack is gone."""
        store = self.index.store
        known = {entry.path: entry for entry in entries}
        gone: list[Entry] = []
        came = raise_if_down(store, fetch_all(store, self.incoming, entries, len(entries)))
        with closing(prefetch(came, _AHEAD * store.concurrency, name="bayou-downloads")) as results:
            for result in results:
                if result is None:
                    continue
                entry = known[result.path]
                if isinstance(result, Failure):
                    self._fail(result)
                elif result.file is None:
                    gone.append(entry)
                else:
                    self._install(entry, result.file)
        return gone

    def _install(self, entry: Entry, staged: Path) -> None:
        try:
            os.chmod(staged, self.mode)
            with suppress(OSError, OverflowError):  # a file system need not know the years from 1 to 9999
                os.utime(staged, ns=(entry.modified * 1_000_000,) * 2)
            self.incoming.install(staged, entry.path)
        except PathRefused as error:
            staged.unlink(missing_ok=True)
            self._fail(failure(entry.path, error))
            return
        self.report.files += 1
        self.report.bytes += entry.size
        self.progress.advance(files=1, bytes=entry.size)

    def _write_moved(self, gone: Sequence[Entry]) -> None:
        """Write files whose object is gone from where the index has them now: a compaction may have moved them (P7)."""
        now = find_many(self.index.tree(), [entry.path for entry in gone])
        moved: list[Entry] = []
        for entry in gone:
            newer = now.get(entry.path)
            if newer == entry:
                self._fail(Failure(entry.path, "missing", f"the store does not have the object of {entry.path}"))
            elif newer is None or not newer.same_content(entry):
                self._fail(Failure(entry.path, "changed", f"{entry.path} was changed or deleted during the export"))
            else:
                moved.append(newer)
        for entry in self._write(self._safe(moved)):
            self._fail(Failure(entry.path, "missing", f"the store does not have the object of {entry.path}"))

    def _fail(self, failed: Failure) -> None:
        self.report.failures += 1
        if len(self.report.failed) < MOST_FAILED:
            self.report.failed.append(failed)
        self.progress.advance(files=1)


def _entries(tree: IndexTree, wanted: str | None) -> Iterator[Entry]:
    """Yield the entries of everything, or of one path and all below it."""
    if wanted is None:
        yield from scan(tree)
        return
    entry = find(tree, wanted)
    if entry is not None:
        yield entry
    yield from scan(tree, KeyRange.under(f"{wanted}/"))


def _check_prefix(tree: IndexTree, wanted: str | None) -> None:
    """Raise `NotFound`, with the nearest name, if there is nothing at a path."""
    if wanted is None or next(_entries(tree, wanted), None) is not None:
        return
    name = nearest_path(tree, wanted)
    raise NotFound(
        f"there is nothing at {wanted}",
        hint=f"the nearest name is {name}" if name is not None else "bayou data list shows what there is",
    )


def _empty_directory(repo: Repo, directory: Path) -> Path:
    """Return the directory to write to, or raise `UsageError`: an export adds nothing to what is there."""
    target = Path(os.path.abspath(directory))
    hint = "name an empty directory, or a new one"
    real = Path(os.path.realpath(target))
    for own in (repo.tree_root, repo.local):
        if real.is_relative_to(os.path.realpath(own)):
            raise UsageError(f"{target} is inside of {own}, which Bayou manages", hint=hint)
    try:
        with os.scandir(target) as found:
            if next(found, None) is not None:
                raise UsageError(f"{target} is not empty", hint=hint)
    except FileNotFoundError:
        pass
    except NotADirectoryError:
        raise UsageError(f"{target} is not a directory", hint=hint) from None
    return real


def _mode() -> int:
    """Return the mode of new files, as any program would make them."""
    mask = os.umask(0o077)
    os.umask(mask)
    return 0o666 & ~mask


@contextmanager
def _staging(target: Path) -> Iterator[StagingArea]:
    """Yield the area for downloads, and remove it on every exit (V14)."""
    incoming = StagingArea(target, target / _STAGING, keeps_partial=False)
    try:
        yield incoming
    finally:
        incoming.discard()
        with suppress(BayouError):
            incoming.sync_directories()
        with suppress(OSError):
            incoming.staging.rmdir()


@contextmanager
def _note_of(report: ExportReport) -> Iterator[None]:
    """Add to any error how much was written until then, if anything was (V17)."""
    try:
        yield
    except BaseException as error:
        if report.files:
            written = "1 file" if report.files == 1 else f"{report.files:,} files"
            error.add_note(f"{written} of {report.bytes:,} bytes written to {report.directory}")
        raise
