"""The head: the one mutable object of the index, changed only by compare-and-swap (V1).

It names the current root, and holds the newest rows of the log. `advance` computes the next head, and `swap_head`
stores it if the store still has the head that was read. The head of a replica also names its source (`Replica`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, overload

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from bayou.core import limits
from bayou.core.errors import BadAnswer, HeadCorrupt, NoConditionalWrites, TooLarge, UnknownFormat
from bayou.core.paths import escape
from bayou.core.structs import (
    Count,
    Identifier,
    Label,
    Malformed,
    SelectiveStruct,
    Seq,
    Time,
    check_object,
    check_time,
    convert,
    dump_json,
    parse,
    require_field,
    unknown_fields,
)
from bayou.index.log import Kind, LogRow, Page, Tally, older_rows, rows_of, write_page
from bayou.index.node import REPAIR, Root, digest_of, is_name
from bayou.index.node_store import ReadableStore, WritableStore
from bayou.objectstore import keys
from bayou.objectstore.transport import Create, Match, PutResult


class Replica(Struct, frozen=True):
    """The source of a replica, and how far it was copied.

    `seq`, `commit` and `rebuilt` are those of the source's head that was copied last; `root` was its root, and `into`
    the root that the copy made here: if the replica has another root, another client has written to it. `whole`: every
    entry of `root` was copied; otherwise the next run compares everything. A client that does not know this field
    preserves it.
    """

    store: Identifier
    seq: Seq = 0
    commit: Identifier | None = None
    rebuilt: Identifier | None = None
    root: Root | None = None
    into: Root | None = None
    whole: bool = False


FORMAT = 2
PACKS = "packs"
FEATURES = (PACKS,)
"""Features that a head may require of a client that writes to its store. This client has these; new heads name them."""
PAGE_ROWS = 50
"""The head's log has less than twice as many rows, and at least this many once there were as many commits."""


class Gc(Struct, frozen=True):
    """How often the store was collected; uploads older than `before` (the store's clock) may be gone since."""

    count: Count = 0
    before: Time | None = None


class Head(SelectiveStruct, frozen=True):
    """One version of the index. Times are UTC with milliseconds and a `Z`; `log` is oldest first."""

    unhashed: ClassVar[tuple[str, ...]] = ("extra",)

    store: Identifier
    seq: Seq
    commit: Identifier
    parent: Identifier | None
    at: Time
    by: Label
    gc: Gc
    root: Root | None
    trash: Root | None
    log: tuple[LogRow, ...]
    older: Identifier | None
    rebuilt: Identifier | None = None
    """The commit that last rebuilt the index, if any: a base from before that commit is not part of this history."""
    replica: Replica | None = None
    """The source of this store, if the store is a replica."""
    features: tuple[Label, ...] = FEATURES
    """Features that a client must have to write to this store; a client without one of them refuses (V10)."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Fields that a newer version of this format wrote; the next head preserves them."""
    format: int = FORMAT


class HeadSeen(Struct, frozen=True):
    """A head, and the fingerprint that came in the same response (V2)."""

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
    row = LogRow.of(1, commit, at, by, root, tally)
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
    kind: Kind = "push",
    mass_delete: bool = False,
) -> tuple[Head, Page | None]:
    """Return the head that follows `head`, and the log page that must be stored before it, if a page is full."""
    row = LogRow.of(head.seq + 1, commit, at, by, root, tally, kind, mass_delete=mass_delete)
    log, older, page = (*head.log, row), head.older, None
    if len(log) >= 2 * PAGE_ROWS:
        # Named by the commit id, which no other attempt shares: no head ever names the page of a failed swap.
        page = Page(commit, older, log[:PAGE_ROWS])
        log, older = log[PAGE_ROWS:], page.id
    replica = head.replica
    if kind == "compact" and replica is not None and _digest(replica.into) == _digest(head.root):
        replica = replace(replica, into=root)  # only locations differ (P4): it is still what the replication made
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
        replica=replica,
        features=tuple(dict.fromkeys((*head.features, *FEATURES))),
    )
    return new, page


def _digest(root: Root | None) -> bytes | None:
    return root.digest if root is not None else None


@overload
def read_head(store: ReadableStore) -> HeadSeen: ...


@overload
def read_head(store: ReadableStore, if_none_match: str | None) -> HeadSeen | None: ...


def read_head(store: ReadableStore, if_none_match: str | None = None) -> HeadSeen | None:
    """Return the head, or None if its ETag is `if_none_match`.

    `NotFound` if the store has none, `HeadCorrupt` or `UnknownFormat` if this client cannot use it, `BadAnswer` if the
    store says "not modified" although no ETag was given.
    """
    try:
        fetched = store.get(keys.HEAD, if_none_match=if_none_match, most=limits.HEAD_BYTES)
    except TooLarge as error:
        raise head_corrupt(store.url, error.message) from error
    if fetched is None and if_none_match is None:
        raise BadAnswer(f"{store.url} says that its head is not modified, although the request did not ask")
    if fetched is None:
        return None
    return HeadSeen(parse_head(bytes(fetched.data), store.url), fetched.meta.etag, fetched.meta.version)


