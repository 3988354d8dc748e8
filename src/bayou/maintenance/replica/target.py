"""The target of a replication: whether the store may become a replica, its first head, and changes by other writers.

A store may become a replica if it has no payload and no index, or an index without entries. A replica keeps its first
source. A target is refused (`ReplicaRefused`), and nothing is written, if the replication would overwrite data that did
not come from the source, or if the source's history lacks the commit that was replicated last.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import closing
from itertools import chain, islice

from msgspec import Struct
from msgspec.structs import replace

from bayou.core.clock import now
from bayou.core.errors import AlreadyExists, NodeDamaged, NodeMissing, NoSuchBucket, NotFound, ReplicaRefused
from bayou.core.ids import ulid
from bayou.engine.handle import StoreHandle
from bayou.engine.local import LocalExecutor
from bayou.index.head import Head, HeadSeen, Replica, create_head, first_head, iter_log, read_head
from bayou.index.log import Tally
from bayou.index.node import Root
from bayou.index.node_store import StoreNodes
from bayou.index.tree import Change, IndexTree, diff
from bayou.maintenance.replica.pairs import is_copy
from bayou.objectstore import keys
from bayou.objectstore.probe import probe
from bayou.objectstore.store import Store
from bayou.sync.plan.discovery_job import DiscoveryJob, TooManyObjects

_ELSEWHERE = "nothing was changed; replicate to another URL, or to another namespace: --namespace N"
_NAMED = 3
_MOST_FOREIGN = 100_000
"""Objects of other systems that may lie beside a new replica."""


class Target(Struct, frozen=True):
    """A store that is, or may become, a replica of the source. `seen` is None where it has no head yet."""

    store: Store
    seen: HeadSeen | None
    replica: Replica

    @property
    def root(self) -> Root | None:
        return self.seen.head.root if self.seen is not None else None

    @property
    def tree(self) -> IndexTree:
        return IndexTree(StoreNodes(self.store), self.root)

    @property
    def untouched(self) -> bool:
        """Whether the index is as the last replication left it."""
        return same(self.root, self.replica.into)


def same(a: Root | None, b: Root | None) -> bool:
    """Return whether two roots, of one store or of two, have the same entries."""
    return (a and a.digest) == (b and b.digest)


def read_target(handle: StoreHandle, source: Head, source_store: Store) -> Target:
    """Read the target's head, and check that the store is a replica of the source or may become one; write nothing."""
    store = handle.open()
    try:
        seen = read_head(store)
    except NoSuchBucket:
        if not store.url.startswith("file:"):
            raise
        return Target(store, None, Replica(source.store))  # the probe creates the directory, if its parent exists
    except NotFound:
        try:
            _check_empty(handle)
        except AlreadyExists:  # during the listing another process created a head
            return read_target(handle, source, source_store)
        return Target(store, None, Replica(source.store))
    head = seen.head
    if head.store == source.store:
        raise ReplicaRefused(f"{store.url} is the very store that shall be copied", hint=_ELSEWHERE)
    if head.replica is None:
        if head.root is not None:
            raise ReplicaRefused(
                f"{store.url} is a datastore of its own, with {head.root.entries} entries: it is not written over",
                hint=_ELSEWHERE,
            )
        return Target(store, seen, Replica(source.store))
    if head.replica.store != source.store:
        raise ReplicaRefused(
            f"{store.url} is a replica of another store ({head.replica.store}), and not of {source_store.url}",
            hint=_ELSEWHERE,
        )
    _check_history(source_store, source, head.replica)
    return Target(store, seen, head.replica)


def begin(target: Target, by: str) -> Target:
    """Create the head of a target that has none, before anything is uploaded; it names the source.

    Raises `TargetChanged` if another process has created a head meanwhile.
    """
    if target.seen is not None:
        return target
    store = target.store
    probe(store)
    head = first_head(store=str(uuid.uuid4()), commit=ulid(), at=now(), by=by, root=None, tally=Tally())
    head = replace(head, replica=target.replica)
    try:
        stored = create_head(store, head)
    except AlreadyExists:
        raise TargetChanged from None
    return replace(target, seen=HeadSeen(head, stored.etag, stored.version))


class TargetChanged(Exception):
    """Another process has changed the target meanwhile: read it again."""


def check_others(target: Target) -> None:
    """Raise `ReplicaRefused` if other writers added or changed entries of a replica: these are not overwritten.

    Entries that other writers deleted are copied again.
    """
    if target.untouched:
        return
    theirs: list[str] = []
    try:
        changes = diff(IndexTree(target.tree.source, target.replica.into), target.tree)
        theirs += islice((change.path for change in changes if not _harmless(change)), _NAMED + 1)
    except (NodeMissing, NodeDamaged) as error:
        raise ReplicaRefused(
            f"another writer has changed the replica {target.store.url}, and its former index is gone: {error.message}",
            hint=_ELSEWHERE,
        ) from error
    if theirs:
        more = " and more" if len(theirs) > _NAMED else ""
        raise ReplicaRefused(
            f"another writer has changed the replica {target.store.url}: {', '.join(theirs[:_NAMED])}{more}",
            hint=_ELSEWHERE,
        )


def _harmless(change: Change) -> bool:
    """Return whether a replication can overwrite another writer's change of an entry without losing a byte."""
    if change.new is None:
        return True
    return change.old is not None and change.new.push is not None and is_copy(change.new, change.old)


def doubtful(target: Target) -> bool:
    """Return whether a run that copied to this target may have died, so that some copies are there already."""
    try:
        target.store.head(keys.REPLICATING)
    except NotFound:
        return False
    return True


def mark(target: Target, by: str) -> None:
    """Put the marker of a running copy into the target, until `unmark`. It is a hint that only saves requests."""
    target.store.put(keys.REPLICATING, json.dumps({"by": by, "at": now()}).encode())


def unmark(target: Target) -> None:
    """Delete the marker of a running copy, after the copies are committed."""
    target.store.delete([keys.REPLICATING])


def _check_empty(store: StoreHandle) -> None:
    """Refuse a store that has payload and no index: the owner of that data is unknown."""
    job = DiscoveryJob(store, divided=False, most=_MOST_FOREIGN)
    try:
        found = LocalExecutor(threads=1).run(job)
    except TooManyObjects:
        raise ReplicaRefused(f"{store.url} is full of objects that are not Bayou's", hint=_ELSEWHERE) from None
    with closing(found):
        paths = chain((entry.path for entry in found.entries()), (refused.key for refused in found.refused))
        if (path := next(paths, None)) is not None:
            raise ReplicaRefused(f"{store.url} has data of its own, such as {path}", hint=_ELSEWHERE)


def _check_history(store: Store, head: Head, replica: Replica) -> None:
    """Refuse a source whose history lacks the replicated commit: a restored backup is no reason to delete entries."""
    if replica.commit is None or (head.rebuilt is not None and head.rebuilt != replica.rebuilt):
        return
    if replica.commit not in _commits(store, head, replica.seq):
        raise ReplicaRefused(
            f"the history of {store.url} (at {head.seq}) does not have commit {replica.commit} at {replica.seq}, "
            "which was replicated: it seems to be an older copy",
            hint=_ELSEWHERE,
        )


def _commits(store: Store, head: Head, seq: int) -> Iterator[str]:
    """Yield the commit that a history has at `seq`, if it has one."""
    for row in iter_log(store, head):
        if row.seq <= seq:
            if row.seq == seq:
                yield row.commit
            return
