"""Content for a column: from the tree, and from the store where the tree does without it. Nothing is written.

Leave for workers to read from the store, or why there is none; said only if somebody needs it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow
from msgspec import Struct

from bayou.core.errors import BayouError, ContentDamaged, NotFound, RecordError
from bayou.index.entry import Entry
from bayou.objectstore import Store
from bayou.objectstore.spec import StoreSpec
from bayou.repo import Repo
from bayou.spark.shared_fs import store_of
from bayou.spark.sql.base import BaseView
from bayou.state.journal import NoJournal
from bayou.worktree.tree import Worktree


class Grant(Struct, frozen=True):
    """How to open the store; or `refused`, why that is not to be. It can be pickled."""

    recipe: StoreSpec | None = None
    refused: str = ""

    def open(self) -> Store:
        """Return this process's client of the store; `RecordError` where there is no leave to."""
        if self.recipe is None:
            raise RecordError(self.refused)
        return store_of(self.recipe)


def grant_for(repo: Repo) -> Grant:
    """Return what workers get. Credentials that cannot be had are a reason to refuse, and no error yet."""
    from bayou.spark.session import require_private_channel  # noqa: PLC0415  (workers, which get a Grant, need none)

    place = repo.config.datastore
    if place.url is None:
        return Grant(refused="there is no store to fetch it from")
    if repo.offline:
        return Grant(refused="this is offline")
    try:
        place.require_trust()
        recipe = StoreSpec.of(place.url, place.namespace, place.options, repo.config.sync.concurrency)
        require_private_channel(repo.config.spark, recipe)
        return Grant(recipe)
    except BayouError as error:
        return Grant(refused=f"{error.message}; {error.hint}" if error.hint else error.message)


GROUP_BYTES = 32 << 20
GROUP_ROWS = 256
"""What is held at once: content goes on to Spark in groups of at most this, whatever a batch of rows comes to."""

MOST = 1 << 30
_THREADS = 16


class Wanted(Struct, frozen=True):
    """One version whose content is wanted; `path` is that of its raw file. Streaming data may lie beyond its `size`."""

    path: str
    size: int
    sha256: str | None
    streaming: bool
    deleted: bool


class ContentSource(Struct, frozen=True):
    """Where content is. It can be pickled; whoever reads makes a `ContentReader` of it."""

    tree: Path
    base: BaseView
    grant: Grant


class ContentReader:
    """Reads content, proved by its hash where it has one. The store is opened when something is missing here."""

    def __init__(self, source: ContentSource) -> None:
        self._source = source
        self._tree = Worktree(source.tree, NoJournal())

    def read(self, group: Sequence[Wanted]) -> list[bytes | None]:
        """Return the content of each, in order; None for one that is deleted."""
        found: dict[str, bytes] = {}
        missing: list[Wanted] = []
        for one in group:
            if one.deleted:
                continue
            if one.size > MOST:
                raise RecordError(f"the content of {one.path} is too large for a column: {one.size} bytes")
            try:
                with self._tree.open(one.path) as file:
                    found[one.path] = _proved(one, file.read(one.size if one.streaming else -1))
            except FileNotFoundError:
                missing.append(one)
        found.update(self._fetch(missing))
        return [None if one.deleted else found[one.path] for one in group]

    def _fetch(self, missing: Sequence[Wanted]) -> dict[str, bytes]:
        if not missing:
            return {}
        entries = self._source.base.lookup([one.path for one in missing])
        for one in missing:
            if one.path not in entries:
                raise ContentDamaged(f"the content of {one.path} is missing")
        try:
            store = self._source.grant.open()
        except RecordError as error:
            raise RecordError(f"the content of {missing[0].path} is not here: {error.message}") from error
        fetch = partial(_download, store, entries)
        return dict(zip((one.path for one in missing), store.map(fetch, missing, threads=_THREADS), strict=True))


def _download(store: Store, entries: dict[str, Entry], one: Wanted) -> bytes:
    entry = entries[one.path]
    came = BytesIO()
    try:
        # A discovered object must be the one that was listed.
        got = store.download(entry.key, came, entry.size, if_match=entry.etag if entry.push is None else None)
    except NotFound:
        raise ContentDamaged(f"the content of {one.path} is missing, here and in the store") from None
    if entry.sha256 is not None and got.sha256 != entry.sha256:
        raise ContentDamaged(f"the object of {one.path} does not have the bytes that were pushed")
    data = came.getvalue()
    return _proved(one, data[: one.size] if one.streaming else data)


def _proved(one: Wanted, data: bytes) -> bytes:
    """Return content that is what its metadata says; streaming data that was appended to has no hash of its own."""
    if one.sha256 is not None and hashlib.sha256(data).hexdigest() != one.sha256:
        raise ContentDamaged(f"{one.path} is not what was saved: its SHA-256 is another one")
    return data


def groups(rows: Sequence[Wanted]) -> Iterator[Sequence[Wanted]]:
    """Divide versions, in order, into groups that fit in memory."""
    start = size = 0
    for at, one in enumerate(rows):
        if at > start and (size + one.size > GROUP_BYTES or at - start >= GROUP_ROWS):
            yield rows[start:at]
            start, size = at, 0
        size += one.size
    if start < len(rows):
        yield rows[start:]


def content_column(source: ContentSource) -> Callable[[Iterator[tuple[pyarrow.Array, ...]]], Iterator[pyarrow.Array]]:
    """Return the function behind the column `content`, from columns of versions to their content."""

    def read(batches: Iterator[tuple[Any, ...]]) -> Iterator[Any]:
        reader = ContentReader(source)
        for columns in batches:
            rows = [Wanted(*row) for row in zip(*(column.to_pylist() for column in columns), strict=True)]
            for group in groups(rows):
                yield pyarrow.array(reader.read(group), pyarrow.binary())

    return read
