"""All that is known of the versions of one item: from its files here, and from the catalog where they are not."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from bayou.core.clock import now
from bayou.core.errors import RecordDamaged
from bayou.records.catalog.rows import VersionRow
from bayou.records.context import Context
from bayou.records.item import metadata_of
from bayou.records.layout import VersionPath
from bayou.records.local import metadata_at, numbers_in
from bayou.records.metadata import Metadata
from bayou.records.owner import Owner
from bayou.worktree.tree import Worktree


class Versions(Struct, frozen=True):
    """The versions of one item, by number. One whose metadata cannot be read has None."""

    item: VersionPath
    found: dict[int, Metadata | None]

    @classmethod
    def of(cls, context: Context, item: VersionPath) -> Versions:
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
