"""The head: the one mutable object of the index, changed only by compare-and-swap (V1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import Any

from bayou import limits
from bayou.errors import HeadCorrupt, NoConditionalWrites, TooLarge, UnknownFormat
from bayou.index.fields import Fields, Malformed, dump, parse
from bayou.index.log import LogRow, Page, Tally, older_rows, rows_of, write_page
from bayou.index.node import REPAIR, Root, digest_of, is_name
from bayou.index.ports import Reads, Writes
from bayou.index.replica import Replica
from bayou.quick import dataclass
from bayou.store import keys
from bayou.store.transport import Create, Match, Stored

FORMAT = 1
PAGE_ROWS = 50
"""The log in the head has at least this many rows once there are as many, and always less than twice as many."""

_MAX_LEVEL = 63


@dataclass(frozen=True, slots=True)
class Gc:
    """How often the store was collected, and of what age (the store's clock) uploads may be gone since the last."""

    count: int = 0
    before: str | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """One version of the index. Times are UTC with milliseconds and a `Z`; `log` is oldest first."""

    store: str
    seq: int
    commit: str
    parent: str | None
    at: str
    by: str
    gc: Gc
    root: Root | None
    trash: Root | None
    log: tuple[LogRow, ...]
    older: str | None
    rebuilt: str | None = None
    """The commit that rebuilt the index last, if one did: what base knew before that is no history of this head."""
    replica: Replica | None = None
    """What this store is a copy of, if it is one."""
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Fields that a newer version of this format wrote; they are carried along."""
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class HeadSeen:
    """A head, and the fingerprint that came in the same answer (V2)."""

    head: Head
    etag: str | None
    version: str | None

    @property
    def match(self) -> Match:
        """The condition for replacing exactly this head."""
        return Match(self.etag, self.version)


def first_head(
    *, store: str, commit: str, at: str, by: str, root: Root | None, tally: Tally, trash: Root | None = None
) -> Head:
    """Return the first head of a store; `store` is its id from now on."""
    row = LogRow.of(1, commit, at, by, root, tally, mass_delete=False)
    return Head(store, 1, commit, None, at, by, Gc(), root, trash, (row,), None)


def advance(
    head: Head,
    *,
    commit: str,
    at: str,
    by: str,
    root: Root | None,
    trash: Root | None,
    tally: Tally,
    gc: Gc | None = None,
    mass_delete: bool = False,
) -> tuple[Head, Page | None]:
    """Return the head that follows `head`, and the page of the log that must be stored before it, if one is full."""
    row = LogRow.of(head.seq + 1, commit, at, by, root, tally, mass_delete)
    log, older, page = (*head.log, row), head.older, None
    if len(log) >= 2 * PAGE_ROWS:
        # Named by the commit, which no other attempt shares: the page of a swap that fails is never anybody's.
        page = Page(commit, older, log[:PAGE_ROWS])
        log, older = log[PAGE_ROWS:], page.id
    new = replace(
        head,
        seq=row.seq,
        commit=commit,
        parent=head.commit,
        at=at,
        by=by,
        gc=gc or head.gc,
        root=root,
        trash=trash,
        log=log,
        older=older,
    )
    return new, page


def read_head(store: Reads, if_none_match: str | None = None) -> HeadSeen | None:
    """Return the head, or None if its ETag is `if_none_match`.

    `NotFound` if the store has none, `HeadCorrupt` or `UnknownFormat` if it is not one of ours.
    """
    try:
        fetched = store.get(keys.HEAD, if_none_match=if_none_match, most=limits.HEAD_BYTES)
    except TooLarge as error:
        raise head_corrupt(store.url, error.message) from error
    if fetched is None:
        return None
    return HeadSeen(parse_head(bytes(fetched.data), store.url), fetched.meta.etag, fetched.meta.version)


def create_head(store: Writes, head: Head) -> Stored:
    """Store the first head; `AlreadyExists` if somebody was faster."""
    return store.put(keys.HEAD, encode_head(head), condition=Create())


def swap_head(store: Writes, head: Head, over: Match, page: Page | None) -> Stored:
    """Replace the head of exactly the version `over`, after storing the page that `advance` made; else
    `PreconditionFailed`, and nothing has changed that anybody can see (V11)."""
    if over.etag is None and over.version is None:
        raise NoConditionalWrites(f"{store.url} gave no ETag for {keys.HEAD}, so it cannot be replaced safely")
    if page is not None:
        write_page(store, page)
    return store.put(keys.HEAD, encode_head(head), condition=over)


def iter_log(store: Reads, head: Head) -> Iterator[LogRow]:
    """Yield every row of the log, newest first; pages are read only when they are reached."""
    yield from reversed(head.log)
    yield from older_rows(store, head.older, head.log[0].seq)


def encode_head(head: Head) -> bytes:
    """Write a head."""
    return dump(
        {
            "format": head.format,
            "store": head.store,
            "seq": head.seq,
            "commit": head.commit,
            "parent": head.parent,
            "at": head.at,
            "by": head.by,
            "gc": {"count": head.gc.count, "before": head.gc.before},
            "root": _root_document(head.root),
            "trash": _root_document(head.trash),
            "log": [row.document() for row in head.log],
            "older": head.older,
            **({"rebuilt": head.rebuilt} if head.rebuilt is not None else {}),
            **({"replica": _replica_document(head.replica)} if head.replica is not None else {}),
            **head.extra,
        }
    )


def parse_head(data: bytes, where: str) -> Head:
    """Read a head; `where` it came from is for the error. The format is looked at before anything else (V10)."""
    try:
        fields = parse(data, limits.HEAD_BYTES)
        found = fields.integer("format")
        if found != FORMAT:
            raise unknown_format(where, str(found))
        return _head(fields)
    except Malformed as error:
        raise head_corrupt(where, str(error)) from error


def head_corrupt(where: str, why: str) -> HeadCorrupt:
    """Say that a head is none, and what to do."""
    return HeadCorrupt(f"the head of {where} is corrupt: {why}", hint=f"rebuild the index with `{REPAIR}`")


def unknown_format(where: str, found: str) -> UnknownFormat:
    """Say that an index is of another format; whoever meets one leaves it alone (V10)."""
    return UnknownFormat(
        f"the index of {where} has format {found[:20]}, and this Bayou knows format {FORMAT}",
        hint="install a newer Bayou; nothing was changed",
    )


_KNOWN = frozenset(Head.__slots__) - {"extra"}


def _head(fields: Fields) -> Head:
    gc = fields.object("gc")
    head = Head(
        store=fields.identifier("store"),
        seq=fields.seq("seq"),
        commit=fields.identifier("commit"),
        parent=None if fields.is_null("parent") else fields.identifier("parent"),
        at=fields.time("at"),
        by=fields.text("by"),
        gc=Gc(gc.count("count"), None if gc.is_null("before") else gc.time("before")),
        root=_root(fields, "root"),
        trash=_root(fields, "trash"),
        log=rows_of(fields, "log"),
        older=None if fields.is_null("older") else fields.identifier("older"),
        rebuilt=fields.identifier("rebuilt") if fields.has("rebuilt") else None,
        replica=_replica(fields.object("replica")) if fields.has("replica") else None,
        extra=fields.others(_KNOWN),
    )
    newest = head.log[-1]
    if (newest.seq, newest.commit, newest.root) != (head.seq, head.commit, head.root and head.root.pointer):
        raise fields.wrong("log", f"a log that ends with commit {head.commit}")
    return head


def _root(fields: Fields, name: str) -> Root | None:
    if fields.is_null(name):
        return None
    root = fields.object(name)
    node, level = root.text("node"), root.count("level")
    if not is_name(node) or root.text("digest") != digest_of(node).hex():
        raise root.wrong("node", "a node with that digest")
    if level > _MAX_LEVEL:
        raise root.wrong("level", "a level")
    return Root(node, digest_of(node), level, root.total("entries"), root.total("bytes"))


def _root_document(root: Root | None) -> dict[str, Any] | None:
    if root is None:
        return None
    return {
        "node": root.node,
        "digest": root.digest.hex(),
        "level": root.level,
        "entries": root.entries,
        "bytes": root.bytes,
    }


def _replica(fields: Fields) -> Replica:
    return Replica(
        store=fields.identifier("store"),
        seq=fields.seq("seq"),
        commit=None if fields.is_null("commit") else fields.identifier("commit"),
        rebuilt=None if fields.is_null("rebuilt") else fields.identifier("rebuilt"),
        root=_root(fields, "root"),
        into=_root(fields, "into"),
        whole=fields.flag("whole"),
    )


def _replica_document(replica: Replica) -> dict[str, Any]:
    return {
        "store": replica.store,
        "seq": replica.seq,
        "commit": replica.commit,
        "rebuilt": replica.rebuilt,
        "root": _root_document(replica.root),
        "into": _root_document(replica.into),
        "whole": replica.whole,
    }
