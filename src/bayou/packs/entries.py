"""Read the contents of entries, wherever their bytes are: in packs, or in objects of their own.

`read_entry` reads one. `EntryReader` reads many: each range of a pack once, several requests at a time, in bounded
memory, and in whatever order the caller wants the contents. An entry whose content cannot be had is a result of its
own, with its path; the others are read (V25).
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from io import BytesIO

from msgspec import Struct

from bayou.core.errors import BadAnswer, NotFound, PreconditionFailed
from bayou.index.entry import Entry
from bayou.index.head import read_head
from bayou.index.node_store import StoreNodes
from bayou.index.tree import IndexTree, find_many
from bayou.objectstore.multipart import THRESHOLD
from bayou.objectstore.store import Store
from bayou.packs.read import PackRange, extract, load_range, plan_ranges, read_one, threads_for

KEPT_BYTES = 64 << 20
"""Bytes of ranges that a reader keeps for entries that it will be asked for later."""

_THREADS = 16
"""Single objects that a reader requests at once."""


def read_entry(store: Store, entry: Entry) -> bytes | None:
    """Return the content of one entry, None if the bytes are not those that were pushed.

    `NotFound` if the object or pack is gone: then the caller reads the head again (P7). `PreconditionFailed` if an
    object that Bayou did not write is no longer the one that was listed (V2). The caller has checked the entry
    (`Entry.refusal`), and has room for `entry.size` bytes.
    """
    if entry.pack is not None:
        return read_one(store, entry)
    if entry.push is not None and entry.sha256 is not None and entry.size <= THRESHOLD:
        data = store.read(entry.key, entry.size, entry.sha256)
        return None if data is None else bytes(data)
    buffer = BytesIO()
    came = store.download(entry.key, buffer, entry.size, if_match=entry.etag if entry.push is None else None)
    return buffer.getvalue() if entry.sha256 in (None, came.sha256) else None


class UnreadableContent(Struct, frozen=True):
    """The reason why an entry's content cannot be had, as a sentence that names the path."""

    message: str


Found = bytes | UnreadableContent
"""The content of an entry, or why there is none."""


