"""Let the catalog hear of what a sync has brought."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from bayou.core.errors import BayouError
from bayou.repo import Repo

if TYPE_CHECKING:
    from bayou.records.engine import Choice
    from bayou.state.connection import Connection


def tell_catalog(repo: Repo, engine: Choice = "auto", connection: Connection | None = None) -> None:
    """Let the catalog catch up, if there is one: whoever never asked it for anything pays nothing for it.

    It is derived (V20): what it cannot take in now, it takes in when it is next asked, and says so then.
    """
    if not repo.catalog.exists():
        return
    from bayou.records.engine import Engine  # noqa: PLC0415
    from bayou.records.records import Records  # noqa: PLC0415

    with contextlib.suppress(BayouError), Records(repo, engine=Engine(engine), connection=connection) as records:
        records.catalog.refresh()
