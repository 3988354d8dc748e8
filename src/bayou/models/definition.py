"""One definition, as its file has it.

What types and models may be called: names that are safe as directories here and as keys in every store (V21).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, cast

from msgspec import field

from bayou.core import limits, paths
from bayou.core.documents import (
    Lines,
    Place,
    Source,
    Unreadable,
    Unusable,
    nearest_line,
    not_blocking,
    parse_source,
    read_at_most,
)
from bayou.core.errors import BayouError, ModelInvalid
from bayou.core.structs import SelectiveStruct
from bayou.core.text import did_you_mean
from bayou.repo import Repo, leads_out
from bayou.sync.plan.policy import ModelRef

FOLDER = "models"
SUFFIX = ".yaml"

_SEGMENT = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_TYPE = re.compile(rf"@?{_SEGMENT}(?:/{_SEGMENT})*", re.ASCII)
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_MAX_TYPE = 200
"""A path has 800 bytes: this leaves room for the longest name of an item, and what lies above and below it."""


def check_type(text: str) -> str:
    """Return a type, `network`, `aws/ec2/vpc` or `@team/report`, or raise `ModelInvalid` with the reason."""
    if len(text) > _MAX_TYPE:
        raise ModelInvalid(f"a type has at most {_MAX_TYPE} characters", hint="choose a shorter one")
    if not _TYPE.fullmatch(text):
        raise ModelInvalid(
            f"{text!r} is no type of models",
            hint="words of letters, digits, dots, - and _ with slashes between them, like aws/ec2 or @team/report",
        )
    for segment in text.split("/"):
        _check_reserved(segment, "a type")
    return text


def check_name(text: str) -> str:
    """Return a model's name, or raise `ModelInvalid` with the reason. Any letters, also spaces and dots inside."""
    why = paths.unsafe(text)
    if why is None and "/" in text:
        why = "a slash"
    if why is None and len(f"{text}{SUFFIX}".encode()) > paths.MAX_SEGMENT_BYTES:
        why = f"longer than {paths.MAX_SEGMENT_BYTES - len(SUFFIX)} bytes"
    if why is None and text != text.strip():
        why = "a space at its edge"
    if why is None and text.startswith("."):
        why = "a dot at its beginning"
    if why is not None:
        raise ModelInvalid(f"a model cannot be called {text!r}: {why}", hint="choose another name")
    _check_reserved(text, "a model")
    return text


def is_id(text: str) -> bool:
    """Say whether a text has the form of a model's id."""
    return _UUID.fullmatch(text) is not None


def _check_reserved(segment: str, what: str) -> None:
    why = paths.reserved_name(segment)
    if why is not None:
        raise ModelInvalid(f"{what} cannot be called {segment!r}: {why}", hint="choose another name")


KEYS = ("id", "name", "type", "arguments", "methods", "tags")
METHOD_KEYS = ("arguments",)
REQUIRED = ("id", "name", "type")


class Definition(SelectiveStruct, frozen=True):
    """A model: what it is, what its methods get, and the tags of what it makes. `path` is relative to the repo.

    `arguments` are for every method that takes them, `methods` has, under `arguments`, those of one. `lines` says on
    which line of the file each of them stands.
    """

    uncompared: ClassVar[tuple[str, ...]] = ("lines",)
    unshown: ClassVar[tuple[str, ...]] = ("lines",)

    id: str
    name: str
    type: str
    arguments: Mapping[str, object]
    methods: Mapping[str, object]
    tags: Mapping[str, str]
    path: str
    lines: Lines = field(default_factory=dict)

    @property
    def ref(self) -> ModelRef:
        return ModelRef(self.type, self.id, self.name)

    def method_arguments(self, method: str) -> Mapping[str, object]:
        """Return what is said for one method alone."""
        said = cast("Mapping[str, Any]", self.methods.get(method) or {})
        return said.get("arguments") or {}

    def where(self, place: Place) -> str:
        """Say where something of this definition stands: file and line."""
        line = nearest_line(self.lines, place)
        return self.path if line is None else f"{self.path}, line {line}"


