"""`DataRepository`: the versioned data of models, `data/<type…>/<model-id>/<name>/<version>/{raw,metadata.yaml}`.

An item is all versions of one name. Versions are immutable, except that streaming data grows; version numbers are never
used twice; the newest version is the highest that is not deleted. A name that was renamed forwards to the new one. The
tree decides what a version is; for a version whose files are not on this machine, the catalog does. Reading fetches
content that is not here, and verifies its SHA-256 at its end.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, BinaryIO, Unpack

from msgspec import Struct
from msgspec.structs import replace

from bayou.core import limits
from bayou.core.clock import now
from bayou.core.documents import read_at_most
from bayou.core.errors import ContentDamaged, DataNotFound, NotFound, RecordDamaged, RecordError, TooManyRenames
from bayou.core.text import nearest
from bayou.data.catalog.rows import VersionRow
from bayou.data.changes import consistent_read, exclusive_change
from bayou.data.context import DataContext
from bayou.data.layout import ModelRef, Owner, VersionPath, check_item, content_names
from bayou.data.metadata import Metadata, metadata_at, numbers_in
from bayou.worktree.tree import Worktree

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from bayou.data.content import Content
    from bayou.data.manifest import Manifest
    from bayou.data.metadata import NewVersion, Options
    from bayou.data.spool import SpooledInput
    from bayou.data.staging import Allocation, SaveResult, StagedVersions

__all__ = ["DataRepository", "Item"]

_BUFFER = 1 << 17
MAX_RENAMES = 5
_MOST_COMPARED = 1000
"""Names that a wrong name is compared with; more take too long."""


class Item(Struct, frozen=True):
    """A version that was found. `forwarded` has the old names that led to it, the requested name first.

    `path` is the path of its content in the tree.
    """

    metadata: Metadata
    forwarded: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        return self.metadata.content_path


class DataRepository:
    """The data of one datastore. Many threads and processes may use it at once.

    The modules that write are imported when a method needs them: a list of data does without.
    """

    def __init__(self, context: DataContext) -> None:
        self._context = context

    def save(self, model: ModelRef, name: str, content: Content, **options: Unpack[Options]) -> Metadata:
        """Save a new version: visible, whole and durable when this returns; if it raises, nothing stays.

        Content is copied in chunks, and never held as a whole. `NameRefused` and `RetentionInvalid` are raised before
        anything is written.
        """
        from bayou.data.staging import save  # noqa: PLC0415

        return save(self._context, self._new_version(model, name, options), content)

    def save_directory(
        self,
        model: ModelRef,
        name: str,
        source: Path,
        *,
        always: bool = True,
        alone: bool = False,
        **options: Unpack[Options],
    ) -> SaveResult:
        """Save all files below a directory as one version; without `always`, only if the latest one is not equal.

        `alone`: the store was not asked what the latest one is. `NameRefused` names a file that cannot be saved: a
        link, a device, an unsafe name.
        """
        from bayou.data.manifest import save_directory  # noqa: PLC0415

        version = self._new_version(model, name, options)
        return save_directory(self._context, version, source, always=always, alone=alone)

    def manifest(self, item: Item) -> Manifest:
        """Return the manifest of a version of many files, verified; `RecordDamaged` if it is not one."""
        from bayou.data.manifest import parse_manifest  # noqa: PLC0415

        with self.open(item) as file:
            return parse_manifest(read_at_most(file, limits.MANIFEST_BYTES), item)

    def write_directory(self, item: Item, target: Path) -> Manifest:
        """Write the files of a version of many files to a new directory, whole and verified, or nothing."""
        from bayou.data.manifest import write_directory  # noqa: PLC0415

        return write_directory(self._context, item, self.manifest(item), target)

    def append(self, model: ModelRef, name: str, content: Content, version: int | None = None) -> Metadata:
        """Append to a version of streaming data, or (None) the newest; `NotStreaming` for other data."""
        from bayou.data.staging import append, prepare  # noqa: PLC0415

        check_item(model, name)
        prepare(self._context, model, name, version)
        with exclusive_change(self._context):
            return append(self._context, model, name, content, version)

    def use_input(self, spooled: SpooledInput, *, alone: bool = False) -> SaveResult:
        """Make a spooled input a version, or append it, as its record says; the input is used up (V22).

        The version has the time at which the input was given. If this raises, the input stays. Unless the record says
        `always`, an input that equals the latest version makes no new one; `alone` as for `save_directory`.
        """
        from bayou.data.metadata import NewVersion  # noqa: PLC0415
        from bayou.data.staging import SaveResult, append, equal_latest, prepare, save_input  # noqa: PLC0415

        record, model = spooled.record, spooled.record.ref
        if record.command == "put":
            repo_id = self._context.repo.config.repo_id
            version = NewVersion.of(model, record.name, repo_id, record.at, record.options)
            latest = None if record.always else equal_latest(self._context, version, spooled.measured, alone=alone)
            if latest is not None:
                spooled.drop()
                return SaveResult(latest, unchanged=True, empty=record.empty)
            return SaveResult(save_input(self._context, version, spooled), empty=record.empty)
        check_item(model, record.name)
        prepare(self._context, model, record.name, None)
        with exclusive_change(self._context), spooled.open() as content:
            return SaveResult(append(self._context, model, record.name, content, None, spooled))

    def allocate(self, model: ModelRef, name: str, **options: Unpack[Options]) -> Allocation:
        """Return the allocation of a version whose content a program writes by itself."""
        from bayou.data.staging import Allocation  # noqa: PLC0415

        return Allocation(self._context, self._new_version(model, name, options))

    def stage(self) -> StagedVersions:
        """Return a stage: the versions saved on it become visible together."""
        from bayou.data.staging import StagedVersions  # noqa: PLC0415

        return StagedVersions(self._context, self._new_version)

    def delete(self, model: ModelRef, name: str, version: int | None = None) -> int:
        """Delete a version, or (None) all; return how many. `DataNotFound` if there is none. Follows no renames."""
        from bayou.data.edit import delete  # noqa: PLC0415

        check_item(model, name)
        item = VersionPath(model.type, model.id, name, 0)
        with exclusive_change(self._context):
            count = delete(self._context, {item: None if version is None else {version}})
        if not count:
            raise not_found(self._context, model, name, version)
        return count

    def undelete(self, model: ModelRef, name: str, version: int | None = None) -> Metadata:
        """Save the content of a deleted version, or (None) of the last that was deleted, as a new version.

        `HistoryCollected` if no commit that can still be read has it; `DataNotFound` if it never existed.
        """
        from bayou.data.undelete import undelete  # noqa: PLC0415

        check_item(model, name)
        return undelete(self._context, model, name, version)

    def delete_many(self, rows: Iterable[VersionRow]) -> int:
        """Delete versions of any items together; return how many of them still existed."""
        from bayou.data.edit import delete  # noqa: PLC0415

        numbers: dict[VersionPath, set[int]] = {}
        for row in rows:
            numbers.setdefault(VersionPath(row.type, row.model_id, row.name, 0), set()).add(row.version)
        with exclusive_change(self._context):
            return delete(self._context, numbers)

    def rename(self, model: ModelRef, old: str, new: str) -> Metadata:
        """Rename an item with all its versions; the old name forwards readers to the new one.

        `NameTaken` if another item has, or had, the new name.
        """
        from bayou.data.edit import prepare, rename  # noqa: PLC0415

        check_item(model, old)
        check_item(model, new)
        prepare(self._context, model, old)
        with exclusive_change(self._context):
            return rename(self._context, model, old, new)

    def get(self, model: ModelRef, name: str, version: int | None = None) -> Item:
        """Return a version, or (None) the newest. A name that was renamed forwards, at most five times."""
        return consistent_read(self._context, lambda: find_item(self._context, model, name, version))

    def read(self, item: Item) -> bytes:
        """Return the content of a version, verified by its SHA-256 (`ContentDamaged`)."""
        with self.open(item) as file:
            return file.read()

    def fetch(self, paths: Sequence[str]) -> Mapping[str, str]:
        """Fetch the content at these paths that is not on this machine, many files with one request.

        Return the reason for each path whose content is damaged. `read` and `open` fetch one file each; offline, they
        say so.
        """
        absent = [path for path in paths if not self._context.tree.exists(path)]
        return {} if not absent or self._context.repo.offline else self._context.sync.fetch(absent)

    def open(self, item: Item) -> BinaryIO:
        """Open the content of a version for reading; its end verifies the SHA-256 (`ContentDamaged`)."""
        return open_content(self._context, item)

    def path(self, item: Item) -> Path:
        """Return the path of a version's content on this machine. Callers must not write there."""
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
        """Return the newest version of each item that matches all arguments, or every version that is not deleted.

        The catalog alone answers this. `model` is a model, or the name or id of a model. A caller that has just
        refreshed the catalog passes `refresh=False`.
        """
        if isinstance(model, ModelRef):
            if type not in (None, model.type):
                return []
            type, model = model.type, model.id  # noqa: A001
        catalog, model_key = self._context.catalog, model

        def read() -> list[VersionRow]:
            if refresh:
                catalog.refresh()
            return catalog.find(name=name, id=id, tags=tags, model=model_key, type=type, all_versions=all_versions)

        return consistent_read(self._context, read)

    def versions(self, model: ModelRef, name: str, *, refresh: bool = True) -> list[VersionRow]:
        """Return all versions of an item, a tombstone included; `DataNotFound` if it never had any.

        `refresh` as for `find`.
        """
        check_item(model, name)

        def read() -> list[VersionRow]:
            if refresh:
                self._context.catalog.refresh()
            return self._context.catalog.versions(model.id, name, model.type)

        found = consistent_read(self._context, read)
        if not found:
            raise not_found(self._context, model, name, None)
        return found

    def _new_version(self, model: ModelRef, name: str, options: Options) -> NewVersion:
        from bayou.data.metadata import NewVersion  # noqa: PLC0415

        return NewVersion.of(model, name, self._context.repo.config.repo_id, now(), options)


