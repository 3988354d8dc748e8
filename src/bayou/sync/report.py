"""Options and reports of sync and of the commands around it (V17): setup, status, verify, gc, replicate.

Reports count work that was really done, and name each path that failed, was refused or is in conflict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, Literal

from msgspec import Struct, field

from bayou.core.errors import DeadlinePassed
from bayou.core.structs import SelectiveStruct
from bayou.core.text import count
from bayou.objectstore.transport import Requests
from bayou.sync.plan.policy import ModelScope

Mode = Literal["sync", "push", "pull"]
Engine = Literal["fast", "point", "spark"]
Resolution = Literal["keep", "ours", "theirs", "fail"]

Renumber = Callable[[bytes, int], bytes | None]
"""Given a version's metadata and its new number, return the new metadata; None if it cannot be renumbered."""


def left_alone(number: int) -> str:
    """Return the warning about keys of a store that are not payload."""
    left = "is not payload and was left alone" if number == 1 else "are not payload and were left alone"
    return f"{count(number, 'key')} in the store {left}"


class Conflict(Struct, frozen=True):
    """A path that both sides changed. `kept` says which side has the path now, `copy` where the other's bytes are."""

    path: str
    kept: Literal["remote", "local"]
    copy: str | None


class Failure(Struct, frozen=True):
    """A path that could not be transferred, and why; its journal row stays."""

    path: str
    code: str
    message: str


class Refusal(Struct, frozen=True):
    """A name that cannot be a path of the tree or a key of the store, and why."""

    path: str
    reason: str


class PlannedAction(Struct, frozen=True):
    """The action that a dry run would take for one path."""

    path: str
    action: str


class CommitId(Struct, frozen=True):
    seq: int
    commit: str


class TransferCounts(Struct):
    """Counts of what was transferred in one direction."""

    files: int = 0
    bytes: int = 0
    deleted: int = 0
    renumbered: int = 0


class SyncReport(Struct):
    """The result of one sync."""

    mode: Mode = "sync"
    engine: Engine = "fast"
    dry_run: bool = False
    pulled: TransferCounts = field(default_factory=TransferCounts)
    pushed: TransferCounts = field(default_factory=TransferCounts)
    conflicts: list[Conflict] = field(default_factory=list)
    untracked: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    commit: CommitId | None = None
    asked: bool = True
    """Whether the store was asked: not offline, and not for a datastore that is a directory."""
    actions: list[PlannedAction] = field(default_factory=list)
    requests: Requests = field(default_factory=Requests)
    seconds: float = 0.0

    def warn(self, text: str) -> None:
        """Add a warning, unless an earlier pass has added the same."""
        if text not in self.warnings:
            self.warnings.append(text)

    def include(self, later: SyncReport) -> None:
        """Count the work of a later sync of the same command as part of this one (V17)."""
        for total, moved in ((self.pulled, later.pulled), (self.pushed, later.pushed)):
            total.files += moved.files
            total.bytes += moved.bytes
            total.deleted += moved.deleted
            total.renumbered += moved.renumbered
        self.conflicts = [*self.conflicts, *later.conflicts]
        self.missing = list(dict.fromkeys([*self.missing, *later.missing]))
        self.failed = list(dict.fromkeys([*self.failed, *later.failed]))
        for text in later.warnings:
            self.warn(text)
        self.commit = later.commit or self.commit
        self.requests += later.requests
        self.seconds = round(self.seconds + later.seconds, 3)

    @property
    def exit_code(self) -> int:
        """1 if a path failed or its object is missing, 3 if conflicts were kept, else 0."""
        if self.failed or self.missing:
            return 1
        return 3 if self.conflicts else 0


class SyncOptions(SelectiveStruct, frozen=True):
    """The options of one sync."""

    uncompared: ClassVar[tuple[str, ...]] = ("renumber",)

    mode: Mode = "sync"
    dry_run: bool = False
    on_conflict: Resolution = "keep"
    adopt: bool = False
    allow_mass_delete: bool = False
    engine: Literal["auto", "point", "spark"] = "auto"
    walk: bool = True
    """Whether to stat the whole tree; the implicit syncs around other commands rely on the journal alone."""
    scope: ModelScope | None = None
    """Pull only these models (None: everything); only for a pull without a walk."""
    renumber: Renumber | None = None
    """Gives a local version another number than the store's version; without it the two are in conflict."""
    reuse_head: bool = False
    """Whether the head that the session has read a moment ago will do; a commit on an outdated head is refused (V1)."""


class SetupReport(Struct, frozen=True):
    """The result of `datastore setup`."""

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
    """Why the push or the hydration did not finish in time, if so; the configuration is switched all the same."""
    missing: list[str] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """124 if the time was over, 1 if the store has lost or damaged content, 3 if conflicts were kept, else 0."""
        if self.unfinished:
            return DeadlinePassed.exit_code
        if self.missing or self.failed:
            return 1
        return 3 if self.conflicts else 0


