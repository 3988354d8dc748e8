"""A repo as programs have it: `bayou.open(path)`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from bayou.config import Config
from bayou.repo import Repo, open_repo
from bayou.session.session import Session, write_session
from bayou.session.workflows import Workflows
from bayou.sync.scope import ModelRef

if TYPE_CHECKING:
    from bayou.model import Definition, ModelListing
    from bayou.records.data import DataRepository
    from bayou.records.evaluated import EvaluatedRepository
    from bayou.records.outputs import Output, OutputRepository
    from bayou.records.records import Records
    from bayou.records.runs import RunRepository
    from bayou.sync.progress import Progress
    from bayou.sync.service import SyncService
    from bayou.tree.tree import Tree


class Models:
    """The definitions of a repo: files that people write and commit."""

    def __init__(self, repo: Repo) -> None:
        self._repo = repo

    def create(self, kind: str, name: str, arguments: Mapping[str, object] | None = None) -> Definition:
        """Define a new model; `ModelExists` if there is one of that type and name."""
        from bayou.model import create_model  # noqa: PLC0415

        return create_model(self._repo, kind, name, arguments)

    def get(self, text: str) -> Definition:
        """Return the definition of this name or id."""
        from bayou.model import find_model  # noqa: PLC0415

        return find_model(self._repo, text)

    def list(self) -> ModelListing:
        """Return every definition that can be read, and an error for each that cannot."""
        from bayou.model import list_models  # noqa: PLC0415

        return list_models(self._repo)

    def run(self, text: str, method: str, inputs: Mapping[str, object] | None = None) -> Output:
        """Run a method of the model of this name or id, in a session of its own; return what came of it.

        A method that fails is an output that says so.
        """
        from bayou.deadline import stop_event  # noqa: PLC0415
        from bayou.model.run import RunRequest, prepare, run_method  # noqa: PLC0415

        prepared = prepare(self._repo, RunRequest(self.get(text), method, inputs or {}))
        with write_session(self._repo, models=[prepared.request.model.ref]) as session:
            return run_method(session, prepared, cancel=stop_event())

    def resolve(self, text: str) -> ModelRef:
        """Return the model of this name or id, defined here or known by its data."""
        from bayou.model import resolve_model  # noqa: PLC0415

        return resolve_model(self._repo, text)


class OpenRepo:
    """An open repo. What needs the datastore opens it when it is first used; close it, or use it in a `with` block.

    Reading sends no request but for content that is not here. Whatever is written outside of a session is journaled,
    and goes up with the next push: `write_session` takes the lease, pulls and pushes.
    """

    def __init__(self, repo: Repo) -> None:
        self.repo = repo
        self.models = Models(repo)
        self.workflows = Workflows(repo)
        self._records: Records | None = None

    @property
    def root(self) -> Path:
        return self.repo.root

    @property
    def config(self) -> Config:
        return self.repo.config

    @cached_property
    def records(self) -> Records:
        """All that is kept, open."""
        from bayou.records.records import Records  # noqa: PLC0415

        self._records = Records(self.repo)
        return self._records

    @property
    def data(self) -> DataRepository:
        return self.records.data

    @property
    def outputs(self) -> OutputRepository:
        return self.records.outputs

    @property
    def runs(self) -> RunRepository:
        return self.records.runs

    @property
    def evaluated(self) -> EvaluatedRepository:
        return self.records.evaluated

    @property
    def sync(self) -> SyncService:
        return self.records.sync

    @property
    def tree(self) -> Tree:
        return self.records.tree

    def write_session(
        self,
        models: Sequence[ModelRef | str] = (),
        *,
        store_wide: bool = False,
        timeout: float | None = None,
        progress: Progress | None = None,
        on_wait: Callable[[str], None] | None = None,
    ) -> AbstractContextManager[Session]:
        """Return the block of one write session, as `bayou.session.write_session`; models may be named."""
        meant = [self.models.resolve(model) if isinstance(model, str) else model for model in models]
        return write_session(
            self.repo, models=meant, store_wide=store_wide, timeout=timeout, progress=progress, on_wait=on_wait
        )

    def close(self) -> None:
        """Give up this process's presence in the datastore; what is used afterwards opens it again."""
        if self._records is not None:
            self._records.close()
            self._records = None
            del self.records

    def __enter__(self) -> OpenRepo:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open(path: str | os.PathLike[str] = ".", *, offline: bool = False) -> OpenRepo:  # noqa: A001
    """Open the repo that `path` is, or lies in, as the environment has it (`BAYOU_…`).

    `offline`: its sessions take no lease, and neither pull nor push.
    """
    return OpenRepo(open_repo(path, offline=offline))
