"""What the repositories work with, and what they all do with it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct

from bayou.core.errors import StateError
from bayou.data import metadata as local
from bayou.data.catalog.derive import version_row
from bayou.data.catalog.rows import OutputRow, RunRow, VersionRow
from bayou.data.layout import VersionPath, version_number
from bayou.data.metadata import Metadata
from bayou.repo import Repo
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

    def load(self, path: str) -> bytes | None:
        """Return the bytes of a record's file; None if it is not here."""
        return local.load(self.tree, path)

    def metadata(self, place: VersionPath) -> Metadata | None:
        """Return what is known of a version; None if there is none here, `RecordDamaged` if nobody can tell."""
        return local.metadata_at(self.tree, place)

    def numbers(self, directory: str) -> list[int]:
        """Return the numbers of an item that are taken here, visible or not, the highest first."""
        return local.numbers_in(self.tree, directory)

    def highest(self, item: VersionPath) -> int:
        """Return the highest number that an item is known to have had (0: none).

        The tree may lack versions that were not pulled, or lost; base and the catalog know of those.
        """
        prefix = f"{item.item}/"
        known = (version_number(path.removeprefix(prefix).partition("/")[0]) for path in self.sync.known(prefix))
        here = self.numbers(item.item)
        catalogued = self.catalog.highest(item.model_id, item.name, item.type)
        return max(catalogued, *here[:1], *(number for number in known if number is not None), 0)

    def rows(self, item: VersionPath) -> list[VersionRow]:
        """Return what the catalog says of the versions of an item."""
        return self.catalog.versions(item.model_id, item.name, item.type)

    def told(self, made: Sequence[Metadata], gone: Sequence[VersionPath] = ()) -> None:
        """Tell the catalog what the tree has now.

        A catalog that cannot be written does not undo what is done: it is derived, and catches up when it can (V20).
        """
        self.tell([version_row(one.place.metadata, one) for one in made], [place.metadata for place in gone])

    def tell(self, rows: Sequence[VersionRow | OutputRow | RunRow], gone: Sequence[str] = ()) -> None:
        """Put rows into the catalog, and drop those of the files at some paths."""
        with suppress(StateError):
            self.catalog.change(put=rows, drop=gone)
