"""`datastore log`: who has changed the store."""

from __future__ import annotations

from itertools import islice

from bayou.core.deadline import Deadline
from bayou.core.errors import BadAnswer, NotFound
from bayou.index.head import iter_log, read_head
from bayou.index.log import LogRow
from bayou.repo import Repo


def log(repo: Repo, n: int) -> list[LogRow]:
    """Return the newest rows of the store's log."""
    store = repo.store().within(Deadline.after(repo.config.sync.timeout))
    try:
        seen = read_head(store)
    except NotFound:
        return []
    if seen is None:
        raise BadAnswer(f"{store.url} says that its head is not modified, and nobody asked that")
    return list(islice(iter_log(store, seen.head), n))
