"""Models that tests keep data for, and looks at what they keep."""

from __future__ import annotations

from pathlib import Path

from bayou.data.layout import ModelRef, version_path
from bayou.data.metadata import Metadata
from bayou.data.records import Records

MODEL = ModelRef("net/vpc", "0b8f5a52-6f1d-4f0e-9d4e-3f1f5a0c7a11", "main")
OTHER = ModelRef("report", "5d0f2a6e-90b5-4a6b-8a43-5a6f0e8f8f22", "weekly")

Seen = dict[tuple[str, str, int], bytes | None]


def visible(records: Records) -> Seen:
    """Every version that readers see, by model, name and number, with its content."""
    seen: Seen = {}
    for row in records.data.find(all_versions=True):
        model = ModelRef(row.type, row.model_id, row.model)
        item = records.data.get(model, row.name, row.version)
        seen[row.model, row.name, row.version] = records.data.read(item)
    return seen


def in_tree(root: Path) -> dict[str, Metadata]:
    """Every metadata file of a tree, by its path."""
    found = {}
    for file in root.glob("data/**/metadata.yaml"):
        path = file.relative_to(root).as_posix()
        if not any(part.startswith(".bayou-") for part in file.parts):
            assert version_path(path) is not None
            found[path] = Metadata.from_bytes(file.read_bytes(), path)
    return found


def leftovers(root: Path) -> list[str]:
    """What lies in a tree and is no payload, or is an empty directory."""
    return [
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if path.name.startswith(".bayou-") or (path.is_dir() and path.parent != root and not any(path.iterdir()))
    ]
