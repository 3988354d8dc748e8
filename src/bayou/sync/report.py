"""What a sync did, for people and for scripts (V17): counts of work really done, and everything worth a word."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal

from msgspec import Struct, field

from bayou.core.structs import SelectiveStruct
from bayou.objectstore.transport import Requests
from bayou.sync.scope import Scope

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
    scope: Scope | None = None
    """Pull only what lies in here (None: everything); only for a pull that does not walk."""
    renumber: Renumber | None = None
    """The rule by which a version of ours gets another number than the store's; without one they are in conflict."""
