"""What a sync did, for people and for scripts (V17): counts of work really done, and everything worth a word.

What the commands around a sync did or found (V17); a sync itself needs none of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, Literal

from msgspec import Struct, field

from bayou.core.structs import SelectiveStruct
from bayou.objectstore.transport import Requests
from bayou.sync.plan.policy import ModelScope

Mode = Literal["sync", "push", "pull"]
Engine = Literal["fast", "point", "spark"]
Resolution = Literal["keep", "ours", "theirs", "fail"]

Renumber = Callable[[bytes, int], bytes | None]
"""Given the metadata of a version and its new number, return its new metadata, or None if it cannot have another."""


class Conflict(Struct, frozen=True):
    """Two sides changed one path. `kept` says whose bytes have the path now, `copy` where the others are."""

    path: str
    kept: Literal["remote", "local"]
    copy: str | None


class Failure(Struct, frozen=True):
    """One path that could not be moved; it stays journaled."""

    path: str
    code: str
    message: str


class Refusal(Struct, frozen=True):
    """A name that has no safe or no allowed place, and why."""

    path: str
    reason: str


class PlannedAction(Struct, frozen=True):
    """What a dry run would do to one path."""

    path: str
    action: str


class CommitId(Struct, frozen=True):
    seq: int
    commit: str


class Moved(Struct):
    """Work done in one direction."""

    files: int = 0
    bytes: int = 0
    deleted: int = 0
    renumbered: int = 0


class SyncReport(Struct):
    """The outcome of one sync. `exit_code` follows from it: 1 failed, 3 conflicts kept, else 0."""

    mode: Mode = "sync"
    engine: Engine = "fast"
    dry_run: bool = False
    pulled: Moved = field(default_factory=Moved)
    pushed: Moved = field(default_factory=Moved)
    conflicts: list[Conflict] = field(default_factory=list)
    untracked: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    commit: CommitId | None = None
    actions: list[PlannedAction] = field(default_factory=list)
    requests: Requests = field(default_factory=Requests)
    seconds: float = 0.0

    def warn(self, text: str) -> None:
        """Add a warning; a later pass over the same finding adds nothing."""
        if text not in self.warnings:
            self.warnings.append(text)

    @property
    def exit_code(self) -> int:
        if self.failed or self.missing:
            return 1
        return 3 if self.conflicts else 0


class SyncOptions(SelectiveStruct, frozen=True):
    """What a caller may ask of one sync."""

    uncompared: ClassVar[tuple[str, ...]] = ("renumber",)

    mode: Mode = "sync"
    dry_run: bool = False
    on_conflict: Resolution = "keep"
    adopt: bool = False
    allow_mass_delete: bool = False
    engine: Literal["auto", "point", "spark"] = "auto"
    walk: bool = True
    """Look at the whole tree by stat; the implicit syncs around other commands do not."""
    scope: ModelScope | None = None
    """Pull only what lies in here (None: everything); only for a pull that does not walk."""
    renumber: Renumber | None = None
    """The rule by which a version of ours gets another number than the store's; without one they are in conflict."""


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