def find_item(context: DataContext, model: ModelRef, name: str, version: int | None) -> Item:
    """Return a version of an item, or (None) the newest; `DataNotFound` if it does not exist.

    A name that was renamed forwards, at most five times (`TooManyRenames`); the limit also ends a circle of renames
    that two machines made.
    """
    forwarded: list[str] = []
    current = name
    while True:
        check_item(model, current)
        found = _find_metadata(context, VersionPath(model.type, model.id, current, 0), version)
        if found is None or found.renamed_to is None:
            break
        forwarded.append(current)
        if len(forwarded) > MAX_RENAMES:
            raise TooManyRenames(
                f"{name} of {model.name} was renamed more than {MAX_RENAMES} times: {', '.join(forwarded)}, …",
                hint=f"ask for {found.renamed_to}, or for what it is called now: bayou data list {model.name}",
            )
        current = found.renamed_to
    if found is None or found.deleted:
        raise not_found(context, model, current, version, deleted=found is not None)
    return Item(found, tuple(forwarded))


def not_found(
    context: DataContext, model: ModelRef, name: str, version: int | None, *, deleted: bool = False
) -> DataNotFound:
    """Return the error for an item or a version that does not exist, or was `deleted`; it names a similar item.

    An item that was renamed is not gone: the error says what it is called now.
    """
    owner, item = quote(model.name), quote(name)
    rows = context.rows(VersionPath(model.type, model.id, name, 0))
    if rows and rows[-1].renamed_to is not None:
        return DataNotFound(
            f"{name} of {model.name} was renamed: it is {rows[-1].renamed_to} now",
            hint=f"see its versions with `bayou data versions {owner} {quote(rows[-1].renamed_to)}`",
        )
    if version is None and deleted:
        undo = f"`bayou data undelete {owner} {item}` brings it back, if the store still has it"
        shared = context.repo.config.datastore.url is not None
        return DataNotFound(f"{name} of {model.name} was deleted", hint=undo if shared else _see_list(owner))
    similar = None if rows else _similar_item(context, model, name)
    meant = None if similar is None else f"did you mean {similar}?"
    if version is None:
        return DataNotFound(f"{model.name} has no data named {name}", hint=meant or _see_list(owner))
    return DataNotFound(
        f"there is no version {version} of {name} of {model.name}",
        hint=meant or f"see its versions with `bayou data versions {owner} {item}`",
    )


