"""Drop rows of an index, or of its trash, that nothing is done by (V25). Their objects, if there are any, stay."""

from __future__ import annotations

from collections.abc import Callable, Collection

from bayou.core.clock import now
from bayou.core.errors import PreconditionFailed, StoreError
from bayou.core.ids import ulid
from bayou.index.discovery import trash_refusal
from bayou.index.head import HeadSeen, advance, swap_head
from bayou.index.log import Tally
from bayou.index.merge import merge
from bayou.index.node_store import StoreNodes, StoreSink
from bayou.index.tree import IndexTree, find_many
from bayou.objectstore.retry import RetryPolicy
from bayou.sync.context import SyncContext

_BACKOFF = RetryPolicy(base_s=0.05, cap_s=2.0)

Read = Callable[[], HeadSeen]


def drop_rows(context: SyncContext, read: Read, wanted: Collection[str], trash: Collection[str] = ()) -> list[str]:
    """Drop those of these rows, of the index and of its trash, that are unsafe; return the paths of those that were.

    `read` returns the head as it is now. No file and no object is touched, and base follows with the next sync. To do
    this twice does no harm.
    """
    attempt = 0
    while True:
        seen = read()
        source = StoreNodes(context.store, context.cache)
        index, waste = IndexTree(source, seen.head.root), IndexTree(source, seen.head.trash)
        bad = [path for path, entry in find_many(index, wanted).items() if entry.refusal() is not None]
        bad_trash = [path for path, entry in find_many(waste, trash).items() if trash_refusal(entry) is not None]
        if not bad and not bad_trash:
            return []
        number = ulid()
        sink = StoreSink(context.store, number, context.cache, durable=True)
        new, page = advance(
            seen.head,
            commit=number,
            at=now(),
            by=f"{context.by} (dropped unsafe rows)",
            root=merge(index, dict.fromkeys(bad), sink),
            trash=merge(waste, dict.fromkeys(bad_trash), sink),
            tally=Tally(deleted=len(bad)),
        )
        sink.flush()
        try:
            swap_head(context.store, new, seen.match, page)
            return [*bad, *bad_trash]
        except PreconditionFailed:
            pass
        except StoreError as error:
            if not error.ambiguous:
                raise
        attempt += 1
        context.deadline.sleep(_BACKOFF.pause(attempt))
