"""What compaction and collection must not do to a store: delete what is in use, change a file, or lose one.

A collection is judged by the latest `gc.before` that the head recorded when it deleted. Its own may be earlier: another
collection, with a later one, may have deleted nodes of a root and been killed; this one then skips what it cannot read
of that root, and rightly deletes the packs that only this root names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import msgspec

from bayou.core.clock import parse_ms
from bayou.core.errors import NotFound
from bayou.index.entry import Entry
from bayou.objectstore import Store, keys
from bayou.packs.entries import read_entry
from tests.sync.indexes import entries_of
from tests.sync.processes.history import Version
from tests.sync.processes.judge import Account
from tests.sync.processes.upkeep import Deleting


def audit(
    store: Store,
    history: Sequence[Version],
    accounts: Sequence[Account],
    deletions: Sequence[Deleting],
    files: Mapping[str, bytes],
) -> list[str]:
    """Return a sentence about everything that is wrong; `files` are those of a fresh clone."""
    return [
        *wrongly_deleted(history, deletions),
        *turned_back(deletions),
        *changed_by_upkeep(history),
        *lost(history[-1], accounts),
        *unreadable(store, files),
    ]


def retained(history: Sequence[Version], before: int) -> Iterator[Version]:
    """Yield the versions that were current at some time since `before`: those that were replaced later, or never."""
    for version, following in pairwise(history):
        if following.at >= before:
            yield version
    yield history[-1]


def wrongly_deleted(history: Sequence[Version], deletions: Iterable[Deleting]) -> Iterator[str]:
    """Report deletions of objects that a retained root names (V5, P6), or that Bayou did not write."""
    for one in deletions:
        doomed = frozenset(one.keys)
        yield from (f"{key} was deleted, and Bayou did not write it" for key in sorted(filter(_is_foreign, doomed)))
        if one.before is None:
            yield f"{sorted(doomed)} were deleted, and no collection was announced"
            continue
        for version in retained(history, parse_ms(one.before)):
            for key in sorted(doomed & version.named):
                yield (
                    f"{key} was deleted when the head had collection {one.count} before {one.before}, and version "
                    f"{version.seq}, which is retained, names it"
                )


def turned_back(deletions: Iterable[Deleting]) -> Iterator[str]:
    """Report collections whose `gc.before` is earlier than that of a collection before them (P6)."""
    for old, new in pairwise(sorted(deletions, key=lambda one: (one.count, one.before or ""))):
        if (new.before or "") < (old.before or ""):
            yield f"gc.before went back from {old} to {new}"


def changed_by_upkeep(history: Sequence[Version]) -> Iterator[str]:
    """Report compactions that changed more of an entry than the place of its bytes (P4), or collections."""
    for old, new in pairwise([replace(history[0], entries={}), *history]):
        if new.kind == "push":
            continue
        for path in sorted(old.entries.keys() | new.entries.keys()):
            was, now = old.entries.get(path), new.entries.get(path)
            if new.kind == "compact":
                was, now = _without_place(was), _without_place(now)
            if was != now:
                yield f"version {new.seq}, of a {new.kind}, changes {path} from {was} to {now}"


def lost(newest: Version, accounts: Sequence[Account]) -> Iterator[str]:
    """Report files that a push has acknowledged, that are not in the head, and that nobody replaced or deleted.

    A version may have got another number, so files are known by their id and their name in the directory.
    """
    there = {(_name(path), identity) for path, identity in newest.ids.items()}
    for account in accounts:
        for change in account.begun.values():
            there |= {(_name(path), identity) for path, identity in change.saw.items() if identity is not None}
        for path, ids in account.copies.items():
            there |= {(_name(path), identity) for identity in ids}
    for account in accounts:
        told: set[tuple[str, str]] = set()
        for push, path, change in account.promised():
            identity = change.paths[path]
            if identity is None or (_name(path), identity) in there or (path, identity) in told:
                continue
            told.add((path, identity))
            yield f"{account.name}'s push {push.seq} speaks for {path} = {identity}, and version {newest.seq} lacks it"


def unreadable(store: Store, files: Mapping[str, bytes]) -> Iterator[str]:
    """Report entries of the head whose bytes are missing or others, in the store or in a fresh clone."""
    entries = entries_of(store)
    for path, entry in entries.items():
        try:
            data = read_entry(store, entry)
        except NotFound:
            yield f"{path} is in the index, and the store has no {entry.key}"
            continue
        if data is None:
            yield f"{path} has other bytes in {entry.key} than its entry says"
        elif files.get(path) != data:
            yield f"{path} {'has other bytes' if path in files else 'is missing'} in a fresh clone"
    yield from (f"a fresh clone has {path}, and the index has not" for path in sorted(files.keys() - entries.keys()))


def _is_foreign(key: str) -> bool:
    known = keys.parse_pack(key), keys.parse_node(key), keys.parse_log_page(key), keys.parse_payload(key).push
    return all(one is None for one in known)


def _without_place(entry: Entry | None) -> Entry | None:
    places: dict[str, None] = dict.fromkeys(("etag", "version", "at", "pack", "offset", "stored", "method"))
    return msgspec.structs.replace(entry, **places) if entry is not None else None


def _name(path: str) -> str:
    return path.rpartition("/")[2]