def _see_list(owner: str) -> str:
    return f"see what there is with `bayou data list {owner}`"


def _similar_item(context: DataContext, model: ModelRef, name: str) -> str | None:
    """Return the name of the model's data that is most similar to a name."""
    return nearest(name, context.catalog.names(model.id, model.type, _MOST_COMPARED))


def metadata_of(row: VersionRow) -> Metadata:
    """Return a row of the catalog as metadata."""
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
        files=row.files,
    )


class Versions(Struct, frozen=True):
    """All that is known of the versions of one item, by number. None stands for metadata that cannot be read."""

    item: VersionPath
    found: dict[int, Metadata | None]

    @classmethod
    def of(cls, context: DataContext, item: VersionPath) -> Versions:
        """Read every version from the tree, and from the catalog where the tree lacks it."""
        return cls.in_tree(context.tree, item, context.rows(item))

    @classmethod
    def in_tree(cls, tree: Worktree, item: VersionPath, rows: Iterable[VersionRow]) -> Versions:
        """Read every version from the tree; `rows` are the catalog's rows of all versions of the item."""
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
        return sorted(number for number, known in self.found.items() if known is None or not known.deleted)

    def tombstone(self, repo_id: str, renamed_to: str | None = None) -> Metadata:
        """Return the metadata that stays of the highest version once it is deleted."""
        number = max(self.found)
        last = self.found[number]
        if last is None:  # unreadable; its number must still not be used again
            owner = Owner(self.item.model_id, self.item.model_id, self.item.type, repo_id)
            last = Metadata("", self.item.name, number, "application/octet-stream", 0, None, owner, now())
        return replace(last, deleted=True, renamed_to=renamed_to, size=0, sha256=None, files=None, restored_from=None)


