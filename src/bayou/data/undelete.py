"""`data undelete`: the content of a deleted version becomes a new version.

The root of every commit is immutable, and names what the store had then until a garbage collection. So the client goes
back through the log to the newest commit that has the version, and downloads its files, proved by their hashes. It
works forward only: the bytes are copied, and the next push stores them under its own id. No old entry is ever linked
again, since collection relies on unreachable keys never coming back (V5).
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Collection, Iterator
from shlex import quote
from typing import cast

from msgspec import Struct
from msgspec.structs import replace

from bayou.core import limits
from bayou.core.clock import now
from bayou.core.errors import (
    HistoryCollected,
    NodeMissing,
    NotFound,
    PreconditionFailed,
    RecordDamaged,
    UsageError,
)
from bayou.data.allocate import allocate_version, item_id, next_number, write_metadata
from bayou.data.context import DataContext
from bayou.data.items import Versions, not_found
from bayou.data.layout import ModelRef, VersionPath, content_names, version_number
from bayou.data.metadata import Metadata
from bayou.index.entry import Entry
from bayou.index.head import Head, iter_log, read_head
from bayou.index.key_range import KeyRange
from bayou.index.log import LogRow
from bayou.index.node import Root
from bayou.index.node_store import NodeFiles, StoreNodes
from bayou.index.tree import IndexTree, scan
from bayou.objectstore.store import Store
from bayou.sync.read_file import fetch
from bayou.worktree.staged_directory import StagedDirectory


class DeletedVersion(Struct, frozen=True):
    """A version that an earlier commit has and this tree has not: its metadata then, and its other files."""

    metadata: Metadata
    files: tuple[Entry, ...]
    commit: LogRow


def undelete(context: DataContext, model: ModelRef, name: str, version: int | None) -> Metadata:
    """Save the content of a deleted version, or (None) of the last that was deleted, as a new version."""
    item = VersionPath(model.type, model.id, name, 0)
    if context.repo.config.datastore.url is None:
        raise HistoryCollected(
            "the datastore is a directory, which keeps nothing that was deleted",
            hint="bring the file back from a backup; `bayou datastore setup URL` makes a store, which has a history",
        )
    versions = Versions.of(context, item)
    _check_deleted(context, model, versions, version)
    store = context.connection.store()
    history = _History(store, read_head(store).head, NodeFiles(context.repo.state / "nodes"))
    found = history.find(item, version, versions.live)
    if found is None:
        raise history.collected(model, name, version)
    with context.tree.stage_directory(item.item) as directory:
        _download(store, found, directory, history, model)
        kept = replace(
            found.metadata,
            id=item_id(context, item) if versions.live else found.metadata.id,
            version=next_number(context, item),
            created_at=now(),
            restored_from=found.metadata.version,
        )
        write_metadata(directory, kept)
        saved = allocate_version(context, directory, kept)
    context.update_versions([saved])
    return saved


def _check_deleted(context: DataContext, model: ModelRef, versions: Versions, version: int | None) -> None:
    """Raise unless the item has had the version, and has it no longer."""
    item, highest = versions.item, context.highest(versions.item)
    if version in versions.live:
        raise UsageError(
            f"version {version} of {item.name} of {model.name} is not deleted",
            hint=f"`bayou data get {quote(model.name)} {quote(item.name)} --version {version}` prints it",
        )
    if highest == 0 or (version is not None and version > highest):
        raise not_found(context, model, item.name, version)
    last = versions.found.get(max(versions.found, default=0))
    if last is not None and last.renamed_to is not None:
        raise UsageError(
            f"{item.name} of {model.name} was renamed to {last.renamed_to}, and not deleted",
            hint=f"bayou data versions {model.name} {last.renamed_to}",
        )
    if version is None and len(versions.live) == highest:
        raise UsageError(
            f"{item.name} of {model.name} is not deleted",
            hint=f"`bayou data versions {quote(model.name)} {quote(item.name)}` lists what there is",
        )


class _History:
    """The commits of a store that can still be read, newest first. `oldest` is the last that was, so far."""

    def __init__(self, store: Store, head: Head, cache: NodeFiles) -> None:
        self._store = store
        self._head = head
        self._nodes = StoreNodes(store, cache)
        self.oldest: LogRow | None = None
        self.ends_early = False

    def find(self, item: VersionPath, version: int | None, live: Collection[int]) -> DeletedVersion | None:
        """Return the version as the newest commit has it that has it; None if no commit that can be read does."""
        for row, entries in self._commits(item):
            by_number: defaultdict[int, dict[str, Entry]] = defaultdict(dict)
            for entry in entries:
                number = version_number(entry.path.removeprefix(f"{item.item}/").partition("/")[0])
                if number is not None and number not in live and version in (None, number):
                    by_number[number][entry.path] = entry
            for number in sorted(by_number, reverse=True):
                found = self._version(replace(item, version=number), by_number[number], row)
                if found is not None:
                    return found
        return None

    def collected(self, model: ModelRef, name: str, version: int | None) -> HistoryCollected:
        """Return the error for a version that no commit has, or whose bytes are gone."""
        what = f"{name} of {model.name}" if version is None else f"version {version} of {name} of {model.name}"
        if self.oldest is None:
            return HistoryCollected(f"no commit of {self._store.url} can be read, so {what} cannot come back")
        oldest = f"{self.oldest.commit} (number {self.oldest.seq}, {self.oldest.at})"
        if self.ends_early:
            return HistoryCollected(
                f"{what} is collected: the oldest commit that can still be read is {oldest}",
                hint="`bayou datastore log` lists the commits",
            )
        return HistoryCollected(
            f"no commit has {what}: it was deleted before it was pushed; the oldest commit is {oldest}",
            hint="`bayou datastore log` lists the commits",
        )

    def _commits(self, item: VersionPath) -> Iterator[tuple[LogRow, list[Entry]]]:
        """Yield commits with the entries of an item; a collected root ends the history."""
        span, before = KeyRange.under(f"{item.item}/"), None
        for row in iter_log(self._store, self._head):
            if row.root is None or row.root == before:
                self.oldest = row
                continue
            # A reader of a tree uses only the name, digest and level of a root, which a pointer has, too.
            tree = IndexTree(self._nodes, cast("Root", row.root))
            try:
                entries = [entry for entry in scan(tree, span) if entry.refusal() is None]  # V25
            except NodeMissing:
                self.ends_early = True
                return
            self.oldest, before = row, row.root
            yield row, entries

    def _version(self, location: VersionPath, entries: dict[str, Entry], row: LogRow) -> DeletedVersion | None:
        """Return a version of a commit; None for a tombstone, which has no content."""
        described = entries.pop(location.metadata, None)
        if described is None or not entries or described.size > limits.METADATA_BYTES:
            return None
        data = io.BytesIO()
        try:
            fetch(self._store, described, data)
            metadata = Metadata.from_bytes(data.getvalue(), location.metadata).at(location)
        except RecordDamaged:
            return None
        except (NotFound, PreconditionFailed):
            self.ends_early = True
            return None
        # V21: exactly the files that such a version has, so every name is one that Bayou makes.
        wanted = [f"{location.directory}/{name}" for name in content_names(metadata.files)]
        if metadata.deleted or not all(path in entries for path in wanted):
            return None
        return DeletedVersion(metadata, tuple(entries[path] for path in wanted), row)


def _download(
    store: Store, found: DeletedVersion, directory: StagedDirectory, history: _History, model: ModelRef
) -> None:
    """Write the files of a version into a staged directory; each is proved by its hash."""
    for entry in found.files:
        try:
            with directory.writing(_name(entry)) as file:
                fetch(store, entry, file)
        except (NotFound, PreconditionFailed):
            history.ends_early = True
            raise history.collected(model, found.metadata.name, found.metadata.version) from None


def _name(entry: Entry) -> str:
    return entry.path.rpartition("/")[2]
