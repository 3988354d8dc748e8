"""Runs of workflows: `workflow-runs/<workflow-id>/<run-id>.yaml`. Searches are answered by the catalog alone."""

from __future__ import annotations

from collections.abc import Mapping

from bayou.core.errors import RecordNotFound
from bayou.records import document
from bayou.records.catalog.derive import derive
from bayou.records.catalog.rows import RunRow
from bayou.records.context import Context
from bayou.records.layout import run_path
from bayou.records.names import check_id, check_tags
from bayou.records.run import Run


class RunRepository:
    """The workflow runs of one datastore."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def save(self, run: Run) -> None:
        """Write a run's record, or write it again with what is known by now."""
        check_id(run.run_id, "a run")
        check_id(run.workflow_id, "a workflow")
        check_tags(run.tags)
        path = run_path(run.workflow_id, run.run_id)
        data = document.dump(run.to_document())
        row = derive(path, data)
        self._context.tree.write(path, data)
        self._context.tell([row])

    def get(self, run_id: str) -> Run:
        """Return a run; `RecordNotFound` if there is none."""
        row = self._row(run_id)
        data = self._context.load(row.path)
        if data is None:
            raise _not_found(run_id)
        return Run.from_document(document.load(data, row.path), row.path)

    def delete(self, run_id: str) -> None:
        """Delete a run's record; data whose lifetime is that of the run expires with it."""
        path = self._row(run_id).path
        self._context.tree.delete(path)
        self._context.tell([], [path])

    def search(
        self,
        text: str | None = None,
        *,
        status: str | None = None,
        since: str | None = None,
        workflow: str | None = None,
        tags: Mapping[str, str] | None = None,
        limit: int | None = None,
    ) -> tuple[list[RunRow], int]:
        """Return the runs that fit all that is said, in short, the newest first, and how many fit in all.

        `workflow` is the name or id of one, `since` a time as records have it.
        """
        self._context.catalog.refresh()
        return self._context.catalog.runs(
            text=text, status=status, since=since, workflow=workflow, tags=tags, limit=limit
        )

    def _row(self, run_id: str) -> RunRow:
        self._context.catalog.refresh()
        row = self._context.catalog.run(run_id)
        if row is None:
            raise _not_found(run_id)
        return row


def _not_found(run_id: str) -> RecordNotFound:
    return RecordNotFound(f"there is no run {run_id}", hint="bayou datastore sync --pull brings what others have run")
