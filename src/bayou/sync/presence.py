"""A process's presence in a repo: the journal that it writes to, as long as it works there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bayou.repo import Repo
from bayou.sync.connection import Connection, connected
from bayou.sync.journal import Guard, Journal, Kind
from bayou.sync.place import place_of


@contextmanager
def open_journal(
    repo: Repo, guard: Guard | None = None, connection: Connection | None = None
) -> Iterator[Journal | NoJournal]:
    """Open the journal of a repo's datastore; no store is opened and no request sent, so that offline work goes on.

    Whatever changes the tree passes here first, and so does what `guard` forbids.
    """
    if repo.config.datastore.url is None:
        yield NoJournal(guard)
        return
    with connected(repo, connection) as opened:
        journal = Journal(opened.database, place_of(opened.database, repo), guard)
        try:
            journal.appear()
            yield journal
        finally:
            journal.release()


class NoJournal:
    """The journal of a directory datastore: there is nobody to tell."""

    def __init__(self, guard: Guard | None = None) -> None:
        self._guard = guard

    def open(self, kind: Kind, paths: Sequence[str]) -> object:
        if self._guard is not None:
            self._guard()
        return None

    def close(self, ticket: object) -> None:
        return

    def done(self) -> None:
        return
