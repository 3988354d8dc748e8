"""Whose an item is: the model that keeps it, and what made it."""

from __future__ import annotations

from msgspec import Struct

from bayou.sync.plan.policy import ModelRef

__all__ = ["ModelRef", "Owner"]


class Owner(Struct, frozen=True):
    """The model of a version, the repo that wrote it, and the method's output and the workflow's step, if any."""

    model: str
    model_id: str
    type: str
    repo: str
    output: str | None = None
    run: str | None = None
    workflow: str | None = None
    job: str | None = None
    step: str | None = None

    @classmethod
    def of(
        cls,
        model: ModelRef,
        repo: str,
        *,
        output: str | None = None,
        run: str | None = None,
        workflow: str | None = None,
        job: str | None = None,
        step: str | None = None,
    ) -> Owner:
        return cls(model.name, model.id, model.type, repo, output, run, workflow, job, step)
