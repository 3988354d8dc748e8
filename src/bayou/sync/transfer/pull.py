"""Pull: download files, and move them into the tree unless a program has changed the path since the scan.

The client records an intent for each path first. Then, in the transaction that covers the renames, it checks the
journal and the file again: if either has changed, the path is planned again (T8). The same transaction updates base, so
a crash leaves either an intent or a correct base; the next sync starts with the intents of a killed pull
(`transfer.intents`, T9).
"""

from __future__ import annotations

import sqlite3
import time
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field

from bayou.core import kept
from bayou.core.errors import BayouError, NotFound, PathRefused, StateError
from bayou.index.entry import Entry
from bayou.index.head import read_head
from bayou.index.node_store import StoreNodes
from bayou.index.tree import IndexTree, find_many
from bayou.state import base, file_stats, journal
from bayou.state.base import Why
from bayou.state.database import dump_entry
from bayou.sync.commit.commit import mark_overtaken, uncertain_paths
from bayou.sync.context import SyncContext
from bayou.sync.plan.local_scanner import ObservedPath
from bayou.sync.plan.policy import Policy, version_dir
from bayou.sync.report import Failure, Refusal
from bayou.sync.transfer.executor import Downloaded, Pause, batch_results, failure
from bayou.sync.transfer.intents import ProofLost, record_intents
from bayou.sync.transfer.push import per_transaction
from bayou.worktree.hashing import Content
from bayou.worktree.new_directories import MissingDirectories, Placed


class IncomingFile(Struct, frozen=True):
    """A path to pull: it becomes `entry`, or is removed (None). `copied` is the conflict copy of the local file."""

    path: str
    entry: Entry | None
    observed: ObservedPath
    copied: Path | None = None


class Staged(Struct, frozen=True):
    """A path that is ready to be changed in the tree: a downloaded file, a removal, or a deliberate absence."""

    item: IncomingFile
    file: Path | None
    sha256: bytes | None
    why: Why | None = None
    durable: bool = False


class SiblingFiles(Struct, frozen=True):
    """The files that a pull leaves unchanged in versions in which other files arrive.

    `others` has them by version. A file that is not among the `decided` was equal to base during the scan.
    """

    others: Mapping[str, Sequence[ObservedPath]]
    decided: Container[str]


_Result = tuple[IncomingFile, Staged | Failure | None]


def pull(
    context: SyncContext,
    items: Sequence[IncomingFile],
    siblings: SiblingFiles | None = None,
    whole: Container[str] = (),
) -> set[str]:
    """Pull these files; return the paths that changed since the scan and must be planned again.

    If one of a version's `siblings` has changed since the scan, no file of that version is pulled. Each version of
    `whole` is pulled in one transaction, once everything of it has arrived: if the pull returns one of its paths, the
    tree has all files of that version as they were.
    """
    moved: set[str] = set()
    gone: list[IncomingFile] = []
    together: dict[str, list[Staged]] = defaultdict(list)
    size = sum(item.entry.size for item in items if item.entry is not None)
    context.progress.begin("pulling", len(items), size)
    try:
        for batch in batch_results(_results(context, items), per_transaction(len(items)), _size):
            staged: list[Staged] = []
            arrived: list[Staged] = []
            for item, result in batch:
                match result:
                    case Staged():
                        version = version_dir(item.path) if whole else None  # hot: most pulls replace no version
                        (together[version] if version is not None and version in whole else staged).append(result)
                        arrived.append(result)
                    case Failure():
                        context.report.failed.append(result)
                    case None:
                        gone.append(item)
            moved |= install_batch(context, staged, siblings)
            left = {item.path: context.meter.rest(item.path, _size((item, None))) for item, _ in batch}
            context.progress.advance(
                files=len(batch), bytes=sum(left[one.item.path] for one in arrived if one.file is not None)
            )
            # Content that is here already, or that stays in the store: nothing was fetched.
            if skipped := sum(left[one.item.path] for one in arrived if one.file is None):
                context.progress.skip(skipped)
        if gone:
            moved |= _relocated(context, gone)
        kept_back = {version_dir(item.path) for item in gone if item.path in moved} if together else set()
        for version, files in together.items():
            if version in kept_back:
                for one in files:
                    moved.add(one.item.path)
                    if one.file is not None:
                        one.file.unlink(missing_ok=True)
            else:
                moved |= install_batch(context, files, siblings)
    except (Exception, KeyboardInterrupt):
        context.incoming.discard()
        raise
    context.incoming.remove_directories()
    # V3: the renames are durable before the client records "in sync".
    context.incoming.sync_directories()
    context.progress.end()
    return moved