def create_head(store: WritableStore, head: Head) -> PutResult:
    """Store the first head; `AlreadyExists` if another client was faster."""
    return store.put(keys.HEAD, encode_head(head), condition=Create())


def swap_head(store: WritableStore, head: Head, over: Match, page: Page | None) -> PutResult:
    """Store the page that `advance` made, then replace the head if its version is exactly `over`.

    Otherwise raise `PreconditionFailed`: then no reader sees any change (V11).
    """
    if over.etag is None and over.version is None:
        raise NoConditionalWrites(f"{store.url} gave no ETag for {keys.HEAD}, so it cannot be replaced safely")
    if page is not None:
        write_page(store, page)
    return store.put(keys.HEAD, encode_head(head), condition=over)


def iter_log(store: ReadableStore, head: Head) -> Iterator[LogRow]:
    """Yield every row of the log, newest first; a page is read only when the caller reaches it."""
    yield from reversed(head.log)
    yield from older_rows(store, head.older, head.log[0].seq)


def encode_head(head: Head) -> bytes:
    """Return a head as JSON."""
    return dump_json(
        {
            "format": head.format,
            "features": list(head.features),
            "store": head.store,
            "seq": head.seq,
            "commit": head.commit,
            "parent": head.parent,
            "at": head.at,
            "by": head.by,
            "gc": asdict(head.gc),
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
    """Parse a head; `where` names its store in errors. Format and features are checked before anything else (V10)."""
    try:
        fields = parse(data, limits.HEAD_BYTES)
        found = require_field(fields, "format")
        if type(found) is not int:  # not isinstance: a bool is an int
            raise Malformed("format is not an integer")
        if found != FORMAT:
            raise unknown_format(where, str(found))
        check_features(fields.get("features"), where)
        return _head(fields)
    except Malformed as error:
        raise head_corrupt(where, str(error)) from error


def head_corrupt(where: str, why: str) -> HeadCorrupt:
    """Return the error for a corrupt head, with its reason and a hint."""
    return HeadCorrupt(f"the head of {where} is corrupt: {why}", hint=f"rebuild the index with `{REPAIR}`")


def unknown_format(where: str, found: str) -> UnknownFormat:
    """Return the error for an index of another format, which a client never changes (V10)."""
    if found == "1":
        return UnknownFormat(
            f"the index of {where} has format 1, which was never released, and this Bayou reads format {FORMAT} only",
            hint="make the store anew from a tree that has its files: bayou datastore setup URL of an empty prefix",
        )
    return UnknownFormat(
        f"the index of {where} has format {found[:20]}, and this Bayou knows format {FORMAT}",
        hint="install a newer Bayou; nothing was changed",
    )


def check_features(found: object, where: str) -> None:
    """Raise `UnknownFormat` for a store that needs something that this client does not know (V10).

    Such a head may well look corrupt to this client, and nothing may be rebuilt from that.
    """
    for name in found if isinstance(found, list) else ():
        if isinstance(name, str) and name not in FEATURES:
            raise UnknownFormat(
                f"the store {where} uses {escape(name[:40])}, which this Bayou does not know",
                hint="install a newer Bayou; nothing was changed",
            )


def _head(fields: Mapping[str, Any]) -> Head:
    gc = convert(check_object(require_field(fields, "gc"), "gc"), Gc, "gc")
    made: dict[str, object] = {
        "gc": gc,
        "root": _root(fields, "root"),
        "trash": _root(fields, "trash"),
        "log": rows_of(fields, "log"),
    }
    if "replica" in fields:
        made["replica"] = _replica(check_object(fields["replica"], "replica"))
    optional = [name for name in ("rebuilt", "replica") if name not in fields]
    head = convert({**fields, **made, "extra": unknown_fields(fields, Head)}, Head, optional=optional)
    check_time(head.at, "at")
    if gc.before is not None:
        check_time(gc.before, "gc.before")
    newest = head.log[-1]
    if (newest.seq, newest.commit, newest.root) != (head.seq, head.commit, head.root and head.root.pointer):
        raise Malformed(f"log is not a log that ends with commit {head.commit}")
    return head


def _root(fields: Mapping[str, Any], name: str, where: str = "") -> Root | None:
    found = require_field(fields, name, where)
    if found is None:
        return None
    where = f"{where}.{name}" if where else name
    node = require_field(check_object(found, where), "node", where)
    if not isinstance(node, str) or not is_name(node) or require_field(found, "digest", where) != digest_of(node).hex():
        raise Malformed(f"{where}.node is not a node with that digest")
    return convert({**found, "digest": digest_of(node)}, Root, where)


def _root_document(root: Root | None) -> dict[str, Any] | None:
    return None if root is None else {**asdict(root), "digest": root.digest.hex()}


def _replica(fields: Mapping[str, Any]) -> Replica:
    roots = {name: _root(fields, name, "replica") for name in ("root", "into")}
    return convert({**fields, **roots}, Replica, "replica", optional=("whole",))


def _replica_document(replica: Replica) -> dict[str, Any]:
    return {**asdict(replica), "root": _root_document(replica.root), "into": _root_document(replica.into)}
