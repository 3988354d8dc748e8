"""What a sync did, for people and for scripts (V17): counts of work really done, and everything worth a word."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Literal

from bayou.quick import dataclass
from bayou.store.meter import Requests
from bayou.sync.scope import Scope

Mode = Literal["sync", "push", "pull"]
Engine = Literal["fast", "point", "spark"]
Resolution = Literal["keep", "ours", "theirs", "fail"]

Renumber = Callable[[bytes, int], bytes | None]
"""Given the metadata of a version and its new number, return its new metadata, or None if it cannot have another."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two sides changed one path. `kept` says whose bytes have the path now, `copy` where the others are."""

    path: str
    kept: Literal["remote", "local"]
    copy: str | None


@dataclass(frozen=True, slots=True)
class Failure:
    """One path that could not be moved; it stays journaled."""

    path: str
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """A name that has no safe or no allowed place, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class PlannedAction:
    """What a dry run would do to one path."""

    path: str
    action: str


@dataclass(frozen=True, slots=True)
class CommitId:
    seq: int
    commit: str


@dataclass(slots=True)
class Moved:
    """Work done in one direction."""

    files: int = 0
    bytes: int = 0
    deleted: int = 0
    renumbered: int = 0


@dataclass(slots=True)
class SyncReport:
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


@dataclass(frozen=True, slots=True)
class SyncOptions:
    """What a caller may ask of one sync."""

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
    renumber: Renumber | None = field(default=None, compare=False)
    """The rule by which a version of ours gets another number than the store's; without one they are in conflict."""
