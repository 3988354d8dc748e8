"""Where records lie in the tree, and what a path says.

Whose an item is: the model that keeps it, and what made it.

What an item may be called: anything that has one safe place in every tree and every store (V18, V21).

All digits, dots, spaces and letters of any script are fine. What is not is refused here, with the reason, before
anything is written (F106): a name is never accepted and then passed over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from msgspec import Struct

from bayou.core import limits, paths
from bayou.core.errors import NameRefused
from bayou.sync.plan.policy import ModelRef

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


__all__ = ["ModelRef", "Owner"]


class Owner(Struct, frozen=True):
    """The model of a version, the repo that wrote it, and the method's output and the workflow's step, if any."""

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


_LONGEST_NUMBER = "9" * 12
_LONGEST_TAG = 255


def check_name(name: str) -> str:
    """Return an item's name, or raise `NameRefused` with the reason."""
    why = "a slash" if "/" in name else paths.unsafe(name) or paths.reserved_name(name)
    if why is not None:
        raise NameRefused(f"data cannot be called {_shown(name)}: {_said(why, name)}", hint="choose another name")
    return name


def check_place(model: ModelRef, name: str) -> str:
    """Return the directory of an item, or raise `NameRefused` if its name, or all of its path, has no safe place."""
    directory = item_directory(model.type, model.id, check_name(name))
    why = paths.refusal(f"{directory}/{_LONGEST_NUMBER}/{METADATA}")
    if why is not None:
        raise NameRefused(
            f"data of {model.type} cannot be called {_shown(name)}: {why} with its type and model",
            hint="choose a shorter name",
        )
    return directory


def check_id(text: str, what: str) -> str:
    """Return an id that names a file or a directory of its own, or raise `NameRefused`. `what` says whose id it is."""
    why = "a slash" if "/" in text else paths.unsafe(text) or paths.unsafe(f"{text}.yaml") or paths.reserved_name(text)
    if why is None and text in (DELETED, EVALUATED):
        why = "a file of that name means something else"
    if why is not None:
        raise NameRefused(f"{what} cannot have the id {_shown(text)}: {_said(why, text)}", hint="use a UUID")
    return text


def check_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Return tags as they are kept, or raise `NameRefused`."""
    for key, value in tags.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise NameRefused(f"a tag is a text with a text, not {key!r} with {value!r}", hint="write it as key=value")
        if not key or len(key) > _LONGEST_TAG:
            raise NameRefused(f"a tag's key has 1 to {_LONGEST_TAG} characters", hint="choose a shorter one")
    return dict(tags)


def _said(why: str, name: str) -> str:
    return "it is empty" if not name else why


def _shown(name: str) -> str:
    """Quote a name so that it fits on a line, whatever is in it."""
    text = json.dumps(name, ensure_ascii=not name.isprintable())
    return text if len(text) <= 80 else f'{text[:60]}…"'
