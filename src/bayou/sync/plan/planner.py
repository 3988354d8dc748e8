"""Decide every path that either side has touched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from msgspec.structs import replace

from bayou.index.entry import Entry
from bayou.index.head import Head
from bayou.index.key_range import EVERYTHING, KeyRange, KeyRanges
from bayou.index.tree import Change, diff, find_many, scan
from bayou.objectstore.multipart import NullSink
from bayou.state import base, file_stats
from bayou.sync.conflicts.renumber import renumberable
from bayou.sync.context import SyncContext
from bayou.sync.plan import steps
from bayou.sync.plan.decision_table import Action, unchanged
from bayou.sync.plan.local_scanner import LocalScanner, Observation, check_limit
from bayou.sync.plan.policy import version_dir
from bayou.sync.plan.remote_snapshot import RemoteSnapshot, rebuilt_since
from bayou.sync.plan.steps import PathAction
from bayou.sync.report import Refusal

Changed: TypeAlias = dict[str, tuple[Entry | None, Entry | None]]
"""What base and the store say of each path that they differ in."""


def plan(
    context: SyncContext,
    observer: LocalScanner,
    observation: Observation,
    store_view: RemoteSnapshot,
    *,
    limit: int | None = None,
) -> list[PathAction]:
    """Decide every path that either side has touched; `TooMany` if the store has changed more than `limit`.

    Of a window, only the paths in it: how much is deleted in all is for those to judge who see it all.
    """
    report = context.report
    place = context.base.fold(context.nodes) if not context.options.dry_run else context.base.remote
    mine, theirs = context.base.tree(), store_view.tree
    same = (mine.root.digest if mine.root else None) == (theirs.root.digest if theirs.root else None)
    rebuilt = store_view.head if store_view.head is not None and rebuilt_since(place, store_view.head) else None
    window = observation.within
    within = _within(context, observation) if rebuilt is None else window or EVERYTHING
    changed: Changed = {}
    for one in () if same else diff(mine, theirs, within):
        changed[one.path] = one.old, one.new
        check_limit(changed, limit)
    if rebuilt is not None:
        if window is None:
            distrust(context, (Change(path, *pair) for path, pair in changed.items()), rebuilt)
        changed = {path: (old if old and unchanged(old, new) else None, new) for path, (old, new) in changed.items()}
    back = [path for path in returning(context, place.policy, window or EVERYTHING) if within.holds(path)]
    observer.look_at([*changed, *back], observation)
    rest = [path for path in observation.paths if path not in changed]
    bases = context.base.lookup(rest)
    remotes = bases if same else find_many(theirs, rest)
    observer.read(_to_be_compared(observation, changed, bases, remotes), observation)
    entries = [entry for pair in changed.values() for entry in pair if entry] + list(bases.values())
    hashes = context.base.hashes(entries, window or EVERYTHING)
    if window is None:
        tell_found(context, store_view)
    todo: list[PathAction] = []
    for path, seen in observation.paths.items():
        old, new = changed.get(path, (bases.get(path), remotes.get(path)))
        if store_view.discovered and store_view.seen is None and new is None and old is not None:
            report.missing.append(path)  # V5: a listing without it is no word that it was deleted
            continue
        decided = steps.step(seen, old, new, hashes, context.policy)
        if decided.absent == "refused" and new is not None and old != new:
            report.refused.append(Refusal(path, new.refusal() or ""))
        todo.append(decided)
    todo = [_compared(context, one) for one in todo]
    todo = _whole_units(context, observer, observation, store_view, todo, hashes)
    if window is None:
        guard(context, Counter(one.action for one in todo), store_view)
    return todo


def _to_be_compared(
    observation: Observation, changed: Changed, bases: Mapping[str, Entry], remotes: Mapping[str, Entry]
) -> list[str]:
    """Return the paths of files that were not read yet and must be: base or the store has something there, or has
    changed the version that they belong to."""
    units = {version_dir(path) for path in changed} - {None}
    return [
        path
        for path, one in observation.paths.items()
        if one.unread is not None
        and (path in changed or path in bases or path in remotes or (units and version_dir(path) in units))
    ]


def guard(context: SyncContext, counts: Mapping[Action, int], store_view: RemoteSnapshot) -> None:
    """Stop before more is deleted than anybody means without saying so (F033)."""
    place, head = context.base.remote, store_view.head
    roots = (place.root, store_view.tree.root)
    entries = max(root.entries if root else 0 for root in roots)
    followed = head is not None and any(row.mass_delete and row.seq > (place.seq or 0) for row in head.log)
    steps.guard(counts, entries, allowed=context.options.allow_mass_delete, followed=followed)
    context.mass_delete = steps.is_mass(counts.get(Action.DELETE_REMOTE, 0), entries)


def tell_found(context: SyncContext, store_view: RemoteSnapshot) -> None:
    """Put into the report what a discovery left aside."""
    context.report.refused += [Refusal(one.key, one.reason) for one in store_view.refused]
    if store_view.ignored:
        context.report.warn(f"{store_view.ignored} keys in the store are not payload and were left alone")


def distrust(context: SyncContext, changes: Iterable[Change], head: Head) -> None:
    """Forget what base says and a rebuilt index does not: that may be lost there, or older than what we have.

    Such files are met as if nobody had ever synced them: none is deleted, and none replaced without a copy of it (V5).
    """
    doubtful = [one.path for one in changes if one.old is not None and not unchanged(one.old, one.new)]
    if not context.options.dry_run and head.rebuilt is not None:
        with context.database.transaction() as db:
            for path in doubtful:
                base.record_entry(db, context.place, path, None)
                file_stats.clear_match(db, path)
            base.record_rebuilt(db, context.place, head.rebuilt)
    if doubtful:
        context.report.warnings.append(
            f"the index was rebuilt, and says other things than before of {len(doubtful)} files; none was deleted here"
        )


def _compared(context: SyncContext, one: PathAction) -> PathAction:
    """Settle a file that meets an object of unknown hash, by reading that: they are the same, or in conflict."""
    content = one.observed.content
    if one.action is not Action.COMPARE or one.remote is None or content is None:
        return one
    came = context.store.download(one.remote.key, NullSink(), one.remote.size, if_match=one.remote.etag)
    return replace(one, action=Action.RECORD if came.sha256 == content.sha256 else Action.CONFLICT)


def _within(context: SyncContext, observation: Observation) -> KeyRange | KeyRanges:
    """Return where to look for what the store has changed.

    Cost follows the change (V16), also where this tree is far behind the store: a scoped pull looks at its scope, and a
    push that has not walked at the versions that it is about to touch, which must not be torn.
    """
    if observation.within is not None:
        return observation.within
    if context.options.scope is not None:
        return context.options.scope.spans
    if context.options.mode == "push" and not observation.walked:
        units = {version_dir(path) for path in observation.paths} - {None}
        return KeyRanges(KeyRange.under(f"{unit}/") for unit in units)
    return EVERYTHING


def returning(context: SyncContext, policy: str, within: KeyRange = EVERYTHING) -> list[str]:
    """Return what was absent under another policy and must be here under today's (F015)."""
    if policy == context.policy.text:
        return []
    return [path for path, why in context.base.absent(within).items() if not context.policy.still(path, why)]


def _whole_units(
    context: SyncContext,
    observer: LocalScanner,
    observation: Observation,
    store_view: RemoteSnapshot,
    todo: list[PathAction],
    hashes: Mapping[str, Entry],
) -> list[PathAction]:
    """Bring every file of a version directory that both sides changed into the plan, and decide it whole."""
    units = steps.conflicting_versions(todo)
    if not units:
        return todo
    known = {one.path for one in todo}
    extra: dict[str, Entry | None] = {}
    for unit in units:
        extra.update(
            {
                entry.path: entry
                for entry in scan(store_view.tree, KeyRange.under(f"{unit}/"))
                if entry.path not in known
            }
        )
        for file in (context.root / unit).rglob("*"):
            path = file.relative_to(context.root).as_posix()
            if path not in known and file.is_file() and not file.is_symlink():
                extra.setdefault(path, None)
    observer.look_at(extra, observation)
    bases = context.base.lookup(extra)
    more = [
        _compared(context, steps.step(observation.paths[path], bases.get(path), entry, hashes, context.policy))
        for path, entry in extra.items()
        if path in observation.paths
    ]
    whole = [*todo, *more]
    return steps.settle_units(whole, units, renumberable(context, observation, whole, units))
