"""`Workflow`: a workflow as its file defines it, with inputs, jobs, steps and dependencies; and reading its YAML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, field

from bayou.core import documents
from bayou.core.documents import KeyPath, Source, Unreadable
from bayou.core.errors import WorkflowInvalid
from bayou.models.definition import read_definition
from bayou.sync.plan.policy import ModelRef

FOLDER = "workflows"
SUFFIX = ".yaml"

When = Literal["succeeded", "failed", "always"]
WHEN: tuple[When, ...] = ("succeeded", "failed", "always")
DEFAULT_CONCURRENCY = 4
MAX_RETRIES = 20
MAX_DELAY_S = 24 * 3600.0
MAX_TIMEOUT_S = 7 * 24 * 3600.0


class Edge(Struct, frozen=True):
    """A dependency: the step or job that comes before, and how it must have ended."""

    on: str
    when: When
    key_path: KeyPath


class Step(Struct, frozen=True):
    """A model's method, or an assertion. With `for_each` it runs once for each element.

    A method that fails is run again up to `retries` times; `timeout_s` is for each attempt.
    """

    name: str
    job: str
    key_path: KeyPath
    model: str | None = None
    method: str | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    asserts: tuple[str, ...] = ()
    message: str | None = None
    depends_on: tuple[Edge, ...] = ()
    for_each: Any = None
    guard: str | bool | None = None
    allow_failure: bool = False
    concurrency: int | None = None
    retries: int = 0
    retry_delay_s: float = 0.0
    timeout_s: float | None = None


class Job(Struct, frozen=True):
    """Steps that belong together. They run concurrently, unless one depends on another."""

    name: str
    key_path: KeyPath
    steps: tuple[Step, ...]
    depends_on: tuple[Edge, ...] = ()
    guard: str | bool | None = None
    concurrency: int | None = None


class Workflow(Struct, frozen=True):
    """One workflow. `inputs` has a JSON schema for each input."""

    id: str
    name: str
    source: Source
    jobs: tuple[Job, ...]
    inputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    concurrency: int = DEFAULT_CONCURRENCY

    @property
    def path(self) -> str:
        """Its file, relative to the repo."""
        return self.source.path

    @property
    def ref(self) -> WorkflowRef:
        return WorkflowRef("workflow", self.id, self.name)

    def steps(self) -> Iterator[tuple[Job, Step]]:
        for job in self.jobs:
            for step in job.steps:
                yield job, step


class WorkflowRef(ModelRef, frozen=True):
    """A workflow as the owner of records: sessions take its lease, and pull its prefixes."""

    def prefixes(self) -> tuple[str, ...]:
        return f"workflow-runs/{self.id}/", f"workflows-evaluated/{self.id}/"


def read_source(root: Path, path: str) -> Source:
    """Read a YAML file; `WorkflowInvalid` names the line of a syntax error."""
    return parse_source(read_definition(root, path, WorkflowInvalid), path)


def parse_source(data: bytes, path: str) -> Source:
    """Parse YAML; a repeated key, or a value that JSON does not have, is an error."""
    try:
        return documents.parse_source(data, path)
    except Unreadable as error:
        where = f", line {error.line}" if error.line is not None else ""
        raise WorkflowInvalid(f"{path}{where}: {error}", hint=error.hint) from None
