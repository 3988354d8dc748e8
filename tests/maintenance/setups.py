"""Repos that are on their way to a datastore."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bayou.repo import init_repo
from bayou.sync.report import SetupReport
from tests import api
from tests.sync.conftest import Clone, Team


def newcomer(team: Team, name: str, files: Mapping[str, str] | None = None) -> Clone:
    """A repo that has no datastore yet, and what lies in its tree."""
    clone = Clone(init_repo(team.root / name))
    for path, content in (files or {}).items():
        clone.lay(path, content)
    return clone


def set_up(clone: Clone, where: Team | object, **more: Any) -> SetupReport:
    """Run `datastore setup` with a team's store, or with a directory."""
    target, options = (where.url, where.options) if isinstance(where, Team) else (str(where), {})
    arguments = {"namespace": None, "lazy": False, "skip_migration": False, "timeout": None, **more}
    report = api.setup(clone.repo, target, options=options, **arguments)
    clone.reopen()
    return report
