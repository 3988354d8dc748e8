"""The column `content`: read the bytes of versions from the tree, or from the store if a lazy tree lacks them.

Workers run this code and write nothing. A `Grant` gives them access to the store, or the reason why they have none,
which a query reports only if it needs the store.

Bytes in the store are read by groups of packs. Where a tree lacks so much that one task would take long, the view
first asks for the location of each row's content (`location_column`), and Spark brings the rows of one pack to one
task. A task joins the ranges that it needs of a pack, for as many rows as Spark sends at once (`packs.entries`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
from msgspec import Struct
from msgspec.msgpack import decode, encode

from bayou.core.errors import BayouError, PathRefused, RecordError, TreeError
from bayou.data.layout import MANIFEST
from bayou.engine.handle import store_of
from bayou.index.entry import Entry
from bayou.objectstore import Store
from bayou.objectstore.spec import StoreSpec
from bayou.packs.entries import EntryReader, UnreadableContent
from bayou.repo import Repo
from bayou.spark.arrow import BYTES, TEXT, array, binary_array
from bayou.spark.sql.base import BaseView
from bayou.state.journal import NoJournal
from bayou.worktree.tree import Worktree


class Grant(Struct, frozen=True):
    """How a worker opens the store, or `refused`: why it may not. It can be pickled."""

    spec: StoreSpec | None = None
    refused: str = ""

    def open(self) -> Store:
        """Return this process's client of the store; raise `RecordError` with the reason if access was refused."""
        if self.spec is None:
            raise RecordError(self.refused)
        return store_of(self.spec)


def grant_for(repo: Repo) -> Grant:
    """Return the access of workers to a repo's store.

    Missing credentials or trust are no error yet, but the reason of the refusal: most queries need no store.
    """
    from bayou.spark.session import require_private_channel  # noqa: PLC0415  (workers unpickle a Grant and need no session)

    datastore = repo.config.datastore
    if datastore.url is None:
        return Grant(refused="there is no store to fetch it from")
    if repo.offline:
        return Grant(refused="this is offline")
    try:
        datastore.require_trust()
        spec = StoreSpec.of(datastore.url, datastore.namespace, datastore.options, repo.config.sync.concurrency)
        require_private_channel(repo.config.spark, spec)
        return Grant(spec)
    except BayouError as error:
        return Grant(refused=f"{error.message}; {error.hint}" if error.hint else error.message)


GROUP_BYTES = 32 << 20
GROUP_ROWS = 4096
"""Content goes to Spark in groups of at most this size, however many rows a batch has: it bounds the memory."""

LARGEST = 1 << 30
"""The largest content of a column, in bytes."""

LOCATION = pyarrow.struct({"pack": TEXT, "entry": BYTES})
LOCATION_DDL = "pack string, entry binary"
"""Where the content of a row is in the store: its pack, if it has one, and its entry; nulls if the tree has it."""

CONTENT = pyarrow.struct({"content": BYTES, "error": TEXT})
CONTENT_DDL = "content binary, error string"


class ContentRequest(Struct, frozen=True):
    """A version whose content is wanted. Its raw file, `path`, may have grown beyond `size` (streaming).

    `entry` is given if the tree is known to lack the file.
    """

    path: str
    size: int
    sha256: str | None
    streaming: bool
    deleted: bool
    entry: Entry | None = None


class ContentSource(Struct, frozen=True):
    """Where content is. It can be pickled; a worker makes a `ContentReader` of it."""

    tree: Path
    base: BaseView
    grant: Grant

    def has(self, path: str) -> bool:
        """Return whether the tree seems to have a file; the reader finds out, and follows no link."""
        return os.path.lexists(f"{self.tree}/{path}")


Content = bytes | UnreadableContent | None
"""The content of a version, None for a deleted one, or why it cannot be read."""


class ContentReader:
    """Read content and check its hash, if it has one. It opens the store only for content that the tree lacks."""

    def __init__(self, source: ContentSource) -> None:
        self._source = source
        self._tree = Worktree(source.tree, NoJournal())

    def read(self, rows: Sequence[ContentRequest]) -> Iterator[list[Content]]:
        """Yield the content of the versions, in order, in groups of bounded size.

        `RecordError` if the store is needed and may not be used, since then each row would fail.
        """
        entries = self._lacking([version for version in rows if not version.deleted])
        store = self._expecting([entries[version.path] for version in rows if version.path in entries])
        for group in groups([(version, _bytes_of(version, entries)) for version in rows]):
            yield self._read_group(group, entries, store)

    def _lacking(self, rows: Sequence[ContentRequest]) -> dict[str, Entry]:
        """Return the entries of the versions whose files the tree lacks, as far as base has them."""
        entries = {version.path: version.entry for version in rows if version.entry is not None}
        unknown = [path for version in rows if (path := version.path) not in entries and not self._source.has(path)]
        return entries | self._source.base.lookup(unknown) if unknown else entries

    def _expecting(self, entries: Sequence[Entry]) -> EntryReader | None:
        if not entries:
            return None
        try:
            store = self._source.grant.open()
        except RecordError as error:
            raise RecordError(f"the content of {entries[0].path} is not here: {error.message}") from error
        reader = EntryReader(store)
        reader.expect(entries)
        return reader

    def _read_group(
        self, group: Sequence[ContentRequest], entries: Mapping[str, Entry], store: EntryReader | None
    ) -> list[Content]:
        found: dict[str, Content] = {}
        lost: list[ContentRequest] = []
        fetched: list[ContentRequest] = []
        for version in group:
            if version.deleted:
                found[version.path] = None
            elif _bytes_of(version, entries) > LARGEST:
                size = _bytes_of(version, entries)
                found[version.path] = UnreadableContent(
                    f"the content of {version.path} is too large for a column: {size} bytes"
                )
            elif version.path in entries:
                fetched.append(version)
            else:
                content = self._from_tree(version)
                if content is None:
                    lost.append(version)
                else:
                    found[version.path] = content
        if fetched and store is not None:
            found.update(_checked(fetched, entries, store.read([version.path for version in fetched])))
        if lost:
            found.update(self._from_base(lost))
        return [found[version.path] for version in group]

    def _from_tree(self, version: ContentRequest) -> Content:
        """Return the content of a file of the tree, None if there is no such file."""
        try:
            with self._tree.open(version.path) as file:
                return _verified(version, file.read(version.size if version.streaming else -1))
        except FileNotFoundError:
            return None
        except (PathRefused, TreeError) as error:
            return UnreadableContent(error.message)

    def _from_base(self, lost: Sequence[ContentRequest]) -> dict[str, Content]:
        """Read what neither the tree has nor base had: files that vanished since, or were never here."""
        entries = self._source.base.lookup([version.path for version in lost])
        store = self._expecting(list(entries.values()))
        there = [version for version in lost if version.path in entries]
        found: dict[str, Content] = {
            version.path: UnreadableContent(f"the content of {version.path} is missing") for version in lost
        }
        if store is not None:
            found.update(_checked(there, entries, store.read(list(entries))))
        return found


