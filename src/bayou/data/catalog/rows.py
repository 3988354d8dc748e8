"""The rows of the catalog: one version, one output, one run. They have all that a list shows, and no content."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field


class VersionRow(Struct, frozen=True):
    """One version of an item. Queries compute `latest`; the catalog does not store it.

    `type`, `model_id`, `name` and `version` come from the path in the tree, the other fields from the metadata.
    """

    model: str
    model_id: str
    type: str
    name: str
    version: int
    id: str
    size: int
    sha256: str | None
    content_type: str
    created_at: str
    tags: Mapping[str, str] = field(default_factory=dict)
    lifetime: str | None = None
    keep: str | None = None
    streaming: bool = False
    deleted: bool = False
    renamed_to: str | None = None
    run: str | None = None
    workflow: str | None = None
    job: str | None = None
    step: str | None = None
    output: str | None = None
    repo: str | None = None
    latest: bool = False
    files: int | None = None

    @property
    def item(self) -> tuple[str, str, str]:
        """The key of the item: all its versions have it."""
        return self.type, self.model_id, self.name

    @property
    def directory(self) -> str:
        """The version's directory in the tree."""
        return f"data/{self.type}/{self.model_id}/{self.name}/{self.version}"

    @property
    def metadata_path(self) -> str:
        return f"{self.directory}/metadata.yaml"

    @property
    def raw_path(self) -> str:
        """The path of the content: of a version of many files, of its manifest."""
        return f"{self.directory}/{'raw' if self.files is None else 'manifest.json'}"


class SavedVersion(Struct, frozen=True):
    """A version that a method saved, as the method's output records it."""

    name: str
    version: int
    size: int
    sha256: str | None


class OutputRow(Struct, frozen=True):
    """One run of a method, without its inputs."""

    id: str
    model: str
    model_id: str
    type: str
    method: str
    status: str
    started_at: str
    finished_at: str | None = None
    duration_s: float | None = None
    data: tuple[SavedVersion, ...] = ()
    error: str | None = None
    run: str | None = None
    workflow: str | None = None
    job: str | None = None
    step: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return f"outputs/{self.type}/{self.model_id}/{self.id}.yaml"


class RunRow(Struct, frozen=True):
    """One run of a workflow, without its jobs. `words` is the text that a search looks at."""

    run_id: str
    workflow_id: str
    workflow: str
    status: str
    started_at: str
    finished_at: str | None = None
    failed_step: str | None = None
    by: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    words: str = ""

    @property
    def path(self) -> str:
        return f"workflow-runs/{self.workflow_id}/{self.run_id}.yaml"
