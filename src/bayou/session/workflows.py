"""The workflows of an open repo."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from bayou.session.session import Session, write_session
from bayou.state.connection import Connection
from bayou.sync.plan.policy import ModelRef

if TYPE_CHECKING:
    from bayou.workflows.definition import Workflow
    from bayou.workflows.find import WorkflowListing
    from bayou.workflows.run import Outcome


class Workflows:
    """The workflows of a repo: files that people write and commit, and what runs them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._repo = connection.repo

    def get(self, text: str) -> Workflow:
        """Return the workflow of this name or id."""
        from bayou.workflows.find import find_workflow  # noqa: PLC0415

        return find_workflow(self._repo, text)

    def list(self) -> WorkflowListing:
        """Return every workflow that can be read, and an error for each that cannot."""
        from bayou.workflows.find import list_workflows  # noqa: PLC0415

        return list_workflows(self._repo)

    def run(
        self, text: str, inputs: Mapping[str, Any] | None = None, *, tags: Mapping[str, str] | None = None
    ) -> Outcome:
        """Run the workflow of this name or id, each step in a session of its own; return what came of it.

        What is wrong beforehand is raised, and nothing is run then. A run that fails is an outcome that says so, and
        has in `unpushed` why something of it could not be pushed.
        """
        from bayou.workflows.run import new_run  # noqa: PLC0415

        return new_run(self._repo, text, inputs, tags=tags).go(self._session, connection=self._connection)

    def resume(self, run_id: str, *, abandoned: bool = False) -> Outcome:
        """Go on with a run that failed or was cancelled; `abandoned`: its process is known to be gone."""
        from bayou.workflows.run import resumed_run, run_owner  # noqa: PLC0415

        owner = run_owner(self._repo, run_id, self._connection)
        with write_session(self._repo, models=[owner], connection=self._connection) as session:
            # Claimed in a session of its own: whoever looks afterwards, anywhere, sees that the run goes on.
            going = resumed_run(self._repo, session.records, run_id, abandoned=abandoned)
        return going.go(self._session, connection=self._connection)

    def _session(self, model: ModelRef) -> AbstractContextManager[Session]:
        return write_session(self._repo, models=[model], connection=self._connection)