def open_content(context: DataContext, item: Item) -> BinaryIO:
    """Open the content of a version; reading to its end verifies it, and raises `ContentDamaged` if it is not whole."""
    fetch(context, item.path)
    try:
        file = context.tree.open(item.path)
    except FileNotFoundError:
        raise _content_missing(context, item.path) from None
    return io.BufferedReader(_VerifyingReader(file, item.metadata, item.path, damage_hint(context, item.path)), _BUFFER)


def fetch(context: DataContext, path: str, within: str | None = None) -> None:
    """Fetch content that is not on this machine; with `within`, all that a directory lacks, at once."""
    if context.tree.exists(path):
        return
    if context.repo.offline and context.repo.config.datastore.url is not None:
        raise RecordError(
            f"the content of {path} is not here, and this is offline", hint=f"bayou datastore hydrate {path}"
        )
    try:
        context.sync.hydrate(within or path)
    except NotFound:
        raise _content_missing(context, path) from None
    if not context.tree.exists(path):
        raise _content_missing(context, path)


def fetch_content(context: DataContext, metadata: Metadata, within: str | None = None) -> None:
    """Fetch the content of a version that is not on this machine, with all parts; `within` as for `fetch`."""
    for name in content_names(metadata.files):
        fetch(context, f"{metadata.location.directory}/{name}", within or metadata.location.directory)


def _find_metadata(context: DataContext, item: VersionPath, version: int | None) -> Metadata | None:
    """Return a version, or (None) the newest that is not deleted, or the tombstone of a deleted item.

    A number that does not exist leads to the tombstone if that forwards to another name.
    """
    if version is None:
        return _newest(context, item)
    found = _find_version(context, replace(item, version=version))
    if found is not None and not found.deleted:
        return found
    tombstone = _newest(context, item)
    return tombstone if tombstone is not None and tombstone.deleted and tombstone.renamed_to else None


def _newest(context: DataContext, item: VersionPath) -> Metadata | None:
    tombstone: Metadata | None = None
    for number in context.numbers(item.item):
        found = context.metadata(replace(item, version=number))
        if found is not None and not found.deleted:
            return found
        tombstone = tombstone or found
    if tombstone is not None:
        return tombstone
    context.catalog.refresh()
    return next((metadata_of(row) for row in context.rows(item) if row.latest), None)


def _find_version(context: DataContext, location: VersionPath) -> Metadata | None:
    found = context.metadata(location)
    if found is not None:
        return found
    # The catalog has the row of a version that was not pulled, or was lost here; its content can be fetched.
    context.catalog.refresh()
    return next((metadata_of(row) for row in context.rows(location) if row.version == location.version), None)


def _content_missing(context: DataContext, path: str) -> ContentDamaged:
    if context.repo.config.datastore.url is not None:
        hint = "bayou datastore verify shows what is damaged"
    elif not context.repo.tree_root.is_dir():
        hint = f"there is no directory {context.repo.tree_root}: mount or create it"
    else:
        hint = _FROM_BACKUP
    return ContentDamaged(f"the content of {path} is missing", hint=hint)


def damage_hint(context: DataContext, path: str) -> str:
    """Return what to do about a file on this machine that is not what was saved: a sync would push it."""
    if context.repo.config.datastore.url is None:
        return _FROM_BACKUP
    file = quote(str(context.tree.root / path))
    return (
        f"if it was changed here, remove {file} before the next sync, which would push it: reading it then fetches "
        "the store's copy; `bayou datastore verify --deep` checks that copy"
    )


_FROM_BACKUP = "bring the file back from a backup, or delete the version: bayou data delete"


class _VerifyingReader(io.RawIOBase):
    """A reader that hashes a file, and compares the hash with the metadata at the file's end.

    Bytes of streaming data beyond the size in the metadata are not content: an append is under way, or was killed.
    """

    def __init__(self, file: BinaryIO, metadata: Metadata, path: str, hint: str) -> None:
        super().__init__()
        self._file = file
        self._path = path
        self._hint = hint
        self._left = metadata.size
        self._size = metadata.size
        self._sha256 = metadata.sha256
        self._streaming = metadata.streaming
        import hashlib  # noqa: PLC0415  (a list reads no content)

        self._digest = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer).cast("B")
        # Data that is not streaming is read beyond its size, so that the hash shows content that is too long.
        count = self._file.readinto(view[: self._left] if self._streaming else view)  # type: ignore[attr-defined]
        self._digest.update(view[:count])
        self._left -= count
        if view.nbytes and (count == 0 or (self._streaming and not self._left)):
            self._verify()
        return int(count)

    def _verify(self) -> None:
        if self._sha256 is None:
            return  # appended to: the metadata has no hash, and the index has one
        if self._digest.hexdigest() != self._sha256:
            raise ContentDamaged(f"{self._path} is not what was saved: its SHA-256 is another one", hint=self._hint)

    def close(self) -> None:
        self._file.close()
        super().close()
