"""`Records`: the four repositories of a datastore, opened together; and the catalog's refresh after a sync."""

from __future__ import annotations

import contextlib
from contextlib import ExitStack
from functools import cached_property
from typing import TYPE_CHECKING

from bayou.core.errors import BayouError
from bayou.data.catalog import Catalog
from bayou.data.changes import finish_pending
from bayou.data.context import DataContext
from bayou.data.engine import CatalogEngine
from bayou.data.items import DataRepository
from bayou.data.sync_hooks import renumber
from bayou.repo import Repo
from bayou.state.connection import Connection
from bayou.state.journal import Guard
from bayou.sync.service import Datastore

if TYPE_CHECKING:
    from bayou.data.engine import Choice
    from bayou.data.outputs import EvaluatedRepository, OutputRepository
    from bayou.data.runs import RunRepository


class Records:
    """The four repositories on one datastore, and what they work with. Use it as a context manager.

    Opening sends no request; it first finishes the change sets that killed processes left pending (V19). The tree calls
    `guard` before every change; `engine` chooses who does jobs over all records. `close` leaves a given `connection`
    open.
    """

    def __init__(
        self,
        repo: Repo,
        *,
        guard: Guard | None = None,
        engine: CatalogEngine | None = None,
        connection: Connection | None = None,
    ) -> None:
        self.repo = repo
        self.engine = engine or CatalogEngine()
        self._open = ExitStack()
        try:
            datastore = self._open.enter_context(Datastore(repo, renumber=renumber, guard=guard, connection=connection))
            self.connection = datastore.connection
            self.tree = datastore.tree
            self.sync = datastore.sync
            self.catalog = self._open.enter_context(Catalog(self.connection, self.tree, self.engine))
            self.context = DataContext(repo, self.tree, self.sync, self.catalog, self.connection)
            finish_pending(self.context)
        except BaseException:
            self._open.close()
            raise
        self.data = DataRepository(self.context)

    @cached_property
    def outputs(self) -> OutputRepository:
        from bayou.data.outputs import OutputRepository  # noqa: PLC0415  (a list of data needs none of these)

        return OutputRepository(self.context)

    @cached_property
    def runs(self) -> RunRepository:
        from bayou.data.runs import RunRepository  # noqa: PLC0415

        return RunRepository(self.context)

    @cached_property
    def evaluated(self) -> EvaluatedRepository:
        from bayou.data.outputs import EvaluatedRepository  # noqa: PLC0415

        return EvaluatedRepository(self.context)

    def close(self) -> None:
        """Close the catalog and the datastore."""
        self._open.close()

    def __enter__(self) -> Records:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def refresh_catalog(connection: Connection, engine: Choice = "auto") -> None:
    """Refresh the catalog after a sync, if the repo has one; without a catalog this costs nothing.

    The catalog is derived (V20), so an error here is no error of the sync: the next query refreshes it and reports.
    """
    repo = connection.repo
    if not repo.catalog.exists():
        return
    with contextlib.suppress(BayouError), Records(repo, engine=CatalogEngine(engine), connection=connection) as records:
        records.catalog.refresh()
