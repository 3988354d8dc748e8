"""What is left of an index that is damaged: its head, or parts of one, and the pages of its log."""

from __future__ import annotations

import time
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from bayou.core import limits
from bayou.core.errors import HeadCorrupt, IndexDamaged, NotFound, TooLarge
from bayou.index.check import Salvage, salvage, survey
from bayou.index.head import Gc, Head, parse_head
from bayou.index.log import Page, older_pages, read_page
from bayou.index.node import Pointer, Root
from bayou.index.node_store import StoreNodes
from bayou.objectstore import keys
from bayou.objectstore.store import Store
from bayou.objectstore.transport import Match


class Remains(Struct, frozen=True):
    """What a damaged index still says.

    `head` is there if it can be read, `over` names the version that it is or was (None: there is none at all), `parts`
    is what it says in either case, `visible` how many entries can be reached from it, `pages` those of its log.
    """

    parts: Salvage
    gc: Gc
    head: Head | None = None
    over: Match | None = None
    visible: int = 0
    pages: Sequence[Page] = ()

    @property
    def root(self) -> Root | Pointer | None:
        return self.head.root if self.head is not None else self.parts.root

    @property
    def knows_root(self) -> bool:
        """Whether `root` is the current one; else nobody can tell what that was."""
        return self.head is not None or self.parts.root is not None


def look(store: Store) -> Remains | None:
    """Return what is left of a damaged index; None if it is whole. An unknown format is refused (V10)."""
    try:
        fetched = store.get(keys.HEAD, most=limits.HEAD_BYTES)
    except NotFound:
        return Remains(Salvage(), _unlike_any(), pages=_listed(store))
    except TooLarge:
        meta = store.head(keys.HEAD)
        return Remains(Salvage(), _unlike_any(), over=Match(meta.etag, meta.version), pages=_listed(store))
    assert fetched is not None  # nobody asked whether it is modified
    data, over = bytes(fetched.data), Match(fetched.meta.etag, fetched.meta.version)
    try:
        head = parse_head(data, store.url)
    except HeadCorrupt:
        return Remains(salvage(data, store.url), _unlike_any(), over=over, pages=_listed(store))
    pages, broken = chain(store, head.older, head.log[0].seq)
    seen = survey(StoreNodes(store), head.root)
    if not (broken or seen.damage or survey(StoreNodes(store), head.trash).damage):
        return None
    parts = Salvage(head.store, head.seq, _pointer(head.root), _pointer(head.trash), head.log)
    return Remains(parts, head.gc, replace(head, older=None) if broken else head, over, len(seen.rows), pages)


def chain(store: Store, page: str | None, below: int | None = None) -> tuple[list[Page], list[str]]:
    """Return the pages of a log from one back, and what ended that before the first one.

    `below` is the seq of the row that follows, if there is one.
    """
    pages: list[Page] = []
    try:
        pages.extend(older_pages(store, page, below))
    except IndexDamaged as error:
        return pages, [error.message]
    return pages, []


def _listed(store: Store) -> list[Page]:
    """Return every page of the log that is there and can be read."""
    names = [keys.parse_log_page(meta.key) for listed in store.list(keys.LOGS) for meta in listed]
    pages = []
    for name in names:
        try:
            pages += [read_page(store, name)] if name is not None else []
        except IndexDamaged:
            continue
    return pages


def _pointer(root: Root | None) -> Pointer | None:
    return None if root is None else root.pointer


def _unlike_any() -> Gc:
    """Return a count that no collection can have had: pushes under way look at each of their uploads again (T13)."""
    return Gc(int(time.time()))
