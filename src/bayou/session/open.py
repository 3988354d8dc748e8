"""`Repo`: an open repo as programs use it, with its data, models and workflows. `open` and `init` return it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayou.config import Config
from bayou.repo import Repo as RepoConfig
from bayou.repo import init_repo, open_repo
from bayou.session.write_session import Session, write_session
from bayou.state.connection import Connection
from bayou.sync.plan.policy import ModelRef

if TYPE_CHECKING:
    import builtins

    from bayou.core.progress import Progress
    from bayou.data.outputs import EvaluatedRepository, Output, OutputRepository
    from bayou.data.records import Records
    from bayou.data.runs import RunRepository
    from bayou.models import Definition, ModelListing
    from bayou.session.data import Data, DataItem, ModelData
    from bayou.spark.sql.query import ArrowTable, PandasFrame
    from bayou.sync.report import SyncReport
    from bayou.sync.service import SyncService
    from bayou.workflows.definition import Workflow
    from bayou.workflows.find import WorkflowListing
    from bayou.workflows.run import Outcome
    from bayou.worktree.tree import Worktree


def open(path: str | os.PathLike[str] = ".", *, offline: bool = False) -> Repo:  # noqa: A001
    """Open the repo at `path` or above it, with the environment's settings (`BAYOU_…`); `NotARepo` if there is none.

    With `offline`, its sessions take no lease, and neither pull nor push.
    """
    return Repo(open_repo(path, offline=offline))


def init(path: str | os.PathLike[str] = ".") -> Repo:
    """Make a directory a repo, and open it; `AlreadyInitialized`, with nothing changed, if it is a repo."""
    return Repo(init_repo(path))


class Repo:
    """An open repo. It opens its datastore when a caller first uses it: close it, or use it in a `with` block.

    A model is given as a `ModelRef`, or by its name or id. Reading sends no request, except to fetch content that is
    absent here. Changes outside of a session are journaled, and the next push has them; `session` takes the
    lease, pulls and pushes. Threads may share a repo. The objects that a repo hands out keep its datastore
    open; `close` closes it for all of them.
    """

    def __init__(self, repo: RepoConfig) -> None:
        self.repo = repo
        self._connection = Connection(repo)
        self._opening = threading.RLock()
        self._records: Records | None = None
        self.models = Models(self._connection)
        self.workflows = Workflows(self._connection)

    def __repr__(self) -> str:
        return f"<bayou.Repo {self.root}>"

    @property
    def root(self) -> Path:
        """The directory with `bayou.toml`."""
        return self.repo.root

    @property
    def config(self) -> Config:
        """The configuration, from `bayou.toml` and the environment."""
        return self.repo.config

    @property
    def data(self) -> Data:
        """Items and their versions: `get`, `versions`, `find`, `save`."""
        from bayou.session.data import Data  # noqa: PLC0415

        return Data(self.records.data, self.models.resolve)

    @property
    def outputs(self) -> OutputRepository:
        """The outputs of models' methods."""
        return self.records.outputs

    @property
    def runs(self) -> RunRepository:
        """The records of workflow runs."""
        return self.records.runs

    @property
    def evaluated(self) -> EvaluatedRepository:
        """Definitions and workflows as they were evaluated for a run."""
        return self.records.evaluated

    @property
    def sync(self) -> SyncService:
        """The sync service: `status`, `hydrate`, `mark_dirty` for programs that write into the tree themselves."""
        return self.records.sync

    @property
    def tree(self) -> Worktree:
        """The files of the datastore on this machine; each write is journaled (V7)."""
        return self.records.tree

    @property
    def records(self) -> Records:
        """The repositories below `data`, `outputs`, `runs` and `evaluated`, open."""
        from bayou.data.records import Records  # noqa: PLC0415

        with self._opening:
            if self._records is None:
                self._records = Records(self.repo, connection=self._connection)
            return self._records

    def push(self) -> SyncReport:
        """Push every journaled change; the report's `pushed.files` counts the files.

        Then inputs that commands have left here become versions (`data append` while the store was unreachable);
        `NotPushed` if some of them still wait.
        """
        from bayou.session.inputs import empty_spool  # noqa: PLC0415

        report = self.sync.push_changed()
        empty_spool(self.repo, self._connection, report)
        return report

    def pull(self, *models: ModelRef | str) -> SyncReport:
        """Pull what changed in the store, of some models or of all; the report's `pulled.files` counts the files."""
        return self.sync.pull_changed(self._resolved(models) if models else None)

    def query(self, predicate: str, *, limit: int | None = None) -> builtins.list[DataItem]:
        """Return each version for which a CEL predicate is true, as `latest && tags.env == "prod"`.

        `QueryInvalid` if the predicate is not CEL, or cannot be evaluated for some item.
        """
        from bayou.core.errors import QueryInvalid  # noqa: PLC0415
        from bayou.core.text import count  # noqa: PLC0415
        from bayou.data.query import query  # noqa: PLC0415

        self.records.catalog.refresh()
        found = query(self.records, predicate, limit=limit)
        if found.failed:
            raise QueryInvalid(f"{count(len(found.failed), 'version')} cannot be evaluated: {found.failed[0]}")
        data = self.data
        return [
            data.get(ModelRef(row["type"], row["model_id"], row["model"]), row["name"], row["version"])
            for row in found.results
        ]

    def sql(self, query: str, **parameters: Any) -> PandasFrame:
        """Return the result of a Spark SQL query over `data`, `versions`, `outputs`, `runs`, `entries` in pandas.

        `parameters` are the values of the query's `:name`s. The whole result is in memory: see `sql_batches`.
        """
        from bayou.spark.sql.query import open_query  # noqa: PLC0415  (pyarrow, grpc: 1 s)

        self.records.catalog.refresh()
        with open_query(self.repo, query, parameters, connection=self._connection) as opened:
            return opened.to_pandas()

    def sql_batches(self, query: str, **parameters: Any) -> Iterator[ArrowTable]:
        """Yield the result of a Spark SQL query as Arrow tables, batch by batch; it is never in memory as a whole."""
        from bayou.spark.sql.query import open_query  # noqa: PLC0415

        self.records.catalog.refresh()
        with open_query(self.repo, query, parameters, connection=self._connection) as opened:
            yield from opened.tables()

    @contextmanager
    def session(
        self,
        model: ModelRef | str,
        *,
        timeout: float | None = None,
        on_wait: Callable[[str], None] | None = None,
        alone: bool = False,
    ) -> Iterator[ModelSession]:
        """Hold a model's lease, pull what belongs to it, run the block, push once, also if the block raises.

        `LeaseTimeout` if another holder keeps the lease, a `StoreError` if the store cannot be reached; a block that
        may work `alone` runs all the same. `NotPushed`, after the block, says that its work is saved here and that the
        store does not have it yet. `on_wait` is called with a sentence that names the holder.
        """
        from bayou.session.data import Data, ModelData  # noqa: PLC0415

        (ref,) = self._resolved([model])
        with self.write_session([ref], timeout=timeout, on_wait=on_wait, alone=alone) as session:
            yield ModelSession(session, ref, ModelData(Data(session.records.data, self.models.resolve), ref))

    def write_session(
        self,
        models: Sequence[ModelRef | str] = (),
        *,
        store_wide: bool = False,
        timeout: float | None = None,
        progress: Progress | None = None,
        on_wait: Callable[[str], None] | None = None,
        alone: bool = False,
    ) -> AbstractContextManager[Session]:
        """Return the block of a write session of several models, or of the store (`bayou.session.write_session`)."""
        return write_session(
            self.repo,
            models=None if store_wide else self._resolved(models),
            timeout=timeout,
            progress=progress,
            on_wait=on_wait,
            connection=self._connection,
            alone=alone,
        )

    def close(self) -> None:
        """Close the datastore (V14). A repo that is used after that opens it again; closing twice does no harm."""
        with self._opening:
            if self._records is not None:
                self._records.close()
                self._records = None
            self._connection.close()

    def _resolved(self, models: Sequence[ModelRef | str]) -> builtins.list[ModelRef]:
        return [self.models.resolve(model) if isinstance(model, str) else model for model in models]

    def __enter__(self) -> Repo:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Models:
    """The definitions of a repo: files that people write and commit."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._repo = connection.repo

    def create(self, kind: str, name: str, arguments: Mapping[str, object] | None = None) -> Definition:
        """Define a new model; `ModelExists` if a model has that name."""
        from bayou.models import create_model  # noqa: PLC0415

        return create_model(self._repo, kind, name, arguments)

    def get(self, text: str) -> Definition:
        """Return the definition with this name or id."""
        from bayou.models import find_model  # noqa: PLC0415

        return find_model(self._repo, text)

    def list(self) -> ModelListing:
        """Return every definition that can be read, and an error for each other file."""
        from bayou.models import list_models  # noqa: PLC0415

        return list_models(self._repo)

    def run(self, text: str, method: str, inputs: Mapping[str, object] | None = None) -> Output:
        """Run a method of the model with this name or id, in a session of its own; return its output.

        The failure of a method is a status of its output, not an exception.
        """
        from bayou.core.deadline import stop_event  # noqa: PLC0415
        from bayou.models.run import RunRequest, prepare, run_method  # noqa: PLC0415

        prepared = prepare(self._connection, RunRequest(self.get(text), method, inputs or {}))
        models = [prepared.request.model.ref]
        with write_session(self._repo, models=models, connection=self._connection) as session:
            return run_method(session, prepared, cancel=stop_event())

    def resolve(self, text: str) -> ModelRef:
        """Return the model with this name or id, defined here or known by its data."""
        from bayou.models import resolve_model  # noqa: PLC0415

        return resolve_model(self._repo, text, connection=self._connection)


class Workflows:
    """The workflows of a repo: files that people write and commit, and their runs."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._repo = connection.repo

    def get(self, text: str) -> Workflow:
        """Return the workflow with this name or id."""
        from bayou.workflows.find import find_workflow  # noqa: PLC0415

        return find_workflow(self._repo, text)

    def list(self) -> WorkflowListing:
        """Return every workflow that can be read, and an error for each other file."""
        from bayou.workflows.find import list_workflows  # noqa: PLC0415

        return list_workflows(self._repo)

    def run(
        self, text: str, inputs: Mapping[str, Any] | None = None, *, tags: Mapping[str, str] | None = None
    ) -> Outcome:
        """Run the workflow with this name or id, each step in a session of its own; return the result.

        Problems of the workflow and its inputs are raised before anything runs. The failure of a run is a status of its
        outcome, whose `unpushed` has the error of a push that failed.
        """
        from bayou.workflows.run import new_run  # noqa: PLC0415

        return new_run(self._repo, text, inputs, tags=tags).run(self._connection, self._session)

    def resume(self, run_id: str, *, abandoned: bool = False) -> Outcome:
        """Continue a run that failed or was cancelled, or (`abandoned`) whose process is known to have died.

        `run_id` may be a prefix of the id that no other run has, or `latest`.
        """
        from bayou.workflows.run import resumed_run, run_owner  # noqa: PLC0415

        owner, run_id = run_owner(self._connection, run_id)
        with write_session(self._repo, models=[owner], connection=self._connection) as session:
            # Claimed in a session of its own: after its push, every machine sees that the run goes on.
            going = resumed_run(self._repo, session.records, run_id, abandoned=abandoned)
        return going.run(self._connection, self._session)

    def _session(self, model: ModelRef) -> AbstractContextManager[Session]:
        return write_session(self._repo, models=[model], connection=self._connection)


class ModelSession:
    """A write session of one model. After its block, `pulled` and `pushed` are the reports of what moved."""

    def __init__(self, session: Session, model: ModelRef, data: ModelData) -> None:
        self._session = session
        self.model = model
        self.data = data

    @property
    def records(self) -> Records:
        """The repositories of the session: each write first checks that the lease is still held (V13)."""
        return self._session.records

    @property
    def pulled(self) -> SyncReport | None:
        """The report of the pull before the block; None if there was no pull: offline, or a directory."""
        return self._session.pulled

    @property
    def pushed(self) -> SyncReport | None:
        """The report of the push after the block; None until then, offline, and for a directory."""
        return self._session.pushed

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables with which a child process works under this session's lease."""
        return self._session.environment
