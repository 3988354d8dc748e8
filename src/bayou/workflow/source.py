"""A workflow's file as people wrote it: what it says, and the line of everything in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bayou.errors import WorkflowInvalid
from bayou.model.lines import Lines, Place, Unusable, check_plain, lines_of, nearest
from bayou.quick import dataclass


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
    try:
        data = (root / path).read_bytes()
    except OSError as error:
        raise WorkflowInvalid(f"cannot read {path}: {error.strerror}", hint="check its permissions") from None
    return parse_source(data, path)


def parse_source(data: bytes, path: str) -> Source:
    """Take YAML apart; a key that stands twice, or what is no value of JSON, is an error."""
    import yaml  # noqa: PLC0415  (it takes longer to load than most commands do)

    try:
        loader = yaml.CSafeLoader(data)
    except yaml.YAMLError as error:  # not even text
        raise WorkflowInvalid(f"{path}: {_one_line(error)}", hint="save it as UTF-8") from None
    try:
        node = loader.get_single_node()
        if node is None:
            return Source(path, None, {})
        lines = lines_of(node)
        value = loader.construct_document(node)
        check_plain(value, lines)
    except Unusable as error:
        raise WorkflowInvalid(f"{path}, line {error.line}: {error.problem}", hint=error.hint) from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that is none
        raise WorkflowInvalid(f"{path}, {_one_line(error)}", hint="mend the line that it names") from None
    finally:
        loader.dispose()
    return Source(path, value, lines)


def _one_line(error: Any) -> str:
    """Put an error of the YAML parser into one line, with the place that it names."""
    mark = getattr(error, "problem_mark", None)
    where = f"line {mark.line + 1}: " if mark is not None else ""
    return where + " ".join((getattr(error, "problem", None) or str(error)).split())