class IndexStatus(Struct, frozen=True):
    seq: int
    commit: str
    entries: int
    bytes: int
    root: str | None


class PackStatus(Struct, frozen=True):
    """The packs that this machine's base names: how many, how many of them small, their bytes, and those of files that
    base does not name any more."""

    count: int
    small: int
    bytes: int
    dead: int


class Status(Struct, frozen=True):
    """The result of `datastore status`. `index` is None if the store has no head, or there is no store.

    `healthy` is None offline, where the client sends no request.
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
    packs: PackStatus | None = None
    """None for a directory, and if there are so many files that counting takes long and was not asked for."""
    seen_ms: int | None = None
    """When the store's head was last seen, in ms since 1970; None if it never was, or if there is no store."""
    age_s: float | None = None
    waiting: int = 0
    """The paths that the journal names, and the inputs that are no versions yet (V22)."""
    untracked: int = 0
    """The untracked files that the last walk of the tree found."""


class VerifyReport(Struct, frozen=True):
    """The findings of `datastore verify`. Leftovers of unfinished pushes, and trash, are not damage."""

    checked: int
    missing: list[str]
    changed: list[str]
    unindexed: list[str]
    leftovers: int
    trash: int
    repaired: int
    refused: list[Refusal] = field(default_factory=list)
    unsafe: list[Refusal] = field(default_factory=list)
    """Rows of the index or its trash that clients ignore (V25), and why; `--forget` accepts these paths as printed."""
    damaged: list[str] = field(default_factory=list)
    """Damaged objects of the index itself: nodes, and pages of the log."""
    unrecovered: list[str] = field(default_factory=list)
    """The entries that a rebuild of the index could not recover: paths, or numbers of entries in a range."""
    attested: list[str] = field(default_factory=list)
    """The paths of a rebuilt index that nothing but the lists in packs names: some may have been deleted before."""
    warnings: list[str] = field(default_factory=list)
    totals: Mapping[str, int] = field(default_factory=dict)
    """The full number of each list that names only its first items: `missing`, `changed`, `unindexed`, `refused`,
    `unsafe`, `attested`."""
    read: bool = False
    """Whether content was read: then only a repair that reads it, too, finds the same damage (`--deep`)."""

    @property
    def ok(self) -> bool:
        return not (self.missing or self.changed or self.unsafe or self.damaged or self.unrecovered)


class CollectReport(Struct, frozen=True):
    """Counts of the objects that `datastore gc` deleted from the store, or would delete in a dry run."""

    objects_deleted: int
    leftovers_deleted: int
    trash_deleted: int
    nodes_deleted: int
    bytes: int
    dry_run: bool = False
    warnings: list[str] = field(default_factory=list)
    packs_deleted: int = 0
    """How many of the objects and leftovers are packs."""


class CompactReport(Struct):
    """Counts of the files that `datastore compact` moved, or would move in a dry run.

    `files` and `bytes` count the files that were moved into new packs, with their bytes as they lay in the store;
    `objects` of them had been objects of their own. `freed` are the bytes of the packs and objects that the index no
    longer names, which a later collection can delete. `skipped` are files that another client has changed meanwhile, or
    whose new pack a collection may delete: they stay where they were.
    """

    packs_before: int = 0
    packs_after: int = 0
    files: int = 0
    objects: int = 0
    bytes: int = 0
    freed: int = 0
    skipped: int = 0
    failed: list[Failure] = field(default_factory=list)
    failures: int = 0
    """The number of files that could not be read, or are damaged; `failed` names the first of them."""
    warnings: list[str] = field(default_factory=list)
    dry_run: bool = False

    def warn(self, text: str) -> None:
        """Add a warning, unless an earlier attempt has added the same."""
        if text not in self.warnings:
            self.warnings.append(text)


class ReplicateReport(Struct):
    """Counts of what `datastore replicate` copied, or would copy in a dry run. `skipped`: the target had it before."""

    url: str
    namespace: str | None = None
    copied: int = 0
    skipped: int = 0
    bytes: int = 0
    deleted: int = 0
    failed: list[Failure] = field(default_factory=list)
    failures: int = 0
    """The number of failed paths; `failed` names the first of them."""
    warnings: list[str] = field(default_factory=list)
    dry_run: bool = False

    def warn(self, text: str) -> None:
        """Add a warning, unless an earlier attempt has added the same."""
        if text not in self.warnings:
            self.warnings.append(text)


class ExportReport(Struct):
    """Files that `datastore export` wrote. `failures` counts those that it could not write, `failed` has the first."""

    directory: str
    files: int = 0
    bytes: int = 0
    failed: list[Failure] = field(default_factory=list)
    failures: int = 0


class KeptCopy(Struct, frozen=True):
    """A kept copy of the losing side of a conflict. `at` is ms since 1970."""

    path: str
    copy: str
    at: int
    size: int
