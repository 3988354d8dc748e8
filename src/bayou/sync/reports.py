"""What the commands around a sync did or found (V17); a sync itself needs none of it."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from bayou.sync.report import Conflict, Failure, Refusal


class SetupReport(Struct, frozen=True):
    """The outcome of `datastore setup`."""

    url: str
    namespace: str | None
    pushed: int
    pulled: int
    bytes_pushed: int
    bytes_pulled: int
    discovered: bool
    migrated: int
    refused: list[Refusal]
    conflicts: list[Conflict]
    warnings: list[str]
    unfinished: str | None = None
    """Why the push or the hydration did not end in time, if so; the configuration is written all the same."""


class IndexStatus(Struct, frozen=True):
    seq: int
    commit: str
    entries: int
    bytes: int
    root: str | None


class Status(Struct, frozen=True):
    """What `datastore status` tells. `index` is None where there is no head, or no store at all.

    `healthy` is None where nobody has asked the store: offline.
    """

    url: str
    namespace: str | None
    healthy: bool | None
    latency_ms: int | None
    message: str
    index: IndexStatus | None
    in_sync: bool
    base_seq: int | None
    journal_paths: int
    journal_bulk: bool
    hydrate: str
    tree: str


class VerifyReport(Struct, frozen=True):
    """What `datastore verify` found. Leftovers of unfinished pushes and trash are no damage."""

    checked: int
    missing: list[str]
    changed: list[str]
    unindexed: list[str]
    leftovers: int
    trash: int
    repaired: int
    refused: list[Refusal] = field(default_factory=list)
    unsafe: list[Refusal] = field(default_factory=list)
    """Rows of the index or its trash that nothing is done by, and why; `--forget` takes a path as this has it."""
    damaged: list[str] = field(default_factory=list)
    """Pieces of the index itself: nodes, and pages of the log."""
    unrecovered: list[str] = field(default_factory=list)
    """What a rebuilding of the index could not bring back: paths, or how many of a range."""
    warnings: list[str] = field(default_factory=list)
    totals: Mapping[str, int] = field(default_factory=dict)
    """How many there are of what a list names only the first of: `missing`, `changed`, `unindexed`, `refused`,
    `unsafe`."""

    @property
    def ok(self) -> bool:
        return not (self.missing or self.changed or self.unsafe or self.damaged or self.unrecovered)


class CollectReport(Struct, frozen=True):
    """What `datastore gc` removed from the store, or, dry, would."""

    objects_deleted: int
    leftovers_deleted: int
    trash_deleted: int
    nodes_deleted: int
    bytes: int
    dry_run: bool = False
    warnings: list[str] = field(default_factory=list)


class ReplicateReport(Struct):
    """What `datastore replicate` copied to another store, or, dry, would. `skipped`: what that had already."""

    url: str
    namespace: str | None = None
    copied: int = 0
    skipped: int = 0
    bytes: int = 0
    deleted: int = 0
    failed: list[Failure] = field(default_factory=list)
    failures: int = 0
    """How many paths failed; `failed` names the first of them."""
    warnings: list[str] = field(default_factory=list)
    dry_run: bool = False

    def warn(self, text: str) -> None:
        """Add a warning; a later attempt at the same adds nothing."""
        if text not in self.warnings:
            self.warnings.append(text)


class KeptCopy(Struct, frozen=True):
    """A conflict's copy that waits for somebody to look at it. `at` is ms since 1970."""

    path: str
    copy: str
    at: int
    size: int