def _bytes_of(version: ContentRequest, entries: Mapping[str, Entry]) -> int:
    """Return how many bytes to read for a version: an entry may say more than the metadata (V25).

    The size of a version of many files is that of all of them, and its content is the manifest.
    """
    if version.deleted:
        return 0
    entry = entries.get(version.path)
    size = 0 if version.path.endswith(f"/{MANIFEST}") else version.size
    return size if entry is None else max(size, entry.size)


def _checked(
    rows: Iterable[ContentRequest], entries: Mapping[str, Entry], contents: Mapping[str, bytes | UnreadableContent]
) -> Iterator[tuple[str, Content]]:
    """Yield the contents of versions, which have the hashes of their entries, as the metadata describes them."""
    for version in rows:
        content = contents[version.path]
        proved = entries[version.path].sha256
        if not isinstance(content, bytes) or (proved is not None and proved.hex() == version.sha256):
            yield version.path, content
        else:
            yield version.path, _verified(version, content[: version.size] if version.streaming else content)


def _verified(version: ContentRequest, data: bytes) -> bytes | UnreadableContent:
    """Return content whose hash is the recorded one. Streaming data that was appended to has no hash."""
    if version.sha256 is not None and hashlib.sha256(data).hexdigest() != version.sha256:
        return UnreadableContent(f"{version.path} is not what was saved: its SHA-256 is another one")
    return data


def groups(rows: Sequence[tuple[ContentRequest, int]]) -> Iterator[Sequence[ContentRequest]]:
    """Divide versions and their sizes into groups of at most GROUP_ROWS rows and about GROUP_BYTES bytes."""
    group: list[ContentRequest] = []
    total = 0
    for version, size in rows:
        if group and (total + size > GROUP_BYTES or len(group) >= GROUP_ROWS):
            yield group
            group, total = [], 0
        group.append(version)
        total += size
    if group:
        yield group


Arrays = Iterator[tuple[pyarrow.Array, ...]]


def location_column(source: ContentSource) -> Callable[[Arrays], Iterator[pyarrow.Array]]:
    """Return the Arrow function from the columns `path` and `deleted` of versions to their `LOCATION`."""

    def bayou_location(batches: Iterator[tuple[Any, ...]]) -> Iterator[Any]:
        return _locations(source, batches)

    return bayou_location


def content_column(source: ContentSource, *, tolerant: bool) -> Callable[[Arrays], Iterator[pyarrow.Array]]:
    """Return the Arrow function behind the columns `content` and `content_error`, from the columns of `ContentRequest`.

    If it is `tolerant`, content that cannot be read is null, with the reason (V25). Otherwise it ends the query: only a
    query that names `content_error` gets nulls for damage.
    """

    def bayou_content(batches: Iterator[tuple[Any, ...]]) -> Iterator[Any]:
        return _contents(source, batches, tolerant=tolerant)

    return bayou_content


def _locations(source: ContentSource, batches: Arrays) -> Iterator[pyarrow.Array]:
    for paths, deleted in batches:
        rows = list(zip(paths.to_pylist(), deleted.to_pylist(), strict=True))
        entries = source.base.lookup(path for path, gone in rows if not gone and not source.has(path))
        found = [entries.get(path) for path, _ in rows]
        places = [
            array([None if entry is None else entry.pack for entry in found], TEXT),
            array([None if entry is None else encode(entry) for entry in found], BYTES),
        ]
        yield pyarrow.StructArray.from_arrays(places, fields=list(LOCATION))


def _wanted(columns: tuple[pyarrow.Array, ...]) -> list[ContentRequest]:
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    return [
        ContentRequest(path, size, sha256, streaming, deleted, decode(entry, type=Entry) if entry else None)
        for path, size, sha256, streaming, deleted, entry in rows
    ]


def _contents(source: ContentSource, batches: Arrays, *, tolerant: bool) -> Iterator[pyarrow.Array]:
    reader = ContentReader(source)
    for columns in batches:
        for contents in reader.read(_wanted(columns)):
            errors = [content.message if isinstance(content, UnreadableContent) else None for content in contents]
            if not tolerant and any(errors):
                raise RecordError(next(filter(None, errors)))
            found = [content if isinstance(content, bytes) else None for content in contents]
            arrays = [binary_array(found), array(errors, TEXT)]
            yield pyarrow.StructArray.from_arrays(arrays, fields=list(CONTENT))
