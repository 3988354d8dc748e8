"""A damaged index: what can still be read of its head, its log and its trees."""

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


class DamagedIndex(Struct, frozen=True):
    """What can be read of a damaged index.

    `head` is set if the head can be read; `over` is the version of the head object to replace (None: it is missing);
    `parts` is what could be read of the head in any case; `visible` is the number of readable entries; `pages` are the
    readable pages of its log.
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
        """Whether `root` is the current root; otherwise the current root is unknown."""
        return self.head is not None or self.parts.root is not None


def read_damaged(store: Store) -> DamagedIndex | None:
    """Return what can be read of a damaged index; None if it is not damaged. An unknown format is refused (V10)."""
    try:
        fetched = store.get(keys.HEAD, most=limits.HEAD_BYTES)
    except NotFound:
        return DamagedIndex(Salvage(), _fresh_gc(), pages=_list_pages(store))
    except TooLarge:
        meta = store.head(keys.HEAD)
        return DamagedIndex(Salvage(), _fresh_gc(), over=Match(meta.etag, meta.version), pages=_list_pages(store))
    assert fetched is not None  # the request had no ETag
    data, over = bytes(fetched.data), Match(fetched.meta.etag, fetched.meta.version)
    try:
        head = parse_head(data, store.url)
    except HeadCorrupt:
        return DamagedIndex(salvage(data, store.url), _fresh_gc(), over=over, pages=_list_pages(store))
    pages, broken = read_log_pages(store, head.older, head.log[0].seq)
    seen = survey(StoreNodes(store), head.root)
    if not (broken or seen.damage or survey(StoreNodes(store), head.trash).damage):
        return None
    parts = Salvage(head.store, head.seq, _pointer(head.root), _pointer(head.trash), head.log)
    return DamagedIndex(parts, head.gc, replace(head, older=None) if broken else head, over, len(seen.rows), pages)


def read_log_pages(store: Store, page: str | None, below: int | None = None) -> tuple[list[Page], list[str]]:
    """Return the pages of a log from `page` backwards, and the error that ended the chain early, if any.

    `below` is the seq of the row that follows the page, if there is one.
    """
    pages: list[Page] = []
    try:
        pages.extend(older_pages(store, page, below))
    except IndexDamaged as error:
        return pages, [error.message]
    return pages, []


def _list_pages(store: Store) -> list[Page]:
    """Return every page of the log that the store has and that can be read."""
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


def _fresh_gc() -> Gc:
    """Return a count that no collection has had, so that pushes under way check each of their uploads (T13)."""
    return Gc(int(time.time()))
