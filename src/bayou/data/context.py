"""`DataContext`: one open datastore and its catalog, which every repository of records gets."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct

from bayou.core.errors import StateError
from bayou.data import metadata as metadata_files
from bayou.data.catalog.derive import version_row
from bayou.data.catalog.rows import OutputRow, RunRow, VersionRow
from bayou.data.layout import VersionPath, version_number
from bayou.data.metadata import Metadata
from bayou.repo import Repo
from bayou.state.connection import Connection
from bayou.sync.service import SyncService
from bayou.worktree.tree import Worktree

if TYPE_CHECKING:
    from bayou.data.catalog import Catalog


class DataContext(Struct, frozen=True):
    """One open datastore, with its catalog."""

    repo: Repo
    tree: Worktree
    sync: SyncService
    catalog: Catalog
    connection: Connection

    def load(self, path: str) -> bytes | None:
        """Return the bytes of a record's file; None if the tree lacks it."""
        return metadata_files.load(self.tree, path)

    def metadata(self, location: VersionPath) -> Metadata | None:
        """Return the metadata of a version; None if the tree lacks it, `RecordDamaged` if it cannot be parsed."""
        return metadata_files.metadata_at(self.tree, location)

    def numbers(self, directory: str) -> list[int]:
        """Return the version numbers that the tree has of an item, visible or not, the highest first."""
        return metadata_files.numbers_in(self.tree, directory)

    def highest(self, item: VersionPath) -> int:
        """Return the highest version number that an item is known to have had (0: none).

        The tree may lack versions that were not pulled, or lost; base and the catalog know them.
        """
        prefix = f"{item.item}/"
        known = (version_number(path.removeprefix(prefix).partition("/")[0]) for path in self.sync.known(prefix))
        here = self.numbers(item.item)
        catalogued = self.catalog.highest(item.model_id, item.name, item.type)
        return max(catalogued, *here[:1], *(number for number in known if number is not None), 0)

    def rows(self, item: VersionPath) -> list[VersionRow]:
        """Return the catalog's rows of an item."""
        return self.catalog.versions(item.model_id, item.name, item.type)

    def update_versions(self, written: Sequence[Metadata], deleted: Sequence[VersionPath] = ()) -> None:
        """Bring the catalog's rows of versions up to date with the tree, as `update_catalog` does."""
        rows = [version_row(metadata.location.metadata, metadata) for metadata in written]
        self.update_catalog(rows, [location.metadata for location in deleted])

    def update_catalog(self, rows: Sequence[VersionRow | OutputRow | RunRow], deleted: Sequence[str] = ()) -> None:
        """Put rows into the catalog, and drop the rows of deleted files. Callers change the tree first.

        A catalog that cannot be written does not undo the change of the tree: the catalog is derived, and catches up
        with the tree at the next refresh (V20).
        """
        with suppress(StateError):
            self.catalog.change(put=rows, drop=deleted)