def _relocated(context: SyncContext, gone: Sequence[IncomingFile]) -> set[str]:
    """Return which of the paths, whose object or pack is gone, the head describes differently by now (P7).

    A compaction has moved their bytes, or another client has replaced or deleted them: they must be planned again. If
    the head still has the same row, the object is missing; that is damage, and never a delete.
    """
    paths = [item.path for item in gone]
    try:
        seen = read_head(context.store)
    except NotFound:  # a store that was only discovered
        seen = None
    current = find_many(IndexTree(StoreNodes(context.store, context.cache), seen.head.root), paths) if seen else None
    moved = {item.path for item in gone if current is not None and current.get(item.path) != item.entry}
    context.report.missing += [path for path in paths if path not in moved]
    return moved


def downloads(policy: Policy, items: Iterable[IncomingFile]) -> list[Entry]:
    """Return the entries that a pull of these items would download."""
    wanted = (item.entry for item in items if item.entry is not None and _without_download(policy, item) is None)
    return [entry for entry in wanted if entry.refusal() is None]


def install_batch(context: SyncContext, staged: Sequence[Staged], siblings: SiblingFiles | None) -> set[str]:
    """Move a batch into the tree and update base; return the paths that changed since the scan."""
    if not staged:
        return set()
    staged = sorted(staged, key=lambda staged_file: staged_file.item.path)  # so that each directory is opened once
    moved: set[str] = set()
    uncertain = uncertain_paths(context.database, context.remote_id)
    done = _InstalledBatch()
    texts = {staged_file.item.path: dump_entry(staged_file.item.entry) for staged_file in staged}
    try:
        context.incoming.sync(
            [staged_file.file for staged_file in staged if staged_file.file is not None and not staged_file.durable]
        )
        record_intents(
            context.database,
            context.remote_id,
            [
                (staged_file.item.path, texts[staged_file.item.path], staged_file.sha256)
                for staged_file in staged
                if staged_file.file is not None or staged_file.item.entry is None
            ],
        )
        try:
            with context.database.transaction() as db:
                journal_empty = journal.is_empty(db, context.remote_id)
                moved = _changed_since_scan(context, db, staged, siblings, journal_empty=journal_empty)
                staying = [staged_file for staged_file in staged if staged_file.item.path not in moved]
                placed = context.incoming.install_directories(
                    [staged_file.item.path for staged_file in staying if staged_file.file is not None]
                )
                for staged_file in staying:
                    _install_file(context, staged_file, placed, done)
                done.write(db, context.remote_id, texts)
                mark_overtaken(db, context.remote_id, done.entries.keys() & uncertain)
                if not journal_empty:
                    through = {staged_file.item.path: staged_file.item.observed.through for staged_file in staged}
                    for path in done.entries.keys() - uncertain:
                        journal.drop_rows(db, context.remote_id, path, through[path])
                db.execute("DELETE FROM intent WHERE place = ?", (context.remote_id,))
                if any(staged_file.item.observed.content is not None for staged_file in staged):
                    # If a power cut undid the rename over an old file, the old file would look like a local change; a
                    # new file that is lost is only pulled again.
                    context.incoming.sync_directories()
        except StateError as error:
            raise ProofLost(error.message) from error
    finally:
        for staged_file in staged:
            if staged_file.file is not None and staged_file.item.path not in done.installed:
                staged_file.file.unlink(missing_ok=True)
    here = [one.item for one in staged if one.file is not None and one.item.path in done.installed]
    kept.pulled(len(here), sum(item.entry.size for item in here if item.entry is not None))
    return moved


def journal_unchanged(db: sqlite3.Connection, remote_id: int, observed: ObservedPath) -> bool:
    """Whether the journal has no new row for a path since the scan."""
    newer = db.execute(
        "SELECT 1 FROM journal WHERE place = ? AND path = ? AND kind != 'tree' AND (id > ? OR state = 'open') LIMIT 1",
        (remote_id, observed.path, observed.through),
    ).fetchone()
    return newer is None


def _results(context: SyncContext, items: Sequence[IncomingFile]) -> Iterator[_Result | Pause]:
    """Yield every item with its result (None: its object is missing); downloads continue while a batch is placed."""
    waiting: dict[str, IncomingFile] = {}
    wanted: list[Entry] = []
    for item in items:
        ready = _without_download(context.policy, item)
        why = item.entry.refusal() if ready is None and item.entry is not None else None
        if why is not None:
            # V25: an unsafe entry is not fetched.
            yield item, Failure(item.path, PathRefused.code, f"{item.path}: {why}")
        elif ready is not None:
            yield item, ready
        elif item.entry is not None:
            waiting[item.path] = item
            wanted.append(item.entry)
    for download in context.executor.download(wanted, len(wanted)) if wanted else ():
        if isinstance(download, Pause):
            yield download
            continue
        item = waiting[download.path]
        yield item, download if isinstance(download, Failure) else _staged(item, download)


def _size(arrival: _Result) -> int:
    entry = arrival[0].entry
    return entry.size if entry is not None else 0


