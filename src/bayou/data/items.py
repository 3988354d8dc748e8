"""Versioned data: what every model keeps.

`data/<type…>/<model-id>/<name>/<version>/{raw,metadata.yaml}`. Versions are immutable, but for streaming data, which
grows; their numbers are never used twice; the newest is the highest that is not deleted.

Finding one version of an item, by way of the names that it had before.

All that is known of the versions of one item: from its files here, and from the catalog where they are not.

Reading content: fetched if it is not here, and proved when it was read in full.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Unpack

from msgspec import Struct
from msgspec.structs import replace

from bayou.core.clock import now
from bayou.core.errors import ContentDamaged, DataNotFound, NotFound, RecordDamaged, RecordError, TooManyRenames
from bayou.data.catalog.rows import VersionRow
from bayou.data.changes import consistent_read, exclusive_change
from bayou.data.context import DataContext
from bayou.data.layout import ModelRef, Owner, VersionPath, check_place
from bayou.data.metadata import Metadata, metadata_at, numbers_in
from bayou.worktree.tree import Worktree

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from bayou.data.content import Content
    from bayou.data.metadata import Options, Terms
    from bayou.data.staging import Allocation, Stage

MOST_HOPS = 5


class Item(Struct, frozen=True):
    """A version that was found. `forwarded` has the names that led to it, the one that was asked for first.

    `path` is that of its content, within the tree.
    """

    metadata: Metadata
    forwarded: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        return self.metadata.place.raw


def find_item(context: DataContext, model: ModelRef, name: str, version: int | None) -> Item:
    """Return a version of an item, the newest unless one is named; `DataNotFound` if there is none.

    A name that was renamed forwards, at most five times (`TooManyRenames`): which also ends what two machines made a
    circle of.
    """
    forwarded: list[str] = []
    current = name
    while True:
        check_place(model, current)
        found = _look(context, VersionPath(model.type, model.id, current, 0), version)
        if found is None or found.renamed_to is None:
            break
        forwarded.append(current)
        if len(forwarded) > MOST_HOPS:
            raise TooManyRenames(
                f"{name} of {model.name} was renamed more than {MOST_HOPS} times: {', '.join(forwarded)}, …",
                hint=f"ask for {found.renamed_to}, or for what it is called now: bayou data list {model.name}",
            )
        current = found.renamed_to
    if found is None or found.deleted:
        raise not_found(model, name, version, deleted=found is not None)
    return Item(found, tuple(forwarded))


def not_found(model: ModelRef, name: str, version: int | None, *, deleted: bool = False) -> DataNotFound:
    """Say that an item or a version is not there."""
    what = f"{name} of {model.name}" if version is None else f"version {version} of {name} of {model.name}"
    if version is None:
        return DataNotFound(
            f"{what} was deleted" if deleted else f"there is no {what}",
            hint=f"see what there is with `bayou data list {model.name}`",
        )
    return DataNotFound(f"there is no {what}", hint=f"see its versions with `bayou data versions {model.name} {name}`")


def _look(context: DataContext, item: VersionPath, version: int | None) -> Metadata | None:
    """Return a version, or (None) the newest that is not deleted, or the mark that a deleted item left.

    A number that is not there leads to the mark, which may say where all numbers went.
    """
    if version is None:
        return _newest(context, item)
    found = _one(context, replace(item, version=version))
    if found is not None and not found.deleted:
        return found
    mark = _newest(context, item)
    return mark if mark is not None and mark.deleted and mark.renamed_to else None


def _newest(context: DataContext, item: VersionPath) -> Metadata | None:
    mark: Metadata | None = None
    for number in context.numbers(item.item):
        found = context.metadata(replace(item, version=number))
        if found is not None and not found.deleted:
            return found
        mark = mark or found
    if mark is not None:
        return mark
    context.catalog.refresh()
    return next((metadata_of(row) for row in context.rows(item) if row.latest), None)


def _one(context: DataContext, place: VersionPath) -> Metadata | None:
    found = context.metadata(place)
    if found is not None:
        return found
    # What was not pulled, or was lost here, is known by its row; its content can be fetched.
    context.catalog.refresh()
    return next((metadata_of(row) for row in context.rows(place) if row.version == place.version), None)


def metadata_of(row: VersionRow) -> Metadata:
    """Return what a row of the catalog says, as metadata."""
    owner = Owner(
        row.model, row.model_id, row.type, row.repo or "", row.output, row.run, row.workflow, row.job, row.step
    )
    return Metadata(
        id=row.id,
        name=row.name,
        version=row.version,
        content_type=row.content_type,
        size=row.size,
        sha256=row.sha256,
        owner=owner,
        created_at=row.created_at,
        tags=row.tags,
        lifetime=row.lifetime,
        keep=row.keep,
        streaming=row.streaming,
        deleted=row.deleted,
        renamed_to=row.renamed_to,
    )


__all__ = ["DataRepository", "Item"]


class DataRepository:
    """The data of one datastore. For many threads and processes.

    How something is written, or content read, is loaded when somebody does it: a list does neither.
    """

    def __init__(self, context: DataContext) -> None:
        self._context = context

    def save(self, model: ModelRef, name: str, content: Content, **options: Unpack[Options]) -> Metadata:
        """Save a new version: visible, whole and durable when this returns; nothing of it stays if it raises.

        Content is passed on as it comes, and never held as a whole. `NameRefused` and `RetentionInvalid` come before
        anything is written.
        """
        from bayou.data.staging import save  # noqa: PLC0415

        return save(self._context, self._terms(model, name, options), content)

    def append(self, model: ModelRef, name: str, content: Content, version: int | None = None) -> Metadata:
        """Add to a version of streaming data, the newest unless one is named; `NotStreaming` for any other."""
        from bayou.data.staging import append, prepare  # noqa: PLC0415

        check_place(model, name)
        prepare(self._context, model, name, version)
        with exclusive_change(self._context):
            return append(self._context, model, name, content, version)

    def allocate(self, model: ModelRef, name: str, **options: Unpack[Options]) -> Allocation:
        """Return room for a version whose content a program writes by itself."""
        from bayou.data.staging import Allocation  # noqa: PLC0415

        return Allocation(self._context, self._terms(model, name, options))

    def stage(self) -> Stage:
        """Return a stage, on which versions wait until they become visible together."""
        from bayou.data.staging import Stage  # noqa: PLC0415

        return Stage(self._context, self._terms)

    def delete(self, model: ModelRef, name: str, version: int | None = None) -> int:
        """Delete a version, or all; return how many. `DataNotFound` if there is none. Follows no renames."""
        from bayou.data.edit import delete  # noqa: PLC0415

        check_place(model, name)
        item = VersionPath(model.type, model.id, name, 0)
        with exclusive_change(self._context):
            count = delete(self._context, {item: None if version is None else {version}})
        if not count:
            raise not_found(model, name, version)
        return count

    def delete_many(self, rows: Iterable[VersionRow]) -> int:
        """Delete these versions, of whatever items, together; return how many of them there were."""
        from bayou.data.edit import delete  # noqa: PLC0415

        doomed: dict[VersionPath, set[int]] = {}
        for row in rows:
            doomed.setdefault(VersionPath(row.type, row.model_id, row.name, 0), set()).add(row.version)
        with exclusive_change(self._context):
            return delete(self._context, doomed)

    def rename(self, model: ModelRef, old: str, new: str) -> Metadata:
        """Give an item, with all its versions, another name; readers of the old one are sent on.

        `NameTaken` if another item has, or had, the new name.
        """
        from bayou.data.edit import prepare, rename  # noqa: PLC0415

        check_place(model, old)
        check_place(model, new)
        prepare(self._context, model, old)
        with exclusive_change(self._context):
            return rename(self._context, model, old, new)

    def get(self, model: ModelRef, name: str, version: int | None = None) -> Item:
        """Return a version, the newest unless one is named. A name that was renamed leads on, five times at most."""
        return consistent_read(self._context, lambda: find_item(self._context, model, name, version))

    def read(self, item: Item) -> bytes:
        """Return the content of a version, proved by its SHA-256 (`ContentDamaged`)."""
        with self.open(item) as file:
            return file.read()

    def open(self, item: Item) -> BinaryIO:
        """Open the content of a version for reading, proved when its end is reached."""

        return open_content(self._context, item)

    def path(self, item: Item) -> Path:
        """Return where the content of a version is on this machine. Nobody may write there."""

        fetch(self._context, item.path)
        return self._context.tree.local_path(item.path)

    def find(
        self,
        *,
        name: str | None = None,
        id: str | None = None,  # noqa: A002  (what the record calls it)
        tags: Mapping[str, str] | None = None,
        model: ModelRef | str | None = None,
        type: str | None = None,  # noqa: A002
        all_versions: bool = False,
        refresh: bool = True,
    ) -> list[VersionRow]:
        """Return the newest version of each item that fits all that is said, or every version that is not deleted.

        Answered by the catalog alone. `model` is a model, or the name or id of one. Whoever has just refreshed the
        catalog says that it need not be done again.
        """
        if isinstance(model, ModelRef):
            if type not in (None, model.type):
                return []
            type, model = model.type, model.id  # noqa: A001
        catalog, whose = self._context.catalog, model

        def read() -> list[VersionRow]:
            if refresh:
                catalog.refresh()
            return catalog.find(name=name, id=id, tags=tags, model=whose, type=type, all_versions=all_versions)

        return consistent_read(self._context, read)

    def versions(self, model: ModelRef, name: str, *, refresh: bool = True) -> list[VersionRow]:
        """Return all versions of an item, the mark of a deleted one included; `DataNotFound` if it never had any.

        `refresh` as for `find`.
        """
        check_place(model, name)

        def read() -> list[VersionRow]:
            if refresh:
                self._context.catalog.refresh()
            return self._context.catalog.versions(model.id, name, model.type)

        found = consistent_read(self._context, read)
        if not found:
            raise not_found(model, name, None)
        return found

    def _terms(self, model: ModelRef, name: str, options: Options) -> Terms:
        from bayou.data.metadata import Terms  # noqa: PLC0415

        return Terms.of(model, name, self._context.repo.config.repo_id, now(), options)


class Versions(Struct, frozen=True):
    """The versions of one item, by number. One whose metadata cannot be read has None."""

    item: VersionPath
    found: dict[int, Metadata | None]

    @classmethod
    def of(cls, context: DataContext, item: VersionPath) -> Versions:
        """Look at every version: here, and where it is known of but not here, in the catalog."""
        return cls.seen(context.tree, item, context.rows(item))

    @classmethod
    def seen(cls, tree: Worktree, item: VersionPath, rows: Iterable[VersionRow]) -> Versions:
        """Look at every version that is here; `rows` are the catalog's, of all versions of the item."""
        found: dict[int, Metadata | None] = {row.version: metadata_of(row) for row in rows}
        for number in numbers_in(tree, item.item):
            try:
                metadata = metadata_at(tree, replace(item, version=number))
            except RecordDamaged:
                found[number] = None
            else:
                if metadata is not None:
                    found[number] = metadata
        return cls(item, found)

    @property
    def live(self) -> list[int]:
        """The versions that are not deleted, in order."""
        return sorted(number for number, one in self.found.items() if one is None or not one.deleted)

    def mark(self, repo_id: str, renamed_to: str | None = None) -> Metadata:
        """Return what stays of the highest version once it is deleted."""
        number = max(self.found)
        last = self.found[number]
        if last is None:  # unreadable, and its number must not be used again all the same
            owner = Owner(self.item.model_id, self.item.model_id, self.item.type, repo_id)
            last = Metadata("", self.item.name, number, "application/octet-stream", 0, None, owner, now())
        return replace(last, deleted=True, renamed_to=renamed_to, size=0, sha256=None)


