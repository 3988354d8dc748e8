"""The file of a workflow: where it is read, and what is said of one that is no YAML."""

from __future__ import annotations

from pathlib import Path

from bayou.core import documents
from bayou.core.documents import Source, Unreadable
from bayou.core.errors import WorkflowInvalid
from bayou.models.definition import read_definition


def read_source(root: Path, path: str) -> Source:
    """Read a YAML file; `WorkflowInvalid` names the line that is no YAML."""
    return parse_source(read_definition(root, path, WorkflowInvalid), path)


def parse_source(data: bytes, path: str) -> Source:
    """Take YAML apart; a key that stands twice, or what is no value of JSON, is an error."""
    try:
        return documents.parse_source(data, path)
    except Unreadable as error:
        where = f", line {error.line}" if error.line is not None else ""
        raise WorkflowInvalid(f"{path}{where}: {error}", hint=error.hint) from None
