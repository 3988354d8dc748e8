"""Discovery: what a store without a head holds already, and how it becomes an index."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

from bayou import paths
from bayou.errors import AlreadyExists, BadAnswer, HeadLost, NotFound
from bayou.index.build import build
from bayou.index.entry import Entry
from bayou.index.head import HeadSeen, create_head, first_head, read_head
from bayou.index.local import NodeFiles
from bayou.index.log import Tally
from bayou.index.node import REPAIR
from bayou.index.nodes import StoreSink
from bayou.index.ports import Reads, Writes
from bayou.store import keys
from bayou.store.transport import ObjectMeta

IN_THE_WAY = "other objects have it as their directory"


@dataclass(frozen=True, slots=True)
class Refused:
    """A key below a payload root that cannot be payload. It stays where it is."""

    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class Listing:
    """The payload objects of a store, whoever wrote them; keys refused; and how many others are not ours."""

    objects: Sequence[ObjectMeta]
    refused: Sequence[Refused]
    ignored: int


@dataclass(frozen=True, slots=True)
class Discovery:
    """What a listing says: entries sorted by path, keys refused, and how many others are none of our business."""

    entries: Sequence[Entry]
    refused: Sequence[Refused]
    ignored: int


def discover(store: Reads) -> Discovery:
    """List a store without a head and sort out what is payload. Nothing is written (V15).

    A listing that fails is raised, never taken for an empty one (V4). Where objects of pushes are found there is, or
    was, a head: `AlreadyExists` if it is there by now (read it instead), `HeadLost` if it is not.
    """
    listing = list_payload(store)
    entries: dict[str, Entry] = {}
    for meta in listing.objects:
        entry = entry_of(meta)
        if entry.push is not None:
            raise _head_lost(store, meta.key)
        entries[entry.path] = entry
    refused = [*listing.refused]
    for path in directories(entries) & entries.keys():
        del entries[path]
        refused.append(Refused(path, IN_THE_WAY))
    return Discovery(
        [entries[path] for path in sorted(entries)], sorted(refused, key=attrgetter("key")), listing.ignored
    )


def list_payload(store: Reads) -> Listing:
    """List a store and sort out what is payload: at a plain path, or an object of a push. Nothing is written (V15)."""
    found, ignored = _list(store)
    objects: list[ObjectMeta] = []
    refused: list[Refused] = []
    for meta in _without_markers(store, found):
        path = keys.parse_payload(meta.key).path
        why = paths.refusal(path)
        if why is None:
            objects.append(meta)
        elif _of_another_system(path):
            ignored += 1
        else:
            refused.append(Refused(meta.key, why))
    return Listing(objects, refused, ignored)


def entry_of(meta: ObjectMeta) -> Entry:
    """Return the entry of an object that nothing but a listing tells of: its hash is not known."""
    path, push = keys.parse_payload(meta.key)
    return Entry(path, push, meta.size, None, meta.etag, meta.version, meta.modified)


def publish(
    store: Writes,
    entries: Iterable[Entry],
    *,
    store_id: str,
    commit: str,
    at: str,
    by: str,
    cache: NodeFiles | None = None,
) -> HeadSeen:
    """Build the tree of discovered entries and create the head, or return the head of whoever was faster (V1)."""
    root = build(entries, StoreSink(store, commit, cache))
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


def _list(store: Reads) -> tuple[list[ObjectMeta], int]:
    """Return what lies at or below a payload root and in no other store, and the number of other keys."""
    found: list[ObjectMeta] = []
    foreign: set[str] = set()
    others = 0
    for page in store.list():
        for meta in page:
            root, _, _ = meta.key.partition("/")
            if root == keys.INTERNAL:
                continue
            outside, inside, _ = meta.key.partition(f"/{keys.INTERNAL}/")
            if inside:
                foreign.add(outside)  # a directory that holds .bayou/ is another store
            if root in paths.PAYLOAD_ROOTS:
                found.append(meta)
            else:
                others += 1
    # The order of a listing does not say first that a directory is another store.
    ours = [meta for meta in found if foreign.isdisjoint(_parents(meta.key))]
    return ours, others + len(found) - len(ours)


def _parents(path: str) -> Iterable[str]:
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
        for parent in _parents(path):
            if parent in seen:
                break
            seen.add(parent)
    return seen


def _without_markers(store: Reads, found: list[ObjectMeta]) -> list[ObjectMeta]:
    """Leave out the "folders" that consoles make: empty objects whose key ends in `/`.

    Some listings drop that last character; then there is no object at the key that is left.
    """
    found = [meta for meta in found if not meta.key.endswith("/")]
    # Odd keys are only reported: no request with one of them may stop the others.
    doubtful = [meta.key for meta in found if meta.size == 0 and paths.unsafe(meta.key) is None]
    there = store.map(partial(_exists, store), doubtful)
    markers = {key for key, exists in zip(doubtful, there, strict=True) if not exists}
    return [meta for meta in found if meta.key not in markers]


def _exists(store: Reads, path: str) -> bool:
    try:
        store.head(keys.payload(path, None))
    except NotFound:
        return False
    return True


def _head_lost(store: Reads, key: str) -> AlreadyExists | HeadLost:
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