_BUFFER = 1 << 17


def open_content(context: DataContext, item: Item) -> BinaryIO:
    """Open the content of a version; whoever reads to the end knows that it is whole, or gets `ContentDamaged`."""
    fetch(context, item.path)
    try:
        file = context.tree.open(item.path)
    except FileNotFoundError:
        raise _gone(context, item.path) from None
    return io.BufferedReader(_Proved(file, item.metadata, item.path), _BUFFER)


def fetch(context: DataContext, path: str, within: str | None = None) -> None:
    """Bring content here, if it is not; with `within`, all that is missing of a directory, at once."""
    if context.tree.exists(path):
        return
    if context.repo.offline and context.repo.config.datastore.url is not None:
        raise RecordError(
            f"the content of {path} is not here, and this is offline", hint=f"bayou datastore hydrate {path}"
        )
    try:
        context.sync.hydrate(within or path)
    except NotFound:
        raise _gone(context, path) from None
    if not context.tree.exists(path):
        raise _gone(context, path)


def _gone(context: DataContext, path: str) -> ContentDamaged:
    shared = context.repo.config.datastore.url is not None
    return ContentDamaged(
        f"the content of {path} is missing",
        hint="bayou datastore verify shows what is damaged"
        if shared
        else "bring the file back from a backup, or delete the version: bayou data delete",
    )


class _Proved(io.RawIOBase):
    """A file that is hashed while it is read, and compared with its metadata when its end is reached.

    What lies beyond the size that the metadata tells is not content: an append that is under way, or was killed.
    """

    def __init__(self, file: BinaryIO, metadata: Metadata, path: str) -> None:
        super().__init__()
        self._file = file
        self._path = path
        self._left = metadata.size
        self._size = metadata.size
        self._sha256 = metadata.sha256
        self._streaming = metadata.streaming
        self._digest = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer).cast("B")
        # One byte beyond the end, so that content that is too long is noticed where it must not be.
        count = self._file.readinto(view[: self._left] if self._streaming else view)  # type: ignore[attr-defined]
        self._digest.update(view[:count])
        self._left -= count
        if view.nbytes and (count == 0 or (self._streaming and not self._left)):
            self._prove()
        return int(count)

    def _prove(self) -> None:
        if self._sha256 is None:
            return  # appended to: it has no hash of its own, and the index has one
        if self._digest.hexdigest() != self._sha256:
            raise ContentDamaged(
                f"{self._path} is not what was saved: its SHA-256 is another one",
                hint="bayou datastore verify shows what is damaged",
            )

    def close(self) -> None:
        self._file.close()
        super().close()
