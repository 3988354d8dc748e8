"""A workflow's file as people wrote it: what it says, and the line of everything in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bayou import limits
from bayou.documents import Unreadable, compose_yaml, construct_yaml, not_blocking, read_at_most
from bayou.errors import WorkflowInvalid
from bayou.model.lines import Lines, Place, Unusable, check_plain, lines_of, nearest
from bayou.quick import dataclass
from bayou.repo import leads_out


@dataclass(frozen=True, slots=True)
class Source:
    """What a file says. `path` is relative to the repo."""

    path: str
    value: Any
    lines: Lines

    def where(self, place: Place = ()) -> str:
        """Name a place for people: the file, and the line of the value or of the nearest that it stands in."""
        return f"{self.path}, line {nearest(self.lines, place) or 1}"


def read_source(root: Path, path: str) -> Source:
    """Read a YAML file; `WorkflowInvalid` names the line that is no YAML."""
    if leads_out(root, path):
        raise WorkflowInvalid(f"{path} leads out of the repo, through a link, and is not read", hint="remove the link")
    try:
        with open(root / path, "rb", opener=not_blocking) as file:
            data = read_at_most(file, limits.DEFINITION_BYTES)
    except OSError as error:
        raise WorkflowInvalid(f"cannot read {path}: {error.strerror}", hint="check its permissions") from None
    return parse_source(data, path)


def parse_source(data: bytes, path: str) -> Source:
    """Take YAML apart; a key that stands twice, or what is no value of JSON, is an error."""
    try:
        node = compose_yaml(data, limits.DEFINITION_BYTES, limits.DEFINITION_VALUES)
        if node is None:
            return Source(path, None, {})
        lines = lines_of(node)
        value = construct_yaml(node)
        check_plain(value, lines)
    except Unusable as error:
        raise WorkflowInvalid(f"{path}, line {error.line}: {error.problem}", hint=error.hint) from None
    except Unreadable as error:
        where = f", line {error.line}" if error.line is not None else ""
        hint = "mend the line that it names" if where else "save it as YAML, in UTF-8"
        raise WorkflowInvalid(f"{path}{where}: {error}", hint=hint) from None
    return Source(path, value, lines)
