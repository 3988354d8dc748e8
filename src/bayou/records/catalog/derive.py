"""What a record's file says, as a row of the catalog.

Writers and rebuilds derive rows by the same functions, so a row does not tell who made it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from bayou.core import limits
from bayou.core.clock import format_utc, parse_utc
from bayou.core.errors import RecordDamaged
from bayou.records import document
from bayou.records.catalog.rows import Made, OutputRow, RunRow, VersionRow
from bayou.records.layout import names_metadata, version_path
from bayou.records.metadata import Metadata

Row = VersionRow | OutputRow | RunRow
Fields = Mapping[str, Any]

ROOTS = ("data", "outputs", "workflow-runs")
"""The payload roots that the catalog tells of."""

_OUTPUT = re.compile(r"outputs/(?P<type>.+)/(?P<model_id>[^/]+)/(?P<id>[^/]+)\.yaml")
_RUN = re.compile(r"workflow-runs/(?P<workflow_id>[^/]+)/(?P<run_id>[^/]+)\.yaml")
_WORDS_OF_STEP = ("name", "model", "method", "error")


def is_record(path: str) -> bool:
    """Say whether the file at `path` has a row in the catalog, or is named there as bad."""
    if path.startswith("data/"):
        return names_metadata(path)
    return _OUTPUT.fullmatch(path) is not None or _RUN.fullmatch(path) is not None


def derive(path: str, data: bytes) -> Row:
    """Return the row of a record's file; `RecordDamaged` if it does not say what it should."""
    if path.startswith("data/"):
        return version_row(path, Metadata.from_bytes(data, path))
    fields = document.load(data, path)
    return output_row(path, fields) if path.startswith("outputs/") else run_row(path, fields)


def version_row(path: str, metadata: Metadata) -> VersionRow:
    """Return the row of a version. Its place is what the path of its `metadata.yaml` says, whatever stands in it."""
    place = version_path(path)
    if place is None:
        raise document.damaged(path, f"the number of a version is at most {limits.VERSION_MAX}")
    owner = metadata.owner
    return VersionRow(
        model=owner.model,
        model_id=place.model_id,
        type=place.type,
        name=place.name,
        version=place.version,
        id=metadata.id,
        size=metadata.size,
        sha256=metadata.sha256,
        content_type=metadata.content_type,
        created_at=_time(path, "created_at", metadata.created_at),
        tags=metadata.tags,
        lifetime=metadata.lifetime,
        keep=metadata.keep,
        streaming=metadata.streaming,
        deleted=metadata.deleted,
        renamed_to=metadata.renamed_to,
        run=owner.run,
        workflow=owner.workflow,
        job=owner.job,
        step=owner.step,
        output=owner.output,
        repo=owner.repo,
    )


def output_row(path: str, fields: Fields) -> OutputRow:
    """Return the row of an output from the fields of its file."""
    place = _OUTPUT.fullmatch(path)
    assert place is not None
    return OutputRow(
        id=place["id"],
        model=text_in(path, fields, "model"),
        model_id=place["model_id"],
        type=place["type"],
        method=text_in(path, fields, "method"),
        status=text_in(path, fields, "status"),
        started_at=_time(path, "started_at", text_in(path, fields, "started_at")),
        finished_at=maybe_text_in(path, fields, "finished_at"),
        duration_s=number_in(path, fields, "duration_s"),
        data=tuple(made_in(path, one) for one in records_in(path, fields, "data")),
        error=maybe_text_in(path, fields, "error"),
        run=maybe_text_in(path, fields, "run"),
        workflow=maybe_text_in(path, fields, "workflow"),
        job=maybe_text_in(path, fields, "job"),
        step=maybe_text_in(path, fields, "step"),
        tags=_tags(path, fields),
    )


def run_row(path: str, fields: Fields) -> RunRow:
    """Return the row of a workflow run from the fields of its file."""
    place = _RUN.fullmatch(path)
    assert place is not None
    return RunRow(
        run_id=place["run_id"],
        workflow_id=place["workflow_id"],
        workflow=text_in(path, fields, "workflow"),
        status=text_in(path, fields, "status"),
        started_at=_time(path, "started_at", text_in(path, fields, "started_at")),
        finished_at=maybe_text_in(path, fields, "finished_at"),
        failed_step=maybe_text_in(path, fields, "failed_step"),
        by=maybe_text_in(path, fields, "by"),
        tags=_tags(path, fields),
        words=_words(path, fields),
    )


def _words(path: str, fields: Fields) -> str:
    """Return what a search for text looks at: who, what, with which inputs, and what went wrong."""
    found = [fields["workflow"], fields.get("by"), fields.get("failed_step")]
    for mapping in (fields.get("inputs"), fields.get("tags")):
        if isinstance(mapping, dict):
            found += [f"{key}={value}" for key, value in mapping.items()]
    for job in records_in(path, fields, "jobs"):
        found.append(job.get("name"))
        for step in records_in(path, job, "steps"):
            found += [step.get(key) for key in _WORDS_OF_STEP]
    return "\n".join(str(one) for one in found if one).casefold()


def made_in(path: str, found: Fields) -> Made:
    """Return what a record says of one version that it made; `RecordDamaged` if that is not whole."""
    name, version, size, sha256 = (found.get(key) for key in ("name", "version", "size", "sha256"))
    if not (isinstance(name, str) and type(version) is int and type(size) is int):
        raise _wrong(path, "data")
    if not (0 < version <= limits.VERSION_MAX and 0 <= size <= limits.SIZE_MAX):
        raise _wrong(path, "data")
    return Made(name, version, size, sha256 if isinstance(sha256, str) else None)


def _time(path: str, key: str, text: str) -> str:
    """Return a time as Bayou writes it, so that times can be compared as they stand."""
    try:
        return format_utc(parse_utc(text))
    except ValueError:
        raise _wrong(path, key) from None


def text_in(path: str, fields: Fields, key: str) -> str:
    """Return the text of a field; `RecordDamaged` if it is missing or something else. So do those that follow."""
    value = fields.get(key)
    if not isinstance(value, str):
        raise _wrong(path, key)
    return value


def maybe_text_in(path: str, fields: Fields, key: str) -> str | None:
    """Return the text of a field that may be missing."""
    return None if fields.get(key) is None else text_in(path, fields, key)


def number_in(path: str, fields: Fields, key: str) -> float | None:
    """Return the number of a field that may be missing: a finite one."""
    value = fields.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= limits.COUNT_MAX:
        raise _wrong(path, key)
    return float(value)


def records_in(path: str, fields: Fields, key: str) -> list[Fields]:
    """Return the list of mappings that a field is; none if it is missing."""
    value = fields.get(key) or []
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise _wrong(path, key)
    return value


def _tags(path: str, fields: Fields) -> Mapping[str, str]:
    value = fields.get("tags") or {}
    if not isinstance(value, dict) or not all(isinstance(one, str) for pair in value.items() for one in pair):
        raise _wrong(path, "tags")
    return value


def _wrong(path: str, key: str) -> RecordDamaged:
    return RecordDamaged(
        f"{path} cannot be read: {key} is missing or not what it should be",
        hint="bayou datastore verify says whether it is what was stored",
    )
