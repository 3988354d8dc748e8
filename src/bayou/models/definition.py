"""`Definition`: one model, as its file `models/<type…>/<name>.yaml` defines it; and the names of types and models.

Names must be safe as directories on every machine and as keys in every store (V21). The path of a file decides its type
and its name; the file repeats them, and must agree.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, cast

from msgspec import field

from bayou.core import limits, paths
from bayou.core.documents import (
    KeyPath,
    Lines,
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
KEYS = ("id", "name", "type", "arguments", "methods", "tags")
METHOD_KEYS = ("arguments",)
REQUIRED = ("id", "name", "type")

_SEGMENT = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_TYPE = re.compile(rf"@?{_SEGMENT}(?:/{_SEGMENT})*", re.ASCII)
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_MAX_TYPE = 200
"""A path has 800 bytes: this leaves room for the longest name of an item, and the rest of its path."""


class Definition(SelectiveStruct, frozen=True):
    """A model: its type, the arguments of its methods, and the tags of its data. `path` is relative to the repo.

    `arguments` are for every method that takes them; `methods` has, under `arguments`, those of a single method.
    `lines` has the line of the file for each of them.
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
        """Return the arguments of one method alone."""
        settings = cast("Mapping[str, Any]", self.methods.get(method) or {})
        return settings.get("arguments") or {}

    def where(self, key_path: KeyPath) -> str:
        """Return the file and line of a part of this definition, for messages."""
        line = nearest_line(self.lines, key_path)
        return self.path if line is None else f"{self.path}, line {line}"


def load_definition(repo: Repo, path: str) -> Definition:
    """Read the definition at `path`; `ModelInvalid` names the file, the line and what is wrong."""
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
        raise _invalid(source, ("id",), f"id is not a UUID: {found.id}", "bring back the line that was committed")
    kind, name = checked_type_and_name(path)
    for key, value, expected in (("name", found.name, name), ("type", found.type, kind)):
        if value != expected:
            problem = f"{key} is {value}, but the file's place says {expected}"
            raise _invalid(source, (key,), problem, "move the file, or change the line")
    return found


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
    """Return a model's name, or raise `ModelInvalid` with the reason. Any letters; spaces and dots inside are fine."""
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
    """Return whether a text has the form of a model's id."""
    return _UUID.fullmatch(text) is not None


def type_and_name(path: str) -> tuple[str, str]:
    """Return the type and the name of the definition at a path."""
    directory, _, file = path.removeprefix(f"{FOLDER}/").rpartition("/")
    return directory, file.rpartition(".")[0]


def checked_type_and_name(path: str) -> tuple[str, str]:
    """Return the type and the name of the definition at a path, or raise `ModelInvalid` if either is not allowed."""
    kind, name = type_and_name(path)
    try:
        return check_type(kind), check_name(name)
    except ModelInvalid as error:
        raise ModelInvalid(f"{path}: {error.message}", hint="move the file") from None


def read_definition(root: Path, path: str, invalid: type[BayouError] = ModelInvalid) -> bytes:
    """Return the bytes of a definition, at most a little more than the limit; raise `invalid` if it cannot be read."""
    if leads_out(root, path):
        raise invalid(f"{path} leads out of the repo, through a link, and is not read", hint="remove the link")
    try:
        with open(root / path, "rb", opener=not_blocking) as opened:
            return read_at_most(opened, limits.DEFINITION_BYTES)
    except OSError as error:
        raise invalid(f"cannot read {path}: {error.strerror}", hint="check its permissions") from None


def _source(root: Path, path: str) -> Source:
    """Parse a YAML file; an unknown or repeated key is an error."""
    try:
        source = parse_source(read_definition(root, path), path)
    except Unreadable as error:
        where = f", line {error.line}: " if isinstance(error, Unusable) else f": line {error.line}, "
        raise ModelInvalid(f"{path}{where if error.line else ': '}{error}", hint=error.hint) from None
    if not isinstance(source.value, dict):
        raise ModelInvalid(f"{path}: not a mapping of keys to values", hint=f"known keys: {', '.join(KEYS)}")
    for at in source.lines:  # not in the value, which has the merged keys
        if len(at) == 1 and at[0] not in KEYS:
            raise _unknown(source, at, KEYS)
    return source


def _check_reserved(segment: str, what: str) -> None:
    why = paths.reserved_name(segment)
    if why is not None:
        raise ModelInvalid(f"{what} cannot be called {segment!r}: {why}", hint="choose another name")


def _check_methods(source: Source, methods: Mapping[str, object]) -> None:
    """Check that each method has only arguments, and that these are a mapping."""
    for method, settings in methods.items():
        if settings is not None and not isinstance(settings, dict):
            raise _invalid(source, ("methods", method), f"methods.{method} must be a mapping", "as {arguments: {…}}")
        for key, value in (settings or {}).items():
            at = ("methods", method, key)
            if key not in METHOD_KEYS:
                raise _unknown(source, at, METHOD_KEYS)
            if value is not None and not isinstance(value, dict):
                problem = f"methods.{method}.{key} must be a mapping of names to values"
                raise _invalid(source, at, problem, f"leave out {key} where it has none")


def _unknown(source: Source, at: KeyPath, known: tuple[str, ...]) -> ModelInvalid:
    hint = did_you_mean(str(at[-1]), known, f"known keys: {', '.join(known)}")
    return _invalid(source, at, f"unknown key {at[-1]}", hint)


def _text(source: Source, key: str) -> str:
    value = source.value[key]
    if not isinstance(value, str) or not value:
        raise _invalid(source, (key,), f"{key} must be a text", "put it in quotes")
    return value


def _mapping(source: Source, key: str) -> Mapping[str, object]:
    value = source.value.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _invalid(
            source, (key,), f"{key} must be a mapping of names to values", f"leave out {key} where it has none"
        )
    return value


def _texts(source: Source, key: str) -> Mapping[str, str]:
    found = _mapping(source, key)
    for name, value in found.items():
        if not isinstance(value, str):
            raise _invalid(source, (key, name), f"{key} must be texts", 'put each in quotes, as cost: "12"')
    return cast("Mapping[str, str]", found)


def _invalid(source: Source, at: KeyPath, problem: str, hint: str) -> ModelInvalid:
    return ModelInvalid(f"{source.where(at)}: {problem}", hint=hint)
