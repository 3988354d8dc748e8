"""Versioned data: what every model keeps.

`data/<type…>/<model-id>/<name>/<version>/{raw,metadata.yaml}`. Versions are immutable, but for streaming data, which
grows; their numbers are never used twice; the newest is the highest that is not deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Unpack

from bayou.core.clock import now
from bayou.records.catalog.rows import VersionRow
from bayou.records.changes import steadily, turn
from bayou.records.context import Context
from bayou.records.item import Item, find_item, not_found
from bayou.records.layout import VersionPath
from bayou.records.metadata import Metadata
from bayou.records.names import check_place
from bayou.records.owner import ModelRef

if TYPE_CHECKING:
    from bayou.records.content import Content
    from bayou.records.staging import Allocation, Stage
    from bayou.records.terms import Options, Terms

__all__ = ["DataRepository", "Item"]


class DataRepository:
    """The data of one datastore. For many threads and processes.

    How something is written, or content read, is loaded when somebody does it: a list does neither.
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    def save(self, model: ModelRef, name: str, content: Content, **options: Unpack[Options]) -> Metadata:
        """Save a new version: visible, whole and durable when this returns; nothing of it stays if it raises.

        Content is passed on as it comes, and never held as a whole. `NameRefused` and `RetentionInvalid` come before
        anything is written.
        """
        from bayou.records.staging import save  # noqa: PLC0415

        return save(self._context, self._terms(model, name, options), content)

    def append(self, model: ModelRef, name: str, content: Content, version: int | None = None) -> Metadata:
        """Add to a version of streaming data, the newest unless one is named; `NotStreaming` for any other."""
        from bayou.records.appending import append, prepare  # noqa: PLC0415

        check_place(model, name)
        prepare(self._context, model, name, version)
        with turn(self._context):
            return append(self._context, model, name, content, version)

    def allocate(self, model: ModelRef, name: str, **options: Unpack[Options]) -> Allocation:
        """Return room for a version whose content a program writes by itself."""
        from bayou.records.staging import Allocation  # noqa: PLC0415

        return Allocation(self._context, self._terms(model, name, options))

    def stage(self) -> Stage:
        """Return a stage, on which versions wait until they become visible together."""
        from bayou.records.staging import Stage  # noqa: PLC0415

        return Stage(self._context, self._terms)

    def delete(self, model: ModelRef, name: str, version: int | None = None) -> int:
        """Delete a version, or all; return how many. `DataNotFound` if there is none. Follows no renames."""
        from bayou.records.deletion import delete  # noqa: PLC0415

        check_place(model, name)
        item = VersionPath(model.type, model.id, name, 0)
        with turn(self._context):
            count = delete(self._context, {item: None if version is None else {version}})
        if not count:
            raise not_found(model, name, version)
        return count

    def delete_many(self, rows: Iterable[VersionRow]) -> int:
        """Delete these versions, of whatever items, together; return how many of them there were."""
        from bayou.records.deletion import delete  # noqa: PLC0415

        doomed: dict[VersionPath, set[int]] = {}
        for row in rows:
            doomed.setdefault(VersionPath(row.type, row.model_id, row.name, 0), set()).add(row.version)
        with turn(self._context):
            return delete(self._context, doomed)

    def rename(self, model: ModelRef, old: str, new: str) -> Metadata:
        """Give an item, with all its versions, another name; readers of the old one are sent on.

        `NameTaken` if another item has, or had, the new name.
        """
        from bayou.records.renaming import prepare, rename  # noqa: PLC0415

        check_place(model, old)
        check_place(model, new)
        prepare(self._context, model, old)
        with turn(self._context):
            return rename(self._context, model, old, new)

    def get(self, model: ModelRef, name: str, version: int | None = None) -> Item:
        """Return a version, the newest unless one is named. A name that was renamed leads on, five times at most."""
        return steadily(self._context, lambda: find_item(self._context, model, name, version))

    def read(self, item: Item) -> bytes:
        """Return the content of a version, proved by its SHA-256 (`ContentDamaged`)."""
        with self.open(item) as file:
            return file.read()

    def open(self, item: Item) -> BinaryIO:
        """Open the content of a version for reading, proved when its end is reached."""
        from bayou.records.reading import open_content  # noqa: PLC0415

        return open_content(self._context, item)

    def path(self, item: Item) -> Path:
        """Return where the content of a version is on this machine. Nobody may write there."""
        from bayou.records.reading import fetch  # noqa: PLC0415

        fetch(self._context, item.path)
        return self._context.tree.place(item.path)

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

        return steadily(self._context, read)

    def versions(self, model: ModelRef, name: str, *, refresh: bool = True) -> list[VersionRow]:
        """Return all versions of an item, the mark of a deleted one included; `DataNotFound` if it never had any.

        `refresh` as for `find`.
        """
        check_place(model, name)

        def read() -> list[VersionRow]:
            if refresh:
                self._context.catalog.refresh()
            return self._context.catalog.versions(model.id, name, model.type)

        found = steadily(self._context, read)
        if not found:
            raise not_found(model, name, None)
        return found

    def _terms(self, model: ModelRef, name: str, options: Options) -> Terms:
        from bayou.records.terms import Terms  # noqa: PLC0415

        return Terms.of(model, name, self._context.repo.config.repo_id, now(), options)
