"""What the files that are on this machine say of versions: nothing but a tree is needed to ask."""

from __future__ import annotations

from bayou.core.documents import read_at_most
from bayou.records.layout import VersionPath, most_bytes, version_number
from bayou.records.metadata import Metadata
from bayou.worktree.tree import Worktree


def load(tree: Worktree, path: str) -> bytes | None:
    """Return the bytes of a record's file; None if it is not here. Of too long a file the readers refuse what comes."""
    try:
        with tree.open(path) as file:
            return read_at_most(file, most_bytes(path))
    except FileNotFoundError:
        return None


def metadata_at(tree: Worktree, place: VersionPath) -> Metadata | None:
    """Return what is known of a version; None if there is none here, `RecordDamaged` if nobody can tell."""
    data = load(tree, place.metadata)
    return None if data is None else Metadata.from_bytes(data, place.metadata).at(place)


def numbers_in(tree: Worktree, directory: str) -> list[int]:
    """Return the numbers of an item that are taken here, visible or not, the highest first."""
    found = (version_number(name) for name in tree.names(directory))
    return sorted((number for number in found if number is not None), reverse=True)
