"""One definition, as its file has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, cast

from bayou import limits
from bayou.core.suggest import did_you_mean
from bayou.documents import Unreadable, compose_yaml, construct_yaml, not_blocking, read_at_most
from bayou.errors import ModelInvalid
from bayou.model.lines import Lines, Place, Unusable, check_plain, lines_of, nearest
from bayou.model.names import FOLDER, check_name, check_type, is_id
from bayou.quick import dataclass
from bayou.repo import Repo, leads_out
from bayou.sync.scope import ModelRef

KEYS = ("id", "name", "type", "arguments", "methods", "tags")
METHOD_KEYS = ("arguments",)
REQUIRED = ("id", "name", "type")


@dataclass(frozen=True, slots=True)
class Definition:
    """A model: what it is, what its methods get, and the tags of what it makes. `path` is relative to the repo.

    `arguments` are for every method that takes them, `methods` has, under `arguments`, those of one. `lines` says on
    which line of the file each of them stands.
    """

    id: str
    name: str
    type: str
    arguments: Mapping[str, object]
    methods: Mapping[str, object]
    tags: Mapping[str, str]
    path: str
    lines: Lines = field(default_factory=dict, compare=False, repr=False)

    @property
    def ref(self) -> ModelRef:
        return ModelRef(self.type, self.id, self.name)

    def method_arguments(self, method: str) -> Mapping[str, object]:
        """Return what is said for one method alone."""
        said = cast("Mapping[str, Any]", self.methods.get(method) or {})
        return said.get("arguments") or {}

    def where(self, place: Place) -> str:
        """Say where something of this definition stands: file and line."""
        line = nearest(self.lines, place)
        return self.path if line is None else f"{self.path}, line {line}"


@dataclass(frozen=True, slots=True)
class _Field:
    """A value of the file, the line that it stands on, and those of what is in it."""

    value: object
    line: int
    inside: Lines


def load_definition(repo: Repo, path: str) -> Definition:
    """Read the definition at `path`; `ModelInvalid` names the file, the line and what is wrong with it."""
    fields = _fields(repo.root, path)
    for key in REQUIRED:
        if key not in fields:
            raise ModelInvalid(f"{path}: it has no {key}", hint=f"a definition has {', '.join(REQUIRED)}")
    found = Definition(
        id=_text(path, fields, "id"),
        name=_text(path, fields, "name"),
        type=_text(path, fields, "type"),
        arguments=_mapping(path, fields, "arguments"),
        methods=_mapping(path, fields, "methods"),
        tags=_texts(path, fields, "tags"),
        path=path,
        lines={(key, *place): line for key, said in fields.items() for place, line in said.inside.items()},
    )
    _check_methods(path, fields)
    if not is_id(found.id):
        raise _wrong(path, fields["id"], f"id is not a UUID: {found.id}", "bring back the line that was committed")
    kind, name = checked_place(path)
    for key, said, meant in (("name", found.name, name), ("type", found.type, kind)):
        if said != meant:
            problem = f"{key} is {said}, but the file's place says {meant}"
            raise _wrong(path, fields[key], problem, "move the file, or change the line")
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


def _fields(root: Path, path: str) -> dict[str, _Field]:
    """Return the top keys of a YAML file, each with its line; an unknown or repeated one is an error."""
    import yaml  # noqa: PLC0415  (it takes longer to load than most commands do)

    try:
        node = compose_yaml(read_definition(root, path), limits.DEFINITION_BYTES, limits.DEFINITION_VALUES)
        if not isinstance(node, yaml.MappingNode):
            raise ModelInvalid(f"{path}: not a mapping of keys to values", hint=f"known keys: {', '.join(KEYS)}")
        fields: dict[str, _Field] = {}
        for key_node, value_node in node.value:
            key, line = str(key_node.value), key_node.start_mark.line + 1
            if key not in KEYS:
                raise _unknown(path, line, key, KEYS)
            if key in fields:
                raise Unusable(line, f"{key} stands there twice", "keep one of them")
            inside = lines_of(value_node)
            value = construct_yaml(value_node)
            check_plain(value, inside)
            fields[key] = _Field(value, value_node.start_mark.line + 1, inside)
        return fields
    except Unusable as error:
        raise ModelInvalid(f"{path}, line {error.line}: {error.problem}", hint=error.hint) from None
    except Unreadable as error:
        where = f"line {error.line}, " if error.line is not None else ""
        hint = "mend the line that it names" if where else "save it as YAML, in UTF-8"
        raise ModelInvalid(f"{path}: {where}{error}", hint=hint) from None


def read_definition(root: Path, path: str) -> bytes:
    """Return the bytes of a file that defines something, no more than are read of one; `ModelInvalid` if it cannot."""
    if leads_out(root, path):
        raise ModelInvalid(f"{path} leads out of the repo, through a link, and is not read", hint="remove the link")
    try:
        with open(root / path, "rb", opener=not_blocking) as opened:
            return read_at_most(opened, limits.DEFINITION_BYTES)
    except OSError as error:
        raise ModelInvalid(f"cannot read {path}: {error.strerror}", hint="check its permissions") from None


def _check_methods(path: str, fields: Mapping[str, _Field]) -> None:
    """Check that each method has nothing but arguments, and that they are named."""
    for method, said in _mapping(path, fields, "methods").items():
        # A key that a merge brought here has no line of its own.
        inside, first = fields["methods"].inside, fields["methods"].line
        line = nearest(inside, (method,)) or first
        if said is not None and not isinstance(said, dict):
            raise _wrong_at(path, line, f"methods.{method} must be a mapping", "as {arguments: {…}}")
        for key, value in (said or {}).items():
            if key not in METHOD_KEYS:
                raise _unknown(path, nearest(inside, (method, key)) or line, key, METHOD_KEYS)
            if value is not None and not isinstance(value, dict):
                problem = f"methods.{method}.{key} must be a mapping of names to values"
                where = nearest(inside, (method, key)) or line
                raise _wrong_at(path, where, problem, f"leave out {key} where it has none")


def _unknown(path: str, line: int, key: str, known: tuple[str, ...]) -> ModelInvalid:
    hint = did_you_mean(key, known, f"known keys: {', '.join(known)}")
    return ModelInvalid(f"{path}, line {line}: unknown key {key}", hint=hint)


def _text(path: str, fields: Mapping[str, _Field], key: str) -> str:
    said = fields[key]
    if not isinstance(said.value, str) or not said.value:
        raise _wrong(path, said, f"{key} must be a text", "put it in quotes")
    return said.value


def _mapping(path: str, fields: Mapping[str, _Field], key: str) -> Mapping[str, object]:
    said = fields.get(key)
    if said is None or said.value is None:
        return {}
    if not isinstance(said.value, dict):
        raise _wrong(path, said, f"{key} must be a mapping of names to values", f"leave out {key} where it has none")
    return said.value


def _texts(path: str, fields: Mapping[str, _Field], key: str) -> Mapping[str, str]:
    found = _mapping(path, fields, key)
    if not all(isinstance(value, str) for value in found.values()):
        raise _wrong(path, fields[key], f"{key} must be texts", 'put each in quotes, as cost: "12"')
    return cast("Mapping[str, str]", found)


def _wrong(path: str, said: _Field, problem: str, hint: str) -> ModelInvalid:
    return _wrong_at(path, said.line, problem, hint)


def _wrong_at(path: str, line: int, problem: str, hint: str) -> ModelInvalid:
    return ModelInvalid(f"{path}, line {line}: {problem}", hint=hint)
