"""Bring the tree up to the store: download, and put in place what nobody has touched meanwhile.

Intents are recorded first. Then, in the one transaction that renames, the journal and the file are looked at again:
if either moved, the path is left for another decision (T8). What is in place becomes base in that same transaction, so
a crash leaves either an intent to settle or the truth (T9).

What a pull that died had begun: its intents, settled before anything else (T9).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field

from bayou.core.errors import BayouError, Cancelled, DeadlinePassed, PathRefused, StateError
from bayou.index.entry import Entry
from bayou.state import base, database, file_stats, journal
from bayou.state.base import Why
from bayou.sync.commit.commit import doubtful, overtake
from bayou.sync.context import SyncContext
from bayou.sync.plan.local_scanner import Observed
from bayou.sync.plan.policy import version_dir
from bayou.sync.report import Failure, Refusal
from bayou.sync.transfer.executor import Arrived, failure, gathered
from bayou.sync.transfer.push import per_transaction
from bayou.worktree.hashing import Content, read_content


class ProofLost(Exception):
    """Files are in place, and `sync.db` could not take note of it. The next run settles the intents (F020)."""


def settle_intents(context: SyncContext) -> None:
    """Finish or forget what a pull that died had begun: if the file is what was intended, that is base (T9)."""
    left = context.database.rows("SELECT path, entry, sha256 FROM intent WHERE place = ?", (context.place,))
    context.incoming.clear()
    if not left:
        return
    now = time.time_ns()
    with context.database.transaction() as db:
        for path, text, sha256 in left:
            path = str(path)
            entry = database.load_entry(path, text if text is None else str(text))
            content = _content(context, path)
            arrived = content is not None and content.sha256 == sha256
            if (entry is None and content is None) or (entry is not None and arrived):
                _take(context, db, path, entry, content.sha256 if content else None)
                overtake(db, context.place, {path})
                if content is not None:
                    file_stats.save(db, path, content, now, context.place)
                else:
                    file_stats.delete(db, path)
            db.execute("DELETE FROM intent WHERE place = ? AND path = ?", (context.place, path))


def _content(context: SyncContext, path: str) -> Content | None:
    try:
        return read_content(context.root / path, context.deadline) if context.stat(path) is not None else None
    except (DeadlinePassed, Cancelled):
        raise
    except (BayouError, OSError):
        return None


def _take(context: SyncContext, db: sqlite3.Connection, path: str, entry: Entry | None, sha256: bytes | None) -> None:
    base.record_entry(db, context.place, path, entry)
    if entry is not None and entry.sha256 is None and sha256 is not None:
        base.record_hash(db, context.place, entry, sha256)


class IncomingFile(Struct, frozen=True):
    """One path that is to become what the store says: `entry`, or nothing (None)."""

    path: str
    entry: Entry | None
    observed: Observed
    copied: Path | None = None


class Staged(Struct, frozen=True):
    """An incoming path that is ready to be put in place: a file, a deletion, or a deliberate absence."""

    item: IncomingFile
    file: Path | None
    sha256: bytes | None
    why: Why | None = None
    durable: bool = False


class SiblingFiles(Struct, frozen=True):
    """What else was decided: `others` are files that stay as they are in a version in which some arrive.

    A file that is not among the `decided` was as base has it when the rest was looked at.
    """

    others: Mapping[str, Sequence[Observed]]
    decided: Container[str]


def pull(context: SyncContext, items: Sequence[IncomingFile], beside: SiblingFiles | None = None) -> set[str]:
    """Make the tree match; return the paths that moved under us and must be decided again.

    `beside`: where another file of a version has moved since, nothing arrives in that version.
    """
    moved: set[str] = set()
    size = sum(item.entry.size for item in items if item.entry is not None)
    context.progress.begin("pulling", len(items), size)
    try:
        for batch in gathered(_arrivals(context, items), per_transaction(len(items)), _size):
            staged: list[Staged] = []
            for item, result in batch:
                match result:
                    case Staged():
                        staged.append(result)
                    case Failure():
                        context.report.failed.append(result)
                    case None:
                        context.report.missing.append(item.path)
            moved |= place(context, staged, beside)
            context.progress.advance(files=len(batch), bytes=sum(map(_size, batch)))
    except (Exception, KeyboardInterrupt):
        context.incoming.discard()
        raise
    # V3: names that a power cut could still take away are durable before anybody records "in sync".
    context.incoming.sync_directories()
    context.progress.end()
    return moved


_Arrival = tuple[IncomingFile, Staged | Failure | None]


def _size(arrival: _Arrival) -> int:
    entry = arrival[0].entry
    return entry.size if entry is not None else 0


def _arrivals(context: SyncContext, items: Sequence[IncomingFile]) -> Iterator[_Arrival]:
    """Yield every item with what became of it; downloads go on while a batch is put in place."""
    waiting: dict[str, IncomingFile] = {}
    wanted: list[Entry] = []
    for item in items:
        ready = _ready(context, item)
        why = item.entry.refusal() if ready is None and item.entry is not None else None
        if why is not None:
            yield item, Failure(item.path, PathRefused.code, f"{item.path}: {why}")  # V25: nothing is fetched by it
        elif ready is not None:
            yield item, ready
        elif item.entry is not None:
            waiting[item.path] = item
            wanted.append(item.entry)
    for came in context.mover.download(wanted, len(wanted)) if wanted else ():
        item = waiting[came.path]
        yield item, came if isinstance(came, Failure) else _staged(item, came)


def downloads(context: SyncContext, items: Iterable[IncomingFile]) -> list[Entry]:
    """Return the entries that a pull of these items would bring from the store."""
    wanted = (item.entry for item in items if item.entry is not None and _ready(context, item) is None)
    return [entry for entry in wanted if entry.refusal() is None]


def _ready(context: SyncContext, item: IncomingFile) -> Staged | None:
    """Settle what needs no download: a deletion, a deliberate absence, a file that is here already."""
    entry, local = item.entry, None if item.observed.finish_delete else item.observed.content
    if entry is None:
        return Staged(item, None, None)
    why = context.policy.absent(item.path) if local is None else None
    if why is not None:
        return Staged(item, None, None, why)
    if local is not None and entry.sha256 is not None and local.sha256 == entry.sha256:
        return Staged(item, None, entry.sha256)
    return None


def _staged(item: IncomingFile, came: Arrived) -> Staged | None:
    """Return a download that is ready to be put in place; None: its object is not there."""
    return None if came.file is None else Staged(item, came.file, came.sha256, durable=came.durable)


def place(context: SyncContext, staged: Sequence[Staged], beside: SiblingFiles | None) -> set[str]:
    """Put a batch in place, and make it base; return the paths that moved meanwhile."""
    if not staged:
        return set()
    staged = sorted(staged, key=lambda one: one.item.path)  # so that few directories are opened twice
    moved: set[str] = set()
    doubt = doubtful(context.database, context.place)
    settled = _Settled()
    try:
        context.incoming.sync([one.file for one in staged if one.file is not None and not one.durable])
        _intend(context, staged)
        try:
            with context.database.transaction() as db:
                silent = journal.is_empty(db, context.place)
                moved = _touched(context, db, staged, beside, silent=silent)
                for one in staged:
                    if one.item.path not in moved:
                        _settle(context, one, settled)
                settled.write(db, context.place)
                overtake(db, context.place, settled.entries.keys() & doubt)
                if not silent:
                    through = {one.item.path: one.item.observed.through for one in staged}
                    for path in settled.entries.keys() - doubt:
                        journal.drop_rows(db, context.place, path, through[path])
                db.execute("DELETE FROM intent WHERE place = ?", (context.place,))
                if any(one.item.observed.content is not None for one in staged):
                    # A replaced file that came back after a power cut would pass for a change of ours; one that is
                    # merely missing is pulled again.
                    context.incoming.sync_directories()
        except StateError as error:
            raise ProofLost(error.message) from error
    finally:
        for one in staged:
            if one.file is not None and one.item.path not in settled.placed:
                one.file.unlink(missing_ok=True)
    return moved


def _touched(
    context: SyncContext, db: sqlite3.Connection, staged: Sequence[Staged], beside: SiblingFiles | None, *, silent: bool
) -> set[str]:
    """Return the paths that somebody has written to since they were looked at (T8), and the rest of their versions."""
    seen = [one.item.observed for one in staged]

    def moved(one: Observed) -> bool:
        return not ((silent or journal_unchanged(context, db, one)) and context.unmoved(one))

    touched = {one.path for one in seen if moved(one)}
    units = {version_dir(path) for path in touched} - {None}
    if beside is not None:
        for unit in {version_dir(one.path) for one in seen} - units - {None}:
            assert unit is not None
            others = beside.others.get(unit, ())
            if any(moved(one) for one in others) or not (silent or _nothing_else(context, db, unit, beside)):
                units.add(unit)
    return touched | {one.path for one in seen if units and version_dir(one.path) in units}


def _nothing_else(context: SyncContext, db: sqlite3.Connection, unit: str, beside: SiblingFiles) -> bool:
    """Whether the journal names no file of a version but those that were looked at."""
    rows = db.execute(
        "SELECT DISTINCT path FROM journal WHERE place = ? AND kind != 'tree' AND path > ? AND path < ?",
        (context.place, f"{unit}/", f"{unit}0"),  # 0 comes right after the slash
    )
    return all(path in beside.decided for (path,) in rows)


def _intend(context: SyncContext, staged: Sequence[Staged]) -> None:
    """Record what is about to change on the disk; what stays as it is needs no intent."""
    with context.database.transaction() as db:
        db.executemany(
            "INSERT OR REPLACE INTO intent VALUES (?, ?, ?, ?)",
            [
                (context.place, one.item.path, database.dump_entry(one.item.entry), one.sha256)
                for one in staged
                if one.file is not None or one.item.entry is None
            ],
        )


def journal_unchanged(context: SyncContext, db: sqlite3.Connection, observed: Observed) -> bool:
    """Whether the journal has nothing new of a path since it was looked at."""
    newer = db.execute(
        "SELECT 1 FROM journal WHERE place = ? AND path = ? AND kind != 'tree' AND (id > ? OR state = 'open') LIMIT 1",
        (context.place, observed.path, observed.through),
    ).fetchone()
    return newer is None


class _Settled(Struct):
    """What a batch has put in place, to be written down together."""

    placed: set[str] = field(default_factory=set)
    entries: dict[str, Entry | None] = field(default_factory=dict)
    files: list[file_stats.Row] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    absent: list[tuple[str, Why]] = field(default_factory=list)
    hashes: list[tuple[Entry, bytes]] = field(default_factory=list)

    def write(self, db: sqlite3.Connection, place: int) -> None:
        """Make it base, inside the transaction that renames."""
        base.record_entries(db, place, self.entries)
        file_stats.save_many(db, self.files)
        for path in self.gone:
            file_stats.delete(db, path)
        for path, why in self.absent:
            base.record_absent(db, place, path, why)
            if why == "refused":
                file_stats.save_unhashed(db, path, place)  # what is in the way may go away
        for entry, sha256 in self.hashes:
            base.record_hash(db, place, entry, sha256)


def _settle(context: SyncContext, one: Staged, settled: _Settled) -> None:
    """Rename one file into place, or remove it; all of it inside the caller's transaction."""
    item, entry = one.item, one.item.entry
    why = one.why
    try:
        if entry is None:
            context.incoming.remove(item.path)
            settled.gone.append(item.path)
            if item.observed.content is not None:
                context.report.pulled.deleted += 1
        elif one.file is not None:
            stat = context.incoming.install(one.file, item.path)
            settled.placed.add(item.path)
            assert one.sha256 is not None
            content = Content(one.sha256, stat.size, stat)
            settled.files.append(file_stats.make_row(item.path, content, time.time_ns(), context.place))
            context.report.pulled.files += 1
            context.report.pulled.bytes += stat.size
        elif item.observed.content is not None:
            settled.files.append(
                file_stats.make_row(item.path, item.observed.content, item.observed.looked, context.place)
            )
    except PathRefused as error:
        context.report.refused.append(Refusal(item.path, error.message))
        if entry is None:
            settled.gone.append(item.path)  # there is no such file here, whatever has its name
        else:
            why = "refused"
    except BayouError as error:
        context.report.failed.append(failure(item.path, error))
        return
    settled.entries[item.path] = entry
    if why is not None:
        settled.absent.append((item.path, why))
    if entry is not None and entry.sha256 is None and one.sha256 is not None:
        settled.hashes.append((entry, one.sha256))
