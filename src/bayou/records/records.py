"""A datastore's records, open for work."""

from __future__ import annotations

from contextlib import ExitStack
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING

from bayou.records.catalog import Catalog
from bayou.records.changes import settle
from bayou.records.context import Context
from bayou.records.data import DataRepository
from bayou.records.engine import Engine
from bayou.records.renumber import renumber
from bayou.repo import Repo
from bayou.state.connection import Connection
from bayou.state.journal import Guard
from bayou.sync.service import Datastore

if TYPE_CHECKING:
    from bayou.records.evaluated import EvaluatedRepository
    from bayou.records.outputs import OutputRepository
    from bayou.records.runs import RunRepository


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
        engine: Engine | None = None,
        connection: Connection | None = None,
    ) -> None:
        self.repo = repo
        self.engine = engine or Engine()
        self._open = ExitStack()
        try:
            datastore = self._open.enter_context(Datastore(repo, renumber=renumber, guard=guard, connection=connection))
            self.connection = datastore.connection
            self.tree = datastore.tree
            self.sync = datastore.sync
            self.catalog = self._open.enter_context(Catalog(repo, self.tree, self.engine, self.connection))
            self.context = Context(repo, self.tree, self.sync, self.catalog)
            settle(self.context)
        except BaseException:
            self._open.close()
            raise
        self.data = DataRepository(self.context)

    @cached_property
    def outputs(self) -> OutputRepository:
        from bayou.records.outputs import OutputRepository  # noqa: PLC0415  (who lists data needs none of these)

        return OutputRepository(self.context)

    @cached_property
    def runs(self) -> RunRepository:
        from bayou.records.runs import RunRepository  # noqa: PLC0415

        return RunRepository(self.context)

    @cached_property
    def evaluated(self) -> EvaluatedRepository:
        from bayou.records.evaluated import EvaluatedRepository  # noqa: PLC0415

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
