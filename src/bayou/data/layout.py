"""Paths of records in the tree, the names that items may have, and the owner of a version.

A path says what a record is: `data/<type…>/<model-id>/<name>/<version>/{raw,metadata.yaml}` (of a version of many
files: `{metadata.yaml,manifest.json,part-00000,…}`), and so on for outputs,
runs and evaluated definitions. An item may have every name that is one safe path segment in every tree and every store
(V18, V21): digits, dots, spaces and letters of any script. The `check_` functions refuse any other name, with the
reason, before anything is written (F106); no name is accepted and skipped later.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from msgspec import Struct

from bayou.core import limits, paths
from bayou.core.errors import NameRefused
from bayou.sync.plan.policy import ModelRef

__all__ = ["ModelRef", "Owner"]

RAW = "raw"
METADATA = "metadata.yaml"
MANIFEST = "manifest.json"
DELETED = "deleted"
EVALUATED = "evaluated"
_SUFFIX = ".yaml"

_VERSION = re.compile(r"[1-9][0-9]*", re.ASCII)
_VERSION_DIGITS = len(str(limits.VERSION_MAX))
_LONGEST_NUMBER = "9" * 12
_LONGEST_TAG = 255
_VERSION_PATH = re.compile(
    r"data/(?P<type>.+)/(?P<model_id>[^/]+)/(?P<name>[^/]+)/(?P<version>[1-9][0-9]*)/(?P<file>raw|metadata\.yaml)",
    re.ASCII,
)


class VersionPath(Struct, frozen=True):
    """The location of a version in the tree, as the paths of its files spell it. An item has the version 0."""

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
        """The directory of the version; sync transfers it as a whole."""
        return f"{self.item}/{self.version}"

    @property
    def raw(self) -> str:
        return f"{self.directory}/{RAW}"

    @property
    def metadata(self) -> str:
        return f"{self.directory}/{METADATA}"

    def content(self, files: int | None) -> str:
        """Return the path of the content: of `raw`, or of the manifest of a version of many files."""
        return f"{self.directory}/{RAW if files is None else MANIFEST}"


def part_name(number: int) -> str:
    """Return the name of a part, a file of a version of many files."""
    return f"part-{number:05}"


def content_names(files: int | None) -> tuple[str, ...]:
    """Return the names of all files that have the content of a version: `raw`, or the manifest and its parts."""
    return (RAW,) if files is None else (MANIFEST, *map(part_name, range(files)))


def item_directory(kind: str, model_id: str, name: str) -> str:
    """Return the directory that has the versions of an item."""
    return f"data/{kind}/{model_id}/{name}"


def version_path(path: str) -> VersionPath | None:
    """Parse the path of a version's `raw` or `metadata.yaml`; None for any other path."""
    found = _VERSION_PATH.fullmatch(path)
    if found is None or len(found["version"]) > _VERSION_DIGITS:
        return None
    number = int(found["version"])
    return (
        VersionPath(found["type"], found["model_id"], found["name"], number) if number <= limits.VERSION_MAX else None
    )


def is_metadata_path(path: str) -> bool:
    """Return whether a path is that of a version's `metadata.yaml`, even if its number is too high."""
    return path.endswith(f"/{METADATA}") and _VERSION_PATH.fullmatch(path) is not None


def version_number(name: str) -> int | None:
    """Parse the name of a version's directory; None if it names no version.

    A number beyond `limits.VERSION_MAX` names no version (V25): with it, the item would run out of numbers.
    """
    if not _VERSION.fullmatch(name) or len(name) > _VERSION_DIGITS:
        return None
    number = int(name)
    return number if number <= limits.VERSION_MAX else None


def max_bytes(path: str) -> int:
    """Return how many bytes of a record's file a reader reads at most (V25)."""
    return limits.METADATA_BYTES if path.startswith("data/") else limits.RECORD_BYTES


def output_path(kind: str, model_id: str, output_id: str) -> str:
    return f"outputs/{kind}/{model_id}/{output_id}{_SUFFIX}"


def run_path(workflow_id: str, run_id: str) -> str:
    return f"workflow-runs/{workflow_id}/{run_id}{_SUFFIX}"


def evaluated_definition_path(kind: str, model_id: str, output_id: str) -> str:
    return f"definitions-evaluated/{kind}/{model_id}/{output_id}{_SUFFIX}"


def deleted_model_path(kind: str, model_id: str) -> str:
    """Return the path of the record that a model was deleted on purpose."""
    return f"definitions-evaluated/{kind}/{model_id}/{DELETED}{_SUFFIX}"


def evaluated_workflow_path(workflow_id: str, run_id: str | None) -> str:
    return f"workflows-evaluated/{workflow_id}/{run_id or EVALUATED}{_SUFFIX}"


class Owner(Struct, frozen=True):
    """The maker of a version: a model, in a repo, and the output and the workflow step, if it had any."""

    model: str
    model_id: str
    type: str
    repo: str
    output: str | None = None
    run: str | None = None
    workflow: str | None = None
    job: str | None = None
    step: str | None = None

    @classmethod
    def of(
        cls,
        model: ModelRef,
        repo: str,
        *,
        output: str | None = None,
        run: str | None = None,
        workflow: str | None = None,
        job: str | None = None,
        step: str | None = None,
    ) -> Owner:
        return cls(model.name, model.id, model.type, repo, output, run, workflow, job, step)


def check_name(name: str) -> str:
    """Return an item's name, or raise `NameRefused` with the reason."""
    why = "a slash" if "/" in name else paths.unsafe(name) or paths.reserved_name(name)
    if why is not None:
        raise NameRefused(f"data cannot be called {_shown(name)}: {_reason(why, name)}", hint="choose another name")
    return name


def check_item(model: ModelRef, name: str) -> str:
    """Return the directory of an item, or raise `NameRefused` if its name or its whole path is unsafe."""
    directory = item_directory(model.type, model.id, check_name(name))
    why = paths.refusal(f"{directory}/{_LONGEST_NUMBER}/{METADATA}")
    if why is not None:
        raise NameRefused(
            f"data of {model.type} cannot be called {_shown(name)}: {why} with its type and model",
            hint="choose a shorter name",
        )
    return directory


def check_id(text: str, what: str) -> str:
    """Return an id that can name a file or a directory, or raise `NameRefused`. `what` is for the error."""
    why = "a slash" if "/" in text else paths.unsafe(text) or paths.unsafe(f"{text}.yaml") or paths.reserved_name(text)
    if why is None and text in (DELETED, EVALUATED):
        why = "a file of that name means something else"
    if why is not None:
        raise NameRefused(f"{what} cannot have the id {_shown(text)}: {_reason(why, text)}", hint="use a UUID")
    return text


def check_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of tags, or raise `NameRefused`."""
    for key, value in tags.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise NameRefused(f"a tag is a text with a text, not {key!r} with {value!r}", hint="write it as key=value")
        if not key or len(key) > _LONGEST_TAG:
            raise NameRefused(f"a tag's key has 1 to {_LONGEST_TAG} characters", hint="choose a shorter one")
    return dict(tags)


def _reason(why: str, name: str) -> str:
    return "it is empty" if not name else why


def _shown(name: str) -> str:
    """Quote a name so that it fits on one line, whatever characters it has."""
    text = json.dumps(name, ensure_ascii=not name.isprintable())
    return text if len(text) <= 80 else f'{text[:60]}…"'
