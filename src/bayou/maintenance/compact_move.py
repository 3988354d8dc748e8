"""The job of a compaction that copies files into new packs.

A part may run twice: each run makes packs of its own, under new names (P1), and the driver commits the rows of one run
only. What the other run has written is a leftover that a collection deletes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from bayou.core.errors import NotFound, StoreError
from bayou.core.progress import Stage
from bayou.engine.handle import StoreHandle
from bayou.engine.job import Needs
from bayou.engine.parts import groups
from bayou.index.entry import Entry
from bayou.index.node import Ref
from bayou.index.node_store import StoreNodes
from bayou.index.tree import leaves
from bayou.maintenance.compact_plan import MoveScope, is_small_object
from bayou.objectstore.store import Store
from bayou.packs.entries import read_entry
from bayou.packs.read import PackRange, plan_ranges, read_range, threads_for
from bayou.packs.write import PackWriter, SentPack
from bayou.sync.report import Failure
from bayou.sync.transfer.executor import bad_content, parallel_map, path_failure

PART_BYTES = 256 << 20
"""Bytes that a part of the move has at least. Its last pack may be small, so that few parts make few small packs."""

WINDOW_BYTES = 32 << 20
WINDOW_FILES = 10_000
"""The files that a part holds in memory at a time, besides the packs that it writes."""

_MOST_FAILED = 1000
"""Failures that the driver keeps; of more, it knows only the number."""

COMMIT_ROWS = 25_000
"""Rows of one commit: so many that the commit costs little in comparison, and few enough for memory."""


class MoveRow(NamedTuple):
    """A row of `MoveJob`: an index row as it was read, and where its bytes lie now (`new_…`), or why they do not.

    `repeated`: more than one request has written the new pack (P6).
    """

    path: str
    push: str
    size: int
    sha256: bytes
    etag: str | None
    version: str | None
    modified: int
    at: str | None
    pack: str | None
    offset: int | None
    stored: int | None
    method: int | None
    new_pack: str | None = None
    new_offset: int = 0
    new_stored: int = 0
    new_method: int = 0
    repeated: bool = False
    code: str | None = None
    message: str = ""

    @classmethod
    def of(cls, old: Entry, pack: str, offset: int, stored: int, method: int, *, repeated: bool) -> MoveRow:
        return cls(*_fields(old))._replace(
            new_pack=pack, new_offset=offset, new_stored=stored, new_method=method, repeated=repeated
        )

    @classmethod
    def failed(cls, old: Entry, failure: Failure) -> MoveRow:
        return cls(*_fields(old))._replace(code=failure.code, message=failure.message)

    @property
    def old(self) -> Entry:
        """The row that was copied."""
        return Entry(*self[:12])

    @property
    def new(self) -> Entry:
        """The same file at its new place: P4, nothing but the location differs."""
        return replace(
            self.old,
            etag=None,
            version=None,
            at=None,
            pack=self.new_pack,
            offset=self.new_offset,
            stored=self.new_stored,
            method=self.new_method,
        )

    @property
    def failure(self) -> Failure | None:
        return None if self.code is None else Failure(self.path, self.code, self.message)


def _fields(entry: Entry) -> tuple[Any, ...]:
    return tuple(getattr(entry, name) for name in Entry.__struct_fields__)


class Unmoved(Struct, frozen=True):
    """The first rows that could not be copied, and how many more there are."""

    rows: Sequence[MoveRow]
    more: int


class MoveJob:
    """Copies files into new packs, in order of path; `commit` gets their rows, some thousand at a time.

    An `engine.job.Job`; its result is the rows that could not be copied, for the driver to judge.
    """

    row = MoveRow

    def __init__(self, store: StoreHandle, moving: MoveScope, commit: Callable[[Sequence[MoveRow]], None]) -> None:
        self._store = store
        self._moving = moving
        self._commit = commit

    def __reduce__(self) -> tuple[Any, tuple[StoreHandle, MoveScope]]:
        return _MoveKernel, (self._store, replace(self._moving, leaves=()))  # the parts have the leaves

    @property
    def stage(self) -> Stage:
        return Stage("compacting", self._moving.files, self._moving.size)

    @property
    def needs(self) -> Needs:
        return Needs((self._store,), written=(self._store,))

    def parts(self, wanted: int) -> Sequence[Sequence[Ref]]:
        return groups(self._moving.leaves, min(wanted, max(1, self._moving.size // PART_BYTES)))

    def run(self, part: Sequence[Ref]) -> Iterator[MoveRow]:
        return _MoveKernel(self._store, self._moving).run(part)

    def fold(self, rows: Iterable[MoveRow]) -> Unmoved:
        failed: list[MoveRow] = []
        more = 0
        batch: list[MoveRow] = []
        for row in rows:
            if row.code is None:
                batch.append(row)
            elif len(failed) < _MOST_FAILED:
                failed.append(row)
            else:
                more += 1
            if len(batch) >= COMMIT_ROWS:
                self._commit(batch)
                batch = []
        if batch:
            self._commit(batch)
        return Unmoved(failed, more)


class _MoveKernel:
    """The part of the job that a worker gets."""

    row = MoveRow

    def __init__(self, store: StoreHandle, moving: MoveScope) -> None:
        self._store = store
        self._moving = moving

    def run(self, part: Sequence[Ref]) -> Iterator[MoveRow]:
        store = self._store.open()
        waiting: dict[str, Entry] = {}
        with closing(PackWriter(store, self._moving.pack_size)) as writer:
            for window in _windows(self._wanted(store, part)):
                for entry, content in _contents(store, window):
                    if isinstance(content, Failure):
                        yield MoveRow.failed(entry, content)  # it stays where it is
                        continue
                    assert entry.push is not None
                    assert entry.sha256 is not None
                    waiting[entry.path] = entry
                    writer.add(entry.path, entry.push, content, entry.sha256, entry.modified)
                for sent in writer.sent():
                    yield from _rows(sent, waiting)
            writer.seal()
            for sent in writer.drain():
                yield from _rows(sent, waiting)

    def _wanted(self, store: Store, part: Sequence[Ref]) -> Iterator[Entry]:
        moving = self._moving
        for leaf in leaves(StoreNodes(store), part):
            for entry in leaf.rows:
                packed = entry.pack in moving.packs and entry.refusal() is None
                if packed or is_small_object(entry, moving.pack_below):
                    yield entry


def _windows(entries: Iterator[Entry]) -> Iterator[list[Entry]]:
    """Divide entries, so that the content of each list fits into memory."""
    while window := list(islice(entries, 1)):
        size = window[0].size
        for entry in islice(entries, WINDOW_FILES - 1):
            window.append(entry)
            size += entry.size
            if size >= WINDOW_BYTES:
                break
        yield window


def _contents(store: Store, entries: Sequence[Entry]) -> Iterator[tuple[Entry, bytes | Failure]]:
    """Read files, many with one request; yield each with its content, proved by its hash, in the given order."""
    ranges = plan_ranges(entry for entry in entries if entry.pack is not None)
    items: list[PackRange | Entry] = [*ranges, *(entry for entry in entries if entry.pack is None)]
    found: dict[str, bytes | Failure] = {}
    for results in parallel_map(store, partial(_read, store), items, 1, threads=threads_for(store, ranges)):
        for result in results:
            if isinstance(result, Failure):
                found[result.path] = result
            else:
                found[result[0]] = result[1]
    yield from ((entry, found.pop(entry.path)) for entry in entries)


def _read(store: Store, item: PackRange | Entry) -> list[tuple[str, bytes] | Failure]:
    """Read an object or a range of a pack; a file that is missing or has other bytes is a failure of its path."""
    wanted = [item] if isinstance(item, Entry) else item.entries
    try:
        if isinstance(item, PackRange):
            read = list(read_range(store, item))
        else:
            read = [(item, read_entry(store, item))]
    except NotFound:
        return [Failure(entry.path, NotFound.code, f"the store does not have {entry.key}") for entry in wanted]
    except StoreError as error:
        return [path_failure(entry.path, error) for entry in wanted]
    return [(entry.path, data) if data is not None else bad_content(entry) for entry, data in read]


def _rows(sent: SentPack, waiting: dict[str, Entry]) -> Iterator[MoveRow]:
    """Yield the rows of a pack that has arrived; an error of its upload ends the job."""
    if sent.error is not None:
        raise sent.error
    assert sent.stored is not None
    for member in sent.pack.members:
        old = waiting.pop(member.path)
        place = (sent.pack.name, member.offset, member.stored, member.method)
        yield MoveRow.of(old, *place, repeated=sent.stored.repeated)
