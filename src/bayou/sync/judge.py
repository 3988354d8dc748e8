"""What an index and a store say of each other, one key at a time: the rules of `verify`, whoever goes by them.

Nothing here reads an index or lists a store. What only a request can tell is asked by `by_name` and `read_back`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from bayou.core.errors import BadAnswer, NotFound, PreconditionFailed
from bayou.index.entry import Entry
from bayou.index.key_range import KeyRanges
from bayou.objectstore import keys
from bayou.objectstore.multipart import NullSink
from bayou.objectstore.store import Store
from bayou.objectstore.transport import ObjectMeta

MISSING, CHANGED, READ, WELL, LEARNED = "missing", "changed", "read", "well", "learned"
"""Of an entry. `READ`: only the bytes of its object can tell. `LEARNED`: they told a hash that nobody knew."""

HIDDEN, TRASH, LEFTOVER, UNINDEXED = "hidden", "trash", "leftover", "unindexed"
"""Of an object that no entry names. `HIDDEN`: one may, in a part of the index that cannot be read."""


class Rules(Struct, frozen=True):
    """What one comparison goes by: the paths that are out of sight, and whether every object is to be read."""

    hidden: KeyRanges
    deep: bool = False

    def entry(self, entry: Entry, at: ObjectMeta | None) -> str:
        """Judge an entry by the object that a listing has at its key."""
        if at is None:
            return MISSING
        if at.size != entry.size:
            return CHANGED
        if entry.etag is not None and at.etag != entry.etag:
            # A PUT that was repeated, or came late, wrote the same bytes to the same key (V11); only they can tell.
            return CHANGED if entry.push is None or entry.sha256 is None else READ
        return READ if self.deep else WELL

    def stray(self, meta: ObjectMeta, *, wasted: bool) -> str:
        """Judge an object that no entry names; `wasted`: the trash does."""
        path, push = keys.parse_payload(meta.key)
        if self.hidden.holds(path):
            return HIDDEN
        if wasted:
            return TRASH
        return UNINDEXED if push is None else LEFTOVER

    def by_name(self, store: Store, entries: Iterable[Entry]) -> Iterator[tuple[str, Entry]]:
        """Look once more, by name, for objects that a listing does not have, and judge each entry by that (V4)."""
        for entry, gone in store.map(lambda one: (one, _gone(store, one)), entries):
            yield MISSING if gone else READ if self.deep else WELL, entry


def read_back(store: Store, entries: Iterable[Entry]) -> Iterator[tuple[str, Entry]]:
    """Read objects as they are now, and judge each entry by their bytes: changed, learned (with its hash), or well."""
    for entry, digest in store.map(lambda one: (one, _digest(store, one)), entries):
        if entry.sha256 is None and digest is not None:
            yield LEARNED, replace(entry, sha256=digest)
        else:
            yield CHANGED if digest != entry.sha256 else WELL, entry


def _gone(store: Store, entry: Entry) -> bool:
    try:
        store.head(entry.key)
    except NotFound:
        return True
    return False


def _digest(store: Store, entry: Entry) -> bytes | None:
    """Return the hash of an object's bytes, as they are now; None if they are not there, or not as many."""
    try:
        return store.download(entry.key, NullSink(), entry.size).sha256
    except (NotFound, BadAnswer, PreconditionFailed):
        return None
