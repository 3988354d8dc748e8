"""The log: one row for each commit; the head holds the newest rows, immutable pages hold the others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from msgspec import Struct, field

from bayou.core import limits
from bayou.core.errors import AlreadyExists, BadAnswer, IndexDamaged, NotFound, TooLarge
from bayou.core.structs import (
    Count,
    Identifier,
    Label,
    Malformed,
    SelectiveStruct,
    Seq,
    Time,
    Total,
    check_object,
    check_time,
    convert,
    dump_json,
    parse,
    require_field,
    unknown_fields,
)
from bayou.index.node import REPAIR, Pointer, Root
from bayou.index.node_store import ReadableStore, WritableStore
from bayou.objectstore import keys
from bayou.objectstore.transport import Create

_POINTER = re.compile(r"(\d\d?)-([0-9a-f]{64})(?:-([0-9A-Za-z-]{1,64}))?", re.ASCII)


class Tally(Struct, frozen=True):
    """How many paths a commit added, changed and deleted, and how many bytes it brought."""

    added: int = 0
    changed: int = 0
    deleted: int = 0
    bytes: int = 0


Kind = Literal["push", "compact", "forget", "gc", "repair", "restore"]
"""The purpose of a commit: `compact` moves bytes and changes no file; `gc` changes no entry at all."""


class LogRow(SelectiveStruct, frozen=True):
    """One commit and the root that it made. `mass_delete`: the user allowed it to delete more than usual."""

    unhashed: ClassVar[tuple[str, ...]] = ("extra",)

    seq: Seq
    commit: Identifier
    at: Time
    by: Label
    root: Pointer | None
    added: Count
    changed: Count
    deleted: Count
    bytes: Total
    kind: Label = "push"
    mass_delete: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Fields that a newer version of this format wrote."""

    @classmethod
    def of(
        cls,
        seq: int,
        commit: str,
        at: str,
        by: str,
        root: Root | None,
        tally: Tally,
        kind: Kind = "push",
        *,
        mass_delete: bool = False,
    ) -> LogRow:
        """Return the row of a commit."""
        pointer = None if root is None else root.pointer
        counts = (tally.added, tally.changed, tally.deleted, tally.bytes)
        return cls(seq, commit, at, by, pointer, *counts, kind, mass_delete)

    @classmethod
    def parse(cls, found: object, where: str = "") -> LogRow:
        """Parse a row, or raise `Malformed`."""
        fields = check_object(found, where)
        row = {**fields, "root": _pointer(fields, where), "extra": unknown_fields(fields, LogRow)}
        made = convert(row, LogRow, where, optional=("mass_delete",))
        check_time(made.at, f"{where}.at")
        return made

    def document(self) -> dict[str, Any]:
        """Return the row as a JSON object.

        `root` is `<level>-<node>`, without the node's commit where that is this row's commit: a complete root would
        make the head half as large again.
        """
        root = self.root and f"{self.root.level}-{self.root.node.removesuffix(f'-{self.commit}')}"
        return {
            "seq": self.seq,
            "commit": self.commit,
            "at": self.at,
            "by": self.by,
            "kind": self.kind,
            "root": root,
            "added": self.added,
            "changed": self.changed,
            "deleted": self.deleted,
            "bytes": self.bytes,
            **({"mass_delete": True} if self.mass_delete else {}),
            **self.extra,
        }


class Page(Struct, frozen=True):
    """Rows that left the head, oldest first, and the id of the page before it."""

    id: Identifier
    older: Identifier | None
    rows: tuple[LogRow, ...]


def write_page(store: WritableStore, page: Page) -> None:
    """Store a page. Its id is unique to its commit, so a page that exists already is this page."""
    document = {"id": page.id, "older": page.older, "rows": [row.document() for row in page.rows]}
    try:
        store.put(keys.log_page(page.id), dump_json(document), condition=Create())
    except AlreadyExists:
        pass


def read_page(store: ReadableStore, page: str) -> Page:
    """Return a page, or raise `IndexDamaged`."""
    try:
        fetched = store.get(keys.log_page(page), most=limits.PAGE_BYTES)
    except NotFound as error:
        raise _damaged(page, "it is missing") from error
    except TooLarge as error:
        raise _damaged(page, error.message) from error
    if fetched is None:
        raise BadAnswer(f"{store.url} says that page {page} of the log is not modified, without a condition")
    try:
        fields = parse(bytes(fetched.data), limits.PAGE_BYTES)
        made = convert({**fields, "rows": rows_of(fields, "rows")}, Page)
        if made.id != page:
            raise Malformed(f"id is not {page!r}")
        return made
    except Malformed as error:
        raise _damaged(page, str(error)) from error


def older_pages(store: ReadableStore, page: str | None, below: int | None = None) -> Iterator[Page]:
    """Yield the pages from `page` back; the first must end before the seq `below`, if that is given.

    Each page must end where the page after it begins, so that pages that name each other in a circle are damage and no
    endless loop.
    """
    for _ in range(limits.LOG_PAGES_MAX):
        if page is None:
            return
        found = read_page(store, page)
        if below is not None and found.rows[-1].seq != below - 1:
            raise _damaged(page, f"it ends at {found.rows[-1].seq}, and the next row is {below}")
        yield found
        page, below = found.older, found.rows[0].seq
    if page is not None:
        raise _damaged(page, f"more than {limits.LOG_PAGES_MAX} pages come after it")


def older_rows(store: ReadableStore, page: str | None, below: int) -> Iterator[LogRow]:
    """Yield the rows of the pages from `page` back, newest first; they continue from the row with the seq `below`."""
    for found in older_pages(store, page, below):
        yield from reversed(found.rows)


def rows_of(fields: Mapping[str, Any], name: str) -> tuple[LogRow, ...]:
    """Parse a list of rows, which must have at least one row and no gap."""
    found = require_field(fields, name)
    if not isinstance(found, list):
        raise Malformed(f"{name} is not a list")
    rows = tuple(LogRow.parse(item, f"{name}[{at}]") for at, item in enumerate(found))
    if not rows or any(row.seq != rows[0].seq + at for at, row in enumerate(rows)):
        raise Malformed(f"{name} is not a log without gaps")
    return rows


def _pointer(fields: Mapping[str, Any], where: str) -> Pointer | None:
    text = require_field(fields, "root", where)
    if text is None:
        return None
    match = _POINTER.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise Malformed(f"{where}.root is not a level and a node")
    level, digest, writer = match.groups()
    return Pointer(int(level), f"{digest}-{writer or fields.get('commit')}")


def _damaged(page: str, why: str) -> IndexDamaged:
    return IndexDamaged(f"page {page} of the log is damaged: {why}", hint=f"rebuild the index with `{REPAIR}`")
