"""A datastore's records, open for work.

Let the catalog hear of what a sync has brought.
"""

from __future__ import annotations

import contextlib
from contextlib import ExitStack
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING

from bayou.core.errors import BayouError
from bayou.data.allocate import renumber
from bayou.data.catalog import Catalog
from bayou.data.changes import settle
from bayou.data.context import DataContext
from bayou.data.engine import CatalogEngine
from bayou.data.items import DataRepository
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

    No request is sent by opening it; what a killed process left half done is done first. `guard` is asked before every
    change of the tree; `engine` says who does what looks at everything. A `connection` stays open when this is closed.
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
            self.catalog = self._open.enter_context(Catalog(repo, self.tree, self.engine, self.connection))
            self.context = DataContext(repo, self.tree, self.sync, self.catalog)
            settle(self.context)
        except BaseException:
            self._open.close()
            raise
        self.data = DataRepository(self.context)

    @cached_property
    def outputs(self) -> OutputRepository:
        from bayou.data.outputs import OutputRepository  # noqa: PLC0415  (who lists data needs none of these)

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
        """Give up this process's presence in the datastore."""
        self._open.close()

    def __enter__(self) -> Records:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def refresh_catalog(repo: Repo, engine: Choice = "auto", connection: Connection | None = None) -> None:
    """Let the catalog catch up, if there is one: whoever never asked it for anything pays nothing for it.

    It is derived (V20): what it cannot take in now, it takes in when it is next asked, and says so then.
    """
    if not repo.catalog.exists():
        return
    from bayou.data.engine import CatalogEngine  # noqa: PLC0415

    with contextlib.suppress(BayouError), Records(repo, engine=CatalogEngine(engine), connection=connection) as records:
        records.catalog.refresh()
