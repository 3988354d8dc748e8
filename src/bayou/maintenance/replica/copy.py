"""Copy files from store to store: small ones in packs, the others as objects of their own.

A pack of the source is read once, by joined ranges, and its wanted files go into new packs, together with those that
are single objects in the source (P8). A pack's name is new in each attempt: a task that runs twice writes two packs,
only one of which is committed, and garbage collection deletes the other (P1). Each file is proved by its hash on the
way. Memory is bounded by the ranges that are read and the packs that are written at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from hashlib import sha256
from typing import TypeAlias

from bayou.core.errors import BadAnswer, NotFound, PathRefused, Rejected
from bayou.index.entry import Entry
from bayou.maintenance.replica.objects import (
    UnreadableSource,
    copy_object,
    find_copy,
    other_bytes,
    read_object,
    send,
    unreadable,
)
from bayou.maintenance.replica.pairs import CopiedEntry, CopyRules
from bayou.objectstore.multipart import THRESHOLD
from bayou.objectstore.store import Store
from bayou.packs.read import IN_FLIGHT_BYTES, PackRange, extract_all, load_range, plan_ranges, threads_for
from bayou.packs.write import PackWriter, SentPack
from bayou.sync.report import Failure

_LANES = ((1 << 20, None), (THRESHOLD, 8), (None, 2))
"""Sizes, and how many objects up to that size are copied at once (None: as many as the store allows).

Together that takes some 200 MB of memory at most."""

_LEAST_THREADS = 4

Result: TypeAlias = tuple[Entry, CopiedEntry | Failure]
"""An entry of the source, and what became of it."""

Content: TypeAlias = tuple[Entry, bytes | Failure]
"""An entry of the source, and its bytes, which have its hash; or why they could not be read."""


def copy_all(source: Store, target: Store, entries: Sequence[Entry], rules: CopyRules) -> Iterator[Result]:
    """Copy many files at once, in bounded memory; yield each entry with its result, small files first.

    A fault of one file is its `Failure`; a fault of a store is raised. A task may run this twice.
    """
    small: list[Entry] = []
    packed: list[Entry] = []
    alone: list[Entry] = []
    for entry in entries:
        why = entry.refusal()
        if why is not None:
            yield entry, Failure(entry.path, PathRefused.code, f"{entry.path}: {why}")  # V25
        elif rules.is_packed(entry):
            small.append(entry)
        else:
            (alone if entry.pack is None else packed).append(entry)
    yield from _copy_to_packs(source, target, small, rules)
    yield from _copy_from_packs(source, target, packed, rules)
    yield from _copy_objects(source, target, alone, rules)


def _copy_to_packs(source: Store, target: Store, entries: Sequence[Entry], rules: CopyRules) -> Iterator[Result]:
    """Copy small files, of packs and single objects, into new packs; yield each once the store has its pack."""
    if not entries:
        return
    waiting: dict[str, Entry] = {}
    with closing(PackWriter(target, rules.pack_size)) as writer:
        for entry, data in _read_all(source, entries):
            if isinstance(data, Failure):
                yield entry, data
                continue
            waiting[entry.path] = entry
            writer.add(entry.path, rules.push(entry), data, entry.sha256 or sha256(data).digest(), entry.modified)
            for sent in writer.sent():
                yield from _copies(sent, waiting)
        writer.seal()
        for sent in writer.drain():
            yield from _copies(sent, waiting)


def _copies(sent: SentPack, waiting: dict[str, Entry]) -> Iterator[Result]:
    """Yield the files of a pack that has arrived; raise the error of one that has not: it is one of the store."""
    if sent.stored is None:
        assert sent.error is not None
        raise sent.error
    name, repeated = sent.pack.name, sent.stored.repeated
    for member in sent.pack.members:
        there = Entry(
            member.path, member.push, member.size, member.sha256, None, None, member.modified,
            None, name, member.offset, member.stored, member.method,
        )  # fmt: skip
        yield waiting.pop(member.path), CopiedEntry(there, sent=True, repeated=repeated)


def _copy_from_packs(source: Store, target: Store, entries: Sequence[Entry], rules: CopyRules) -> Iterator[Result]:
    """Copy files that are in packs of the source, and are too large for packs of the target, to objects."""
    if not entries:
        return
    found = target.map(partial(find_copy, target, rules=rules), entries) if rules.doubt else [None] * len(entries)
    missing: list[Entry] = []
    for entry, copied in zip(entries, found, strict=True):
        if copied is not None:
            yield entry, copied
        else:
            missing.append(entry)
    yield from target.map(
        partial(_send, target, rules), _read_packs(source, missing), threads=_threads(target, entries)
    )


def _send(target: Store, rules: CopyRules, content: Content) -> Result:
    entry, data = content
    if isinstance(data, Failure):
        return entry, data
    assert entry.sha256 is not None  # it was in a pack
    try:
        return entry, send(target, entry, data, entry.sha256, rules)
    except Rejected as error:  # the target does not allow the name
        return entry, Failure(entry.path, error.code, error.message)


def _copy_objects(source: Store, target: Store, entries: Sequence[Entry], rules: CopyRules) -> Iterator[Result]:
    """Copy objects to objects."""
    least = -1
    for most, threads in _LANES:
        lane = [entry for entry in entries if least < entry.size and (most is None or entry.size <= most)]
        copies = target.map(lambda entry: copy_object(source, target, entry, rules), lane, threads=threads)
        yield from zip(lane, copies, strict=True)
        least = most if most is not None else least


def _read_all(source: Store, entries: Sequence[Entry]) -> Iterator[Content]:
    """Read small files, wherever they are, several at once."""
    yield from _read_packs(source, (entry for entry in entries if entry.pack is not None))
    alone = [entry for entry in entries if entry.pack is None]
    yield from source.map(partial(_read_object, source), alone, threads=_threads(source, alone))


def _read_object(source: Store, entry: Entry) -> Content:
    try:
        return entry, read_object(source, entry)[0]
    except UnreadableSource as error:
        return entry, Failure(entry.path, error.code, error.message)


def _read_packs(source: Store, entries: Iterable[Entry]) -> Iterator[Content]:
    """Read files of packs by joined ranges. Threads load ranges; only one file at a time is inflated."""
    ranges = plan_ranges(entries)
    for part, data in source.map(partial(_load, source), ranges, threads=threads_for(source, ranges)):
        if isinstance(data, memoryview):
            for entry, content in extract_all(part, data):
                yield entry, content if content is not None else _failure(other_bytes(entry), entry)
        else:
            for entry in part.entries:
                yield entry, _failure(unreadable(entry, data), entry)


def _load(source: Store, part: PackRange) -> tuple[PackRange, memoryview | NotFound | BadAnswer | Rejected]:
    """Load a range, or return why its pack is not the one that the index names: it fails all its files."""
    try:
        return part, load_range(source, part)
    except (NotFound, BadAnswer, Rejected) as error:  # `Rejected`: the pack ends before the range
        return part, error


def _failure(error: UnreadableSource, entry: Entry) -> Failure:
    return Failure(entry.path, error.code, error.message)


def _threads(store: Store, entries: Sequence[Entry]) -> int:
    """Return how many of these files to transfer at once, so that memory stays bounded."""
    largest = max((entry.size for entry in entries), default=0)
    return min(store.concurrency, max(_LEAST_THREADS, IN_FLIGHT_BYTES // max(1, largest)))
