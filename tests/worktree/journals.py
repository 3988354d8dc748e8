"""A journal in memory, and a record of what happened in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bayou.core.errors import BayouError
from bayou.worktree.journal import Kind, Ticket


@dataclass
class RecordingJournal:
    """Rows as a list, and events that a test can mix with those of the file system."""

    events: list[str] = field(default_factory=list)
    rows: list[tuple[Kind, tuple[str, ...]]] = field(default_factory=list)
    open_rows: set[int] = field(default_factory=set)
    refuses: BayouError | None = None
    cannot_close: BayouError | None = None

    def open(self, kind: Kind, paths: Sequence[str]) -> Ticket:
        if self.refuses is not None:
            raise self.refuses
        self.events.append(f"open {kind}")
        self.rows.append((kind, tuple(paths)))
        self.open_rows.add(len(self.rows) - 1)
        return len(self.rows) - 1

    def close(self, ticket: Ticket) -> None:
        assert isinstance(ticket, int)
        if self.cannot_close is not None:
            raise self.cannot_close
        self.open_rows.remove(ticket)
        self.events.append("close")