def _without_download(policy: Policy, item: IncomingFile) -> Staged | None:
    """Return what needs no download: a removal, a deliberate absence, a file with this content; else None."""
    entry, local = item.entry, None if item.observed.finish_delete else item.observed.content
    if entry is None:
        return Staged(item, None, None)
    why = policy.absent(item.path) if local is None else None
    if why is not None:
        return Staged(item, None, None, why)
    if local is not None and entry.sha256 is not None and local.sha256 == entry.sha256:
        return Staged(item, None, entry.sha256)
    return None


def _staged(item: IncomingFile, download: Downloaded) -> Staged | None:
    """Return a download that is ready for the tree; None if its object is missing."""
    return None if download.file is None else Staged(item, download.file, download.sha256, durable=download.durable)


def _changed_since_scan(
    context: SyncContext,
    db: sqlite3.Connection,
    staged: Sequence[Staged],
    siblings: SiblingFiles | None,
    *,
    journal_empty: bool,
) -> set[str]:
    """Return the paths that a program has written since the scan (T8), and the other paths of their versions."""
    seen = [staged_file.item.observed for staged_file in staged]
    missing = MissingDirectories(context.root)

    def moved(observed: ObservedPath) -> bool:
        return not (
            (journal_empty or journal_unchanged(db, context.remote_id, observed))
            and ((observed.stat is None and missing.hold(observed.path)) or context.is_unchanged(observed))
        )

    touched = {observed.path for observed in seen if moved(observed)}
    versions = {version_dir(path) for path in touched} - {None}
    if siblings is not None and (siblings.others or not journal_empty):
        for version in {version_dir(observed.path) for observed in seen} - versions - {None}:
            assert version is not None
            others = siblings.others.get(version, ())
            if any(moved(observed) for observed in others) or not (
                journal_empty or _journal_names_only(db, context.remote_id, version, siblings)
            ):
                versions.add(version)
    return touched | {observed.path for observed in seen if versions and version_dir(observed.path) in versions}


def _journal_names_only(db: sqlite3.Connection, remote_id: int, version: str, siblings: SiblingFiles) -> bool:
    """Whether the journal names no file of a version except those that were planned."""
    rows = db.execute(
        "SELECT DISTINCT path FROM journal WHERE place = ? AND kind != 'tree' AND path > ? AND path < ?",
        (remote_id, f"{version}/", f"{version}0"),  # 0 comes right after the slash
    )
    return all(path in siblings.decided for (path,) in rows)


def _install_file(
    context: SyncContext, staged_file: Staged, placed: Mapping[str, Placed], done: _InstalledBatch
) -> None:
    """Rename one file into place, unless its directory has brought it, or remove it; in the caller's transaction."""
    item, entry = staged_file.item, staged_file.item.entry
    why = staged_file.why
    try:
        if entry is None:
            context.incoming.remove(item.path)
            done.gone.append(item.path)
            if item.observed.content is not None:
                context.report.pulled.deleted += 1
        elif staged_file.file is not None:
            stat, renamed_ns = placed.get(item.path) or (context.incoming.install(staged_file.file, item.path), 0)
            done.installed.add(item.path)
            assert staged_file.sha256 is not None
            content = Content(staged_file.sha256, stat.size, stat)
            done.files.append(file_stats.make_row(item.path, content, time.time_ns(), context.remote_id, renamed_ns))
            context.report.pulled.files += 1
            context.report.pulled.bytes += stat.size
        elif item.observed.content is not None:
            done.files.append(
                file_stats.make_row(item.path, item.observed.content, item.observed.scanned_at, context.remote_id)
            )
    except PathRefused as error:
        context.report.refused.append(Refusal(item.path, error.message))
        if entry is None:
            done.gone.append(item.path)  # something other than a file has this name
        else:
            why = "refused"
    except BayouError as error:
        context.report.failed.append(failure(item.path, error))
        return
    done.entries[item.path] = entry
    if why is not None:
        done.absent.append((item.path, why))
    if entry is not None and entry.sha256 is None and staged_file.sha256 is not None:
        done.hashes.append((entry, staged_file.sha256))


class _InstalledBatch(Struct):
    """What a batch has changed in the tree, to be recorded in one transaction."""

    installed: set[str] = field(default_factory=set)
    entries: dict[str, Entry | None] = field(default_factory=dict)
    files: list[file_stats.Row] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    absent: list[tuple[str, Why]] = field(default_factory=list)
    hashes: list[tuple[Entry, bytes]] = field(default_factory=list)

    def write(self, db: sqlite3.Connection, remote_id: int, texts: Mapping[str, str | None]) -> None:
        """Update base, inside the transaction that covers the renames; `texts` has the entries as JSON."""
        base.record_entries(db, remote_id, {path: texts[path] for path in self.entries})
        file_stats.save_many(db, self.files)
        for path in self.gone:
            file_stats.delete(db, path)
        for path, why in self.absent:
            base.record_absent(db, remote_id, path, why)
            if why == "refused":
                file_stats.save_unhashed(db, path, remote_id)  # the obstacle may disappear
        for entry, sha256 in self.hashes:
            base.record_hash(db, remote_id, entry, sha256)