def load_definition(repo: Repo, path: str) -> Definition:
    """Read the definition at `path`; `ModelInvalid` names the file, the line and what is wrong with it."""
    source = _source(repo.root, path)
    for key in REQUIRED:
        if key not in source.value:
            raise ModelInvalid(f"{path}: it has no {key}", hint=f"a definition has {', '.join(REQUIRED)}")
    found = Definition(
        id=_text(source, "id"),
        name=_text(source, "name"),
        type=_text(source, "type"),
        arguments=_mapping(source, "arguments"),
        methods=_mapping(source, "methods"),
        tags=_texts(source, "tags"),
        path=path,
        lines=source.lines,
    )
    _check_methods(source, found.methods)
    if not is_id(found.id):
        raise _wrong(source, ("id",), f"id is not a UUID: {found.id}", "bring back the line that was committed")
    kind, name = checked_place(path)
    for key, said, meant in (("name", found.name, name), ("type", found.type, kind)):
        if said != meant:
            problem = f"{key} is {said}, but the file's place says {meant}"
            raise _wrong(source, (key,), problem, "move the file, or change the line")
    return found


def place(path: str) -> tuple[str, str]:
    """Return the type and the name that a definition's path says."""
    directory, _, file = path.removeprefix(f"{FOLDER}/").rpartition("/")
    return directory, file.rpartition(".")[0]


def checked_place(path: str) -> tuple[str, str]:
    """Return the type and the name that a definition's path says, or raise `ModelInvalid` if either cannot be."""
    kind, name = place(path)
    try:
        return check_type(kind), check_name(name)
    except ModelInvalid as error:
        raise ModelInvalid(f"{path}: {error.message}", hint="move the file") from None


def _source(root: Path, path: str) -> Source:
    """Return what a YAML file says; an unknown or repeated key is an error."""
    try:
        source = parse_source(read_definition(root, path), path)
    except Unreadable as error:
        where = f", line {error.line}: " if isinstance(error, Unusable) else f": line {error.line}, "
        raise ModelInvalid(f"{path}{where if error.line else ': '}{error}", hint=error.hint) from None
    if not isinstance(source.value, dict):
        raise ModelInvalid(f"{path}: not a mapping of keys to values", hint=f"known keys: {', '.join(KEYS)}")
    for at in source.lines:  # and not in what it says, where a merge has gone
        if len(at) == 1 and at[0] not in KEYS:
            raise _unknown(source, at, KEYS)
    return source


def read_definition(root: Path, path: str, invalid: type[BayouError] = ModelInvalid) -> bytes:
    """Return the bytes of a file that defines something, no more than are read of one; `invalid` if it cannot."""
    if leads_out(root, path):
        raise invalid(f"{path} leads out of the repo, through a link, and is not read", hint="remove the link")
    try:
        with open(root / path, "rb", opener=not_blocking) as opened:
            return read_at_most(opened, limits.DEFINITION_BYTES)
    except OSError as error:
        raise invalid(f"cannot read {path}: {error.strerror}", hint="check its permissions") from None


def _check_methods(source: Source, methods: Mapping[str, object]) -> None:
    """Check that each method has nothing but arguments, and that they are named."""
    for method, said in methods.items():
        if said is not None and not isinstance(said, dict):
            raise _wrong(source, ("methods", method), f"methods.{method} must be a mapping", "as {arguments: {…}}")
        for key, value in (said or {}).items():
            at = ("methods", method, key)
            if key not in METHOD_KEYS:
                raise _unknown(source, at, METHOD_KEYS)
            if value is not None and not isinstance(value, dict):
                problem = f"methods.{method}.{key} must be a mapping of names to values"
                raise _wrong(source, at, problem, f"leave out {key} where it has none")


def _unknown(source: Source, at: Place, known: tuple[str, ...]) -> ModelInvalid:
    hint = did_you_mean(str(at[-1]), known, f"known keys: {', '.join(known)}")
    return _wrong(source, at, f"unknown key {at[-1]}", hint)


def _text(source: Source, key: str) -> str:
    said = source.value[key]
    if not isinstance(said, str) or not said:
        raise _wrong(source, (key,), f"{key} must be a text", "put it in quotes")
    return said


def _mapping(source: Source, key: str) -> Mapping[str, object]:
    said = source.value.get(key)
    if said is None:
        return {}
    if not isinstance(said, dict):
        raise _wrong(
            source, (key,), f"{key} must be a mapping of names to values", f"leave out {key} where it has none"
        )
    return said


def _texts(source: Source, key: str) -> Mapping[str, str]:
    found = _mapping(source, key)
    for name, value in found.items():
        if not isinstance(value, str):
            raise _wrong(source, (key, name), f"{key} must be texts", 'put each in quotes, as cost: "12"')
    return cast("Mapping[str, str]", found)


def _wrong(source: Source, at: Place, problem: str, hint: str) -> ModelInvalid:
    return ModelInvalid(f"{source.where(at)}: {problem}", hint=hint)
