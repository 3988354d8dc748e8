"""`datastore verify`: compare what the index says with what the store has; `--repair` only adds.

Missing: an entry without its object. Changed: an object of another size or ETag, or, with `--deep`, other bytes; one
that Bayou wrote is read before another ETag is held against it.
Unindexed: payload at a plain path that nobody indexed. Objects of pushes that the index does not name, and trash, are
counted apart: they are no damage, and `gc` takes care of them. Where the index itself is damaged, `--repair` rebuilds
it first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from bayou import paths
from bayou.errors import BadAnswer, NotFound, PreconditionFailed
from bayou.index.check import survey
from bayou.index.discovery import IN_THE_WAY, directories, discover, list_payload
from bayou.index.entry import Entry
from bayou.index.head import HeadSeen, read_head
from bayou.index.nodes import StoreNodes
from bayou.repo import Repo
from bayou.store import keys
from bayou.store.large import Nowhere
from bayou.store.transport import ObjectMeta
from bayou.sync import view
from bayou.sync.context import Context, open_context
from bayou.sync.mend import mend, settle_pending
from bayou.sync.rebuild import rebuild
from bayou.sync.remains import chain
from bayou.sync.report import Refusal, SyncOptions, VerifyReport
from bayou.sync.run import run


@dataclass(slots=True)
class _Found:
    """What a comparison brought."""

    checked: int = 0
    missing: list[Entry] = field(default_factory=list)
    changed: list[Entry] = field(default_factory=list)
    hashes: dict[str, Entry] = field(default_factory=dict)
    unindexed: list[ObjectMeta] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    leftovers: int = 0
    trash: int = 0
    damaged: list[str] = field(default_factory=list)


def verify(
    repo: Repo, *, deep: bool, repair: bool, forget: Sequence[str] = (), timeout: float | None = None
) -> VerifyReport:
    """Check every entry against the store; mend what can be mended without losing anything; forget what is named."""
    with open_context(repo, SyncOptions(mode="push", walk=False), timeout=timeout) as context:
        rebuilt = rebuild(context) if repair else None
        if forget:
            _forget(context, forget)
        seen = _head(context)
        if repair:
            settle_pending(context, seen)
        found = _compare(context, seen, deep=deep)
        repaired = mend(context, seen, found.missing, found.unindexed, found.hashes) if repair else 0
        if repaired:
            found = _compare(context, _head(context), deep=deep)
    return VerifyReport(
        checked=found.checked,
        missing=sorted(entry.path for entry in found.missing),
        changed=sorted(entry.path for entry in found.changed),
        unindexed=sorted(meta.key for meta in found.unindexed),
        leftovers=found.leftovers,
        trash=found.trash,
        repaired=repaired + (rebuilt.recovered if rebuilt else 0),
        refused=found.refused,
        damaged=found.damaged,
        unrecovered=rebuilt.unrecovered if rebuilt else [],
        warnings=rebuilt.warnings if rebuilt else [],
    )


def _head(context: Context) -> HeadSeen:
    """Read the head; where there is none, say whether it was lost."""
    try:
        seen = read_head(context.store)
    except NotFound:
        discover(context.store)  # HeadLost, if objects of pushes are there
        if context.base.known:
            raise view.emptied(context.store, context.base.place) from None
        raise NotFound(
            f"{context.store.url} has no index yet", hint="`bayou datastore sync --push` makes one"
        ) from None
    assert seen is not None  # nobody asked whether it is modified
    return seen


def _compare(context: Context, seen: HeadSeen, *, deep: bool) -> _Found:
    store, found = context.store, _Found()
    # The index first: what is committed while we list has its object before its entry (V11).
    index, trash = (survey(StoreNodes(store), root) for root in (seen.head.root, seen.head.trash))
    found.damaged = [damage.error.message for damage in (*index.damage, *trash.damage)]
    found.damaged += chain(store, seen.head.older)[1]
    hidden = [damage.span for damage in index.damage]
    entries: dict[str, Entry] = {}
    for entry in index.rows:
        why = paths.refusal(entry.path)
        if why is None:
            entries[entry.key] = entry
        else:
            found.refused.append(Refusal(entry.path, why))
    listing = list_payload(store)
    found.refused += [Refusal(one.key, one.reason) for one in listing.refused]
    listed = {meta.key: meta for meta in listing.objects}
    wasted: set[str] = {entry.key for entry in trash.rows}
    plain = [meta.key for meta in listing.objects if keys.parse_payload(meta.key).push is None]
    crowded = directories([*(entry.path for entry in entries.values()), *plain])
    for meta in listing.objects:
        path, pushed = keys.parse_payload(meta.key)
        if meta.key in entries or any(span.holds(path) for span in hidden):
            continue
        if meta.key in wasted:
            found.trash += 1
        elif pushed is not None:
            found.leftovers += 1
        elif path in crowded:
            found.refused.append(Refusal(path, IN_THE_WAY))
        else:
            found.unindexed.append(meta)
    doubtful: list[Entry] = []
    for key, entry in entries.items():
        found.checked += 1
        at = listed.get(key)
        if at is None:
            found.missing.append(entry)
        elif at.size != entry.size:
            found.changed.append(entry)
        elif entry.etag is not None and at.etag != entry.etag:
            # A PUT that was repeated, or came late, wrote the same bytes to the same key (V11); only they can tell.
            (found.changed if entry.push is None or entry.sha256 is None else doubtful).append(entry)
    # V4: a listing that does not have it is looked at once more, by name.
    found.missing = [
        entry
        for entry, gone in zip(found.missing, store.map(lambda e: _gone(context, e), found.missing), strict=True)
        if gone
    ]
    bad = {entry.path for entry in (*found.missing, *found.changed)}
    read = [entry for entry in entries.values() if entry.path not in bad] if deep else doubtful
    for entry, digest in zip(read, store.map(lambda e: _digest(context, e), read), strict=True):
        if entry.sha256 is None and digest is not None:
            found.hashes[entry.path] = replace(entry, sha256=digest)
        elif digest != entry.sha256:
            found.changed.append(entry)
    return found


def _gone(context: Context, entry: Entry) -> bool:
    try:
        context.store.head(entry.key)
    except NotFound:
        return True
    return False


def _digest(context: Context, entry: Entry) -> bytes | None:
    """Return the hash of an object's bytes, as they are now; None if they are not there, or not as many."""
    try:
        return context.store.download(entry.key, Nowhere(), entry.size).sha256
    except (NotFound, BadAnswer, PreconditionFailed):
        return None


def _forget(context: Context, forgotten: Sequence[str]) -> None:
    """Drop entries on somebody's word, as journaled deletes."""
    for path in forgotten:
        paths.check(path)
    ticket = context.journal.open("delete", forgotten)
    for path in forgotten:
        context.incoming.remove(path)
    context.journal.close(ticket)
    run(context)
