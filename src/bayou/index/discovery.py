"""Discovery: what a store without a head holds already, and how it becomes an index.

The trash: discovered objects that left the index, kept as a tree until they are deleted.

An object that Bayou wrote needs no such note, since its key says so. One that was there before has the plain path as
its key, and nothing but this tree would tell it from payload that nobody has indexed yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from operator import attrgetter

from msgspec import Struct

from bayou.core import paths
from bayou.core.errors import AlreadyExists, BadAnswer, HeadLost, NotFound
from bayou.index.entry import Entry
from bayou.index.head import HeadSeen, create_head, first_head, read_head
from bayou.index.log import Tally
from bayou.index.node import REPAIR, Root
from bayou.index.node_store import Reads, Writes
from bayou.index.tree import Change
from bayou.objectstore import keys
from bayou.objectstore.transport import ObjectMeta

_OUTSIDE = ("", ".", "..")
IN_THE_WAY = "other objects have it as their directory"
OF_ANOTHER_SYSTEM = "a name that another system keeps for itself"
"""No reason to report a key: nobody misses it."""


class Refused(Struct, frozen=True):
    """A key below a payload root that cannot be payload. It stays where it is."""

    key: str
    reason: str


class PayloadListing(Struct, frozen=True):
    """The payload objects of a store, whoever wrote them; keys refused; and how many others are not ours."""

    objects: Sequence[ObjectMeta]
    refused: Sequence[Refused]
    ignored: int


class Discovery(Struct, frozen=True):
    """What a listing says: entries sorted by path, keys refused, and how many others are none of our business."""

    entries: Sequence[Entry]
    refused: Sequence[Refused]
    ignored: int


class Discovered(Struct, frozen=True):
    """The tree of what a store holds. `refused` names the first of the keys refused, of `refusals` in all."""

    root: Root | None
    refused: Sequence[Refused]
    refusals: int
    ignored: int


class TooMany(Exception):
    """There are more objects than one process was asked to list."""


def discover(store: Reads, *, limit: int | None = None) -> Discovery:
    """List a store without a head and sort out what is payload. Nothing is written (V15).

    A listing that fails is raised, never taken for an empty one (V4). Where objects of pushes are found there is, or
    was, a head: `AlreadyExists` if it is there by now (read it instead), `HeadLost` if it is not. `TooMany`, as soon as
    it is known, if there are more than `limit` objects.
    """
    listing = list_payload(store, limit=limit)
    entries: dict[str, Entry] = {}
    for meta in listing.objects:
        entry = entry_of(meta)
        if entry.push is not None:
            raise head_lost(store, meta.key)
        entries[entry.path] = entry
    refused = [*listing.refused]
    for path in directories(entries) & entries.keys():
        del entries[path]
        refused.append(Refused(path, IN_THE_WAY))
    return Discovery(
        [entries[path] for path in sorted(entries)], sorted(refused, key=attrgetter("key")), listing.ignored
    )


def list_payload(store: Reads, *, limit: int | None = None) -> PayloadListing:
    """List a store and sort out what is payload: at a plain path, or an object of a push. Nothing is written (V15)."""
    found, ignored = _list(store, limit)
    objects: dict[str, ObjectMeta] = {}
    refused: list[Refused] = []
    folders = markers(store, found)
    for meta in found:
        if meta.key in folders:
            continue
        why = refusal(meta.key)
        if why is None:
            # Of an object and a "folder" that a listing calls by one key, the object is the one with bytes.
            if meta.key not in objects or meta.size > objects[meta.key].size:
                objects[meta.key] = meta
        elif why == OF_ANOTHER_SYSTEM:
            ignored += 1
        else:
            refused.append(Refused(meta.key, why))
    return PayloadListing(list(objects.values()), refused, ignored)


def in_payload(key: str) -> bool | None:
    """Whether a key lies at or below a payload root, or pretends to lie outside; None for what Bayou keeps for itself.

    `../x` and `/x` are refused by name (V21): a key of that kind is an attempt, and not another program's directory.
    """
    root, _, _ = key.partition("/")
    return None if root == keys.INTERNAL else root in paths.PAYLOAD_ROOTS or root in _OUTSIDE


def other_store(key: str) -> str | None:
    """Return the directory that is another store, as it holds `.bayou/`, if the key tells of one."""
    outside, inside, _ = key.partition(f"/{keys.INTERNAL}/")
    return outside if inside else None


def refusal(key: str) -> str | None:
    """Say why an object at or below a payload root is none of payload; None if it is."""
    path = keys.parse_payload(key).path
    why = paths.refusal(path)
    return OF_ANOTHER_SYSTEM if why is not None and _of_another_system(path) else why


def entry_of(meta: ObjectMeta) -> Entry:
    """Return the entry of an object that nothing but a listing tells of: its hash is not known."""
    path, push = keys.parse_payload(meta.key)
    return Entry(path, push, meta.size, None, meta.etag, meta.version, meta.modified)


def publish(store: Writes, root: Root | None, *, store_id: str, commit: str, at: str, by: str) -> HeadSeen:
    """Create the head over the tree of a discovery, or return the head of whoever was faster (V1)."""
    tally = Tally(added=root.entries, bytes=root.bytes) if root else Tally()
    head = first_head(store=store_id, commit=commit, at=at, by=by, root=root, tally=tally)
    try:
        stored = create_head(store, head)
    except AlreadyExists:
        winner = read_head(store)
        if winner is None:
            raise BadAnswer(f"{store.url} says that its head is not modified, and nobody asked that") from None
        return winner
    return HeadSeen(head, stored.etag, stored.version)


def _list(store: Reads, limit: int | None) -> tuple[list[ObjectMeta], int]:
    """Return what lies at or below a payload root and in no other store, and the number of other keys."""
    found: list[ObjectMeta] = []
    foreign: set[str] = set()
    others = 0
    for page in store.list():
        if limit is not None and len(found) + others + len(page) > limit:
            raise TooMany
        for meta in page:
            ours = in_payload(meta.key)
            if ours is None:
                continue
            if (outside := other_store(meta.key)) is not None:
                foreign.add(outside)
            if ours:
                found.append(meta)
            else:
                others += 1
    # The order of a listing does not say first that a directory is another store.
    kept = [meta for meta in found if foreign.isdisjoint(parents(meta.key))]
    return kept, others + len(found) - len(kept)


def parents(path: str) -> Iterable[str]:
    """Yield the directories of a path, the nearest first."""
    end = path.rfind("/")
    while end >= 0:
        path = path[:end]
        yield path
        end = path.rfind("/")


def directories(entries: Iterable[str]) -> set[str]:
    """Return every directory that some path lies in."""
    seen: set[str] = set()
    for path in entries:
        for parent in parents(path):
            if parent in seen:
                break
            seen.add(parent)
    return seen


def markers(store: Reads, found: Sequence[ObjectMeta]) -> set[str]:
    """Return the keys of the "folders" that consoles make: empty objects whose key ends in `/`.

    Some listings drop that last character; then there is no object at the key that is left.
    """
    # Odd keys are only reported, those that end in `/` among them: no request with one may stop the others.
    doubtful = [meta.key for meta in found if meta.size == 0 and paths.unsafe(meta.key) is None]
    there = store.map(partial(_exists, store), doubtful)
    gone = {key for key, exists in zip(doubtful, there, strict=True) if not exists}
    return gone | {meta.key for meta in found if meta.key.endswith("/")}


def _exists(store: Reads, path: str) -> bool:
    try:
        store.head(keys.payload(path, None))
    except NotFound:
        return False
    return True


def head_lost(store: Reads, key: str) -> AlreadyExists | HeadLost:
    """Say why objects of pushes are there without a head; who publishes one does so before the first upload."""
    try:
        store.head(keys.HEAD)
    except NotFound:
        return HeadLost(
            f"{store.url} has objects of pushes, such as {key!r}, and no head: it was lost",
            hint=f"rebuild the index with `{REPAIR}`",
        )
    return AlreadyExists(f"{store.url} has a head by now", hint="run the command again")


def _of_another_system(path: str) -> bool:
    """Whether a safe path is refused only for a name that some other system keeps for itself."""
    if paths.unsafe(path) is not None:
        return False
    reserved = [segment for segment in path.split("/") if paths.reserved_name(segment) is not None]
    return bool(reserved) and not any(segment.startswith("~") for segment in reserved)


def trash_changes(changes: Iterable[Change]) -> dict[str, Entry | None]:
    """Return what a commit of `changes` to the index changes in the trash; merge it in the same swap of the head.

    A discovered object whose entry is deleted or replaced goes in; one that is indexed (again) comes out (V5).
    """
    trash: dict[str, Entry | None] = {}
    for change in changes:
        if change.new is not None and change.new.push is None:
            trash[change.path] = None
        elif change.old is not None and change.old.push is None and change.old.refusal() is None:
            trash[change.path] = change.old
    return trash


def trash_refusal(entry: Entry) -> str | None:
    """Say why nothing may be deleted by a row of the trash; None if it can be one that a commit put there.

    The trash is part of the store, and whoever writes there can put any name into it (V5, V9, V25): only a payload path
    of this store is believed, of an object that Bayou did not write, with the ETag that it had.
    """
    if entry.push is not None:
        return "it names an object of a push, and such objects are never in the trash"
    return entry.refusal() or ("it has no ETag" if entry.etag is None else None)
