"""Where records lie in the tree, and what a path says."""

from __future__ import annotations

import re

from msgspec import Struct

from bayou.core import limits

RAW = "raw"
METADATA = "metadata.yaml"
DELETED = "deleted"
EVALUATED = "evaluated"
_SUFFIX = ".yaml"

_VERSION = re.compile(r"[1-9][0-9]*", re.ASCII)
_LONGEST = len(str(limits.VERSION_MAX))
_VERSION_PATH = re.compile(
    r"data/(?P<type>.+)/(?P<model_id>[^/]+)/(?P<name>[^/]+)/(?P<version>[1-9][0-9]*)/(?P<file>raw|metadata\.yaml)",
    re.ASCII,
)


class VersionPath(Struct, frozen=True):
    """What the path of a version's file says."""

    type: str
    model_id: str
    name: str
    version: int

    @property
    def item(self) -> str:
        """The directory of the item."""
        return item_directory(self.type, self.model_id, self.name)

    @property
    def directory(self) -> str:
        """The directory of the version, which is a unit of sync."""
        return f"{self.item}/{self.version}"

    @property
    def raw(self) -> str:
        return f"{self.directory}/{RAW}"

    @property
    def metadata(self) -> str:
        return f"{self.directory}/{METADATA}"


def item_directory(kind: str, model_id: str, name: str) -> str:
    """Return the directory that the versions of an item lie in."""
    return f"data/{kind}/{model_id}/{name}"


def version_path(path: str) -> VersionPath | None:
    """Return what the path of a version's `raw` or `metadata.yaml` says; None if it is none."""
    found = _VERSION_PATH.fullmatch(path)
    if found is None or len(found["version"]) > _LONGEST:
        return None
    number = int(found["version"])
    return (
        VersionPath(found["type"], found["model_id"], found["name"], number) if number <= limits.VERSION_MAX else None
    )


def names_metadata(path: str) -> bool:
    """Say whether a path is that of a version's `metadata.yaml`, or would be if its number were not too high."""
    return path.endswith(f"/{METADATA}") and _VERSION_PATH.fullmatch(path) is not None


def version_number(name: str) -> int | None:
    """Return the number that a directory of an item stands for; None if it is no version.

    A number beyond `limits.VERSION_MAX` is none (V25): it would take the numbers after it from the item.
    """
    if not _VERSION.fullmatch(name) or len(name) > _LONGEST:
        return None
    number = int(name)
    return number if number <= limits.VERSION_MAX else None


def most_bytes(path: str) -> int:
    """Return how many bytes of a record's file are read at most (V25)."""
    return limits.METADATA_BYTES if path.startswith("data/") else limits.RECORD_BYTES


def output_path(kind: str, model_id: str, output_id: str) -> str:
    return f"outputs/{kind}/{model_id}/{output_id}{_SUFFIX}"


def run_path(workflow_id: str, run_id: str) -> str:
    return f"workflow-runs/{workflow_id}/{run_id}{_SUFFIX}"


def evaluated_definition_path(kind: str, model_id: str, output_id: str) -> str:
    return f"definitions-evaluated/{kind}/{model_id}/{output_id}{_SUFFIX}"


def deleted_model_path(kind: str, model_id: str) -> str:
    """Return where it is recorded that a model was deleted on purpose."""
    return f"definitions-evaluated/{kind}/{model_id}/{DELETED}{_SUFFIX}"


def evaluated_workflow_path(workflow_id: str, run_id: str | None) -> str:
    return f"workflows-evaluated/{workflow_id}/{run_id or EVALUATED}{_SUFFIX}"
