"""Discovery: what an object of a store without a head is, and how the first index is published.

The rules are here; `sync.plan.discovery_job` lists a store and applies them.

This module also has the rules of the trash: an index tree of discovered objects that left the index, kept until the
collector deletes them. The key of an object that Bayou wrote shows that Bayou wrote it. A discovered object has the
plain path as its key, and only the trash distinguishes it from payload that is not indexed yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from msgspec import Struct

from bayou.core import paths
from bayou.core.errors import AlreadyExists, HeadLost, NotFound
from bayou.index.entry import Entry
from bayou.index.head import HeadSeen, create_head, first_head, read_head
from bayou.index.log import Tally
from bayou.index.node import REPAIR, Root
from bayou.index.node_store import ReadableStore, WritableStore
from bayou.index.tree import Change
from bayou.objectstore import keys
from bayou.objectstore.transport import ObjectMeta

_OUTSIDE = ("", ".", "..")
_INSIDE = f"/{keys.INTERNAL}/"
IN_THE_WAY = "other objects have it as their directory"
OF_ANOTHER_SYSTEM = "a name that another system keeps for itself"
"""The reason for a key that is only counted, and not reported."""


class RefusedKey(Struct, frozen=True):
    """A key below a payload root that cannot be payload. The object stays where it is."""

    key: str
    reason: str


def in_payload(key: str) -> bool | None:
    """Return whether a key is at or below a payload root, or tries to leave the store; None for Bayou's own objects.

    Keys like `../x` and `/x` are reported as refused (V21): they are an attempt to escape, not another program's data.
    """
    root, _, _ = key.partition("/")
    return None if root == keys.INTERNAL else root in paths.PAYLOAD_ROOTS or root in _OUTSIDE


def nested_store(key: str) -> str | None:
    """Return the directory above `.bayou/` in a key, which is another store; None if the key has none."""
    at = key.find(_INSIDE)
    return key[:at] if at >= 0 else None


def proves_head(key: str) -> bool:
    """Return whether a key of Bayou's own shows that the store has, or had, a head: a page of the log, or a pack (P9).

    Nodes do not: a discovery that was interrupted leaves them.
    """
    return key.startswith((f"{keys.LOGS}/", f"{keys.PACKS}/"))


def refusal(key: str) -> str | None:
    """Return why an object at or below a payload root is not payload; None if it is."""
    path = keys.parse_payload(key).path
    why = paths.refusal(path)
    return OF_ANOTHER_SYSTEM if why is not None and _of_another_system(path) else why


def entry_of(meta: ObjectMeta) -> Entry:
    """Return the entry of a listed object; its hash is unknown."""
    path, push = keys.parse_payload(meta.key)
    return Entry(path, push, meta.size, None, meta.etag, meta.version, meta.modified)


def publish(store: WritableStore, root: Root | None, *, store_id: str, commit: str, at: str, by: str) -> HeadSeen:
    """Create the first head, of a discovery's tree; if another client was faster, return that client's head (V1)."""
    tally = Tally(added=root.entries, bytes=root.bytes) if root else Tally()
    head = first_head(store=store_id, commit=commit, at=at, by=by, root=root, tally=tally)
    try:
        stored = create_head(store, head)
    except AlreadyExists:
        return read_head(store)
    return HeadSeen(head, stored.etag, stored.version)


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


def folder_markers(store: ReadableStore, found: Sequence[ObjectMeta]) -> set[str]:
    """Return the keys of "folders" that consoles create: empty objects whose key ends in `/`.

    Some listings drop that last character; then there is no object at the remaining key.
    """
    # Unsafe keys, among them those that end in `/`, are only reported: no request uses them, since it could fail.
    doubtful = [meta.key for meta in found if meta.size == 0 and paths.unsafe(meta.key) is None]
    there = store.map(partial(_exists, store), doubtful)
    gone = {key for key, exists in zip(doubtful, there, strict=True) if not exists}
    return gone | {meta.key for meta in found if meta.key.endswith("/")}


def _exists(store: ReadableStore, path: str) -> bool:
    try:
        store.head(keys.payload(path, None))
    except NotFound:
        return False
    return True


def head_lost(store: ReadableStore, key: str) -> AlreadyExists | HeadLost:
    """Return the error for a key that only a client with a head writes (P9), in a store that had none a moment ago."""
    try:
        store.head(keys.HEAD)
    except NotFound:
        return HeadLost(
            f"{store.url} has objects of commits, such as {key!r}, and no head: it was lost",
            hint=f"rebuild the index with `{REPAIR}`",
        )
    return AlreadyExists(f"{store.url} has a head by now", hint="run the command again")


def _of_another_system(path: str) -> bool:
    """Return whether a safe path is refused only for a name that another system reserves."""
    if paths.unsafe(path) is not None:
        return False
    reserved = [segment for segment in path.split("/") if paths.reserved_name(segment) is not None]
    return bool(reserved) and not any(segment.startswith("~") for segment in reserved)


def trash_changes(changes: Iterable[Change]) -> dict[str, Entry | None]:
    """Return the changes of the trash that go with `changes` of the index, in the same swap of the head.

    A discovered object whose entry is deleted or replaced goes in; an object that is indexed again comes out (V5).
    """
    trash: dict[str, Entry | None] = {}
    for change in changes:
        if change.new is not None and change.new.push is None:
            trash[change.path] = None
        elif change.old is not None and change.old.push is None and change.old.refusal() is None:
            trash[change.path] = change.old
    return trash


def trash_refusal(entry: Entry) -> str | None:
    """Return why the collector must not delete the object of a trash row; None if a commit can have put it there.

    The trash is part of the store, and any writer of the store can put any name into it (V5, V9, V25). So only a
    payload path of this store is accepted, of an object that Bayou did not write, with the ETag that it had.
    """
    if entry.push is not None:
        return "it names an object of a push, and such objects are never in the trash"
    return entry.refusal() or ("it has no ETag" if entry.etag is None else None)