class EntryReader:
    """Reads the contents of many entries of a store. Use it in one thread.

    First `expect` all entries of a batch, so that ranges can be joined; then `read` them, some at a time. Memory is
    bounded by what one call of `read` returns, and some ranges of packs. It writes neither to the store nor here.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._expected: dict[str, Entry] = {}
        self._refused: dict[str, str] = {}
        self._range_of: dict[str, PackRange] = {}
        self._left: dict[int, int] = {}
        """By the id of a range: how many of its files the caller has not read yet."""
        self._kept: OrderedDict[int, memoryview] = OrderedDict()

    def expect(self, entries: Iterable[Entry]) -> None:
        """Plan to read these entries; what was expected before is forgotten. An entry may come more than once."""
        wanted = list(entries)
        self._expected = {entry.path: entry for entry in wanted}
        self._refused = {path: why for path, entry in self._expected.items() if (why := entry.refusal()) is not None}
        self._kept.clear()
        ranges = plan_ranges(entry for entry in wanted if entry.pack is not None and entry.path not in self._refused)
        self._range_of = {entry.path: part for part in ranges for entry in part.entries}
        self._left = {id(part): len(part.entries) for part in ranges}

    def read(self, paths: Sequence[str]) -> dict[str, Found]:
        """Return the contents of some expected entries, by path. An error of the store is raised (V4)."""
        found: dict[str, Found] = {}
        gone = self._read_into(found, paths)
        if gone:
            self._locate_again(found, gone)
            for path in self._read_into(found, [path for path in gone if path not in found]):
                found[path] = _missing(path)  # P7: the same row again, or another that is wrong: damage
        return found

    def _read_into(self, found: dict[str, Found], paths: Sequence[str]) -> list[str]:
        """Read entries; return the paths of those whose object or pack is gone."""
        loose: list[Entry] = []
        packed: defaultdict[int, list[Entry]] = defaultdict(list)
        parts: dict[int, PackRange] = {}
        for path in paths:
            entry = self._expected[path]
            if path in self._refused:
                found[path] = UnreadableContent(f"{path}: {self._refused[path]}")
            elif entry.pack is None:
                loose.append(entry)
            else:
                part = self._range_of[path]
                packed[id(part)].append(entry)
                parts[id(part)] = part
        gone: list[str] = []
        for entry, content in zip(loose, self._store.map(self._read_loose, loose, threads=_THREADS), strict=True):
            if content is None:
                gone.append(entry.path)
            else:
                found[entry.path] = content
        for part, data in self._load(list(parts.values())):
            entries = packed[id(part)]
            if data is None:
                gone += [entry.path for entry in entries]
            elif isinstance(data, UnreadableContent):
                found.update({entry.path: UnreadableContent(f"{entry.path}: {data.message}") for entry in entries})
            else:
                found.update((entry.path, _extract(entry, part, data)) for entry in entries)
                self._keep(part, data, len(entries))
        return gone

    def _load(self, parts: Sequence[PackRange]) -> Iterator[tuple[PackRange, memoryview | UnreadableContent | None]]:
        """Yield ranges with their bytes: those that were kept, then the others, some at a time."""
        kept = [(part, self._kept[id(part)]) for part in parts if id(part) in self._kept]
        rest = [part for part in parts if id(part) not in self._kept]
        yield from kept
        loaded = self._store.map(partial(_load_or_reason, self._store), rest, threads=threads_for(self._store, rest))
        yield from zip(rest, loaded, strict=True)

    def _keep(self, part: PackRange, data: memoryview, used: int) -> None:
        """Keep a range as long as the caller is going to read more of it, and there is room."""
        self._kept.pop(id(part), None)
        self._left[id(part)] -= used
        if self._left[id(part)] > 0:
            self._kept[id(part)] = data
        while sum(map(len, self._kept.values())) > KEPT_BYTES:
            self._kept.popitem(last=False)

    def _read_loose(self, entry: Entry) -> Found | None:
        """Return the content of an object, None if the object is gone."""
        try:
            data = read_entry(self._store, entry)
        except NotFound:
            return None
        except (BadAnswer, PreconditionFailed) as error:
            return UnreadableContent(f"the content of {entry.path} cannot be read: {error.message}")
        return _damaged(entry.path) if data is None else data

    def _locate_again(self, found: dict[str, Found], gone: Sequence[str]) -> None:
        """Read the head again, and expect the entries where they are now: a compaction may have moved them (P7)."""
        try:
            seen = read_head(self._store)
        except NotFound:  # a store that was only discovered
            found.update({path: _missing(path) for path in gone})
            return
        current = find_many(IndexTree(StoreNodes(self._store), seen.head.root), self._expected)
        for path in gone:
            entry = self._expected[path]
            now = current.get(path)
            if now == entry:
                found[path] = _missing(path)
            elif now is None or not now.same_content(entry):
                found[path] = UnreadableContent(
                    f"the content of {path} is missing here, and was changed or deleted in the store since:"
                    " bayou datastore sync --pull"
                )
        moved = {path: now for path, now in current.items() if now.same_content(self._expected[path])}
        self.expect([moved.get(path, entry) for path, entry in self._expected.items()])


def _load_or_reason(store: Store, part: PackRange) -> memoryview | UnreadableContent | None:
    try:
        return load_range(store, part)
    except NotFound:
        return None
    except BadAnswer as error:
        return UnreadableContent(error.message)


def _extract(entry: Entry, part: PackRange, data: memoryview) -> Found:
    assert entry.offset is not None
    assert entry.stored is not None
    begin = entry.offset - part.start
    content = extract(entry, data[begin : begin + entry.stored])
    return _damaged(entry.path) if content is None else content


def _missing(path: str) -> UnreadableContent:
    return UnreadableContent(f"the content of {path} is missing, here and in the store")


def _damaged(path: str) -> UnreadableContent:
    return UnreadableContent(f"the object of {path} does not have the bytes that were pushed")
