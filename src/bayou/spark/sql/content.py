"""The column `content`: read the bytes of versions from the tree, or from the store if a lazy tree lacks them.

Workers run this code and write nothing. A `Grant` gives them access to the store, or the reason why they have none,
which a query reports only if it needs the store.
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
from bayou.engine.handle import store_of
from bayou.index.entry import Entry
from bayou.objectstore import Store
from bayou.objectstore.spec import StoreSpec
from bayou.repo import Repo
from bayou.spark.sql.base import BaseView
from bayou.state.journal import NoJournal
from bayou.worktree.tree import Worktree


class Grant(Struct, frozen=True):
    """How a worker opens the store, or `refused`: why it may not. It can be pickled."""

    recipe: StoreSpec | None = None
    refused: str = ""

    def open(self) -> Store:
        """Return this process's client of the store; raise `RecordError` with the reason if access was refused."""
        if self.recipe is None:
            raise RecordError(self.refused)
        return store_of(self.recipe)


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
        recipe = StoreSpec.of(datastore.url, datastore.namespace, datastore.options, repo.config.sync.concurrency)
        require_private_channel(repo.config.spark, recipe)
        return Grant(recipe)
    except BayouError as error:
        return Grant(refused=f"{error.message}; {error.hint}" if error.hint else error.message)


GROUP_BYTES = 32 << 20
GROUP_ROWS = 256
"""Content goes to Spark in groups of at most this size, however many rows a batch has: it bounds the memory."""

LARGEST = 1 << 30
"""The largest content of a column, in bytes."""

_THREADS = 16


class Wanted(Struct, frozen=True):
    """A version whose content is wanted. Its raw file, `path`, may have grown beyond `size` (streaming)."""

    path: str
    size: int
    sha256: str | None
    streaming: bool
    deleted: bool


class ContentSource(Struct, frozen=True):
    """Where content is. It can be pickled; a worker makes a `ContentReader` of it."""

    tree: Path
    base: BaseView
    grant: Grant


class ContentReader:
    """Read content and check its hash, if it has one. It opens the store only for content that the tree lacks."""

    def __init__(self, source: ContentSource) -> None:
        self._source = source
        self._tree = Worktree(source.tree, NoJournal())

    def read(self, group: Sequence[Wanted]) -> list[bytes | None]:
        """Return the content of each version, in order; None for a deleted one."""
        found: dict[str, bytes] = {}
        missing: list[Wanted] = []
        for version in group:
            if version.deleted:
                continue
            if version.size > LARGEST:
                raise RecordError(f"the content of {version.path} is too large for a column: {version.size} bytes")
            try:
                with self._tree.open(version.path) as file:
                    found[version.path] = _verified(version, file.read(version.size if version.streaming else -1))
            except FileNotFoundError:
                missing.append(version)
        found.update(self._fetch(missing))
        return [None if version.deleted else found[version.path] for version in group]

    def _fetch(self, missing: Sequence[Wanted]) -> dict[str, bytes]:
        if not missing:
            return {}
        entries = self._source.base.lookup([version.path for version in missing])
        for version in missing:
            if version.path not in entries:
                raise ContentDamaged(f"the content of {version.path} is missing")
        try:
            store = self._source.grant.open()
        except RecordError as error:
            raise RecordError(f"the content of {missing[0].path} is not here: {error.message}") from error
        fetch = partial(_download, store, entries)
        return dict(
            zip((version.path for version in missing), store.map(fetch, missing, threads=_THREADS), strict=True)
        )


def _download(store: Store, entries: dict[str, Entry], version: Wanted) -> bytes:
    entry = entries[version.path]
    buffer = BytesIO()
    try:
        # An object that Bayou did not push must still be the one that was listed.
        stored = store.download(entry.key, buffer, entry.size, if_match=entry.etag if entry.push is None else None)
    except NotFound:
        raise ContentDamaged(f"the content of {version.path} is missing, here and in the store") from None
    if entry.sha256 is not None and stored.sha256 != entry.sha256:
        raise ContentDamaged(f"the object of {version.path} does not have the bytes that were pushed")
    data = buffer.getvalue()
    return _verified(version, data[: version.size] if version.streaming else data)


def _verified(version: Wanted, data: bytes) -> bytes:
    """Return content whose hash is the recorded one. Streaming data that was appended to has no hash."""
    if version.sha256 is not None and hashlib.sha256(data).hexdigest() != version.sha256:
        raise ContentDamaged(f"{version.path} is not what was saved: its SHA-256 is another one")
    return data


def groups(rows: Sequence[Wanted]) -> Iterator[Sequence[Wanted]]:
    """Divide versions, in order, into groups of at most GROUP_ROWS rows and about GROUP_BYTES bytes."""
    start = size = 0
    for at, version in enumerate(rows):
        if at > start and (size + version.size > GROUP_BYTES or at - start >= GROUP_ROWS):
            yield rows[start:at]
            start, size = at, 0
        size += version.size
    if start < len(rows):
        yield rows[start:]


def content_column(source: ContentSource) -> Callable[[Iterator[tuple[pyarrow.Array, ...]]], Iterator[pyarrow.Array]]:
    """Return the Arrow function behind the column `content`: from columns of versions to their content."""

    def read(batches: Iterator[tuple[Any, ...]]) -> Iterator[Any]:
        reader = ContentReader(source)
        for columns in batches:
            rows = [Wanted(*row) for row in zip(*(column.to_pylist() for column in columns), strict=True)]
            for group in groups(rows):
                yield pyarrow.array(reader.read(group), pyarrow.binary())

    return read
