"""The plan of a pass: one action for every path that differs between the tree, base and the store.

The planner diffs base with the store's index, scans those paths in the tree, and applies the decision table to each
path; `plan.steps` then decides version directories as a whole. Nothing is changed in the tree or in the store.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from msgspec.structs import replace

from bayou.core.text import count
from bayou.index.entry import Entry
from bayou.index.head import Head
from bayou.index.key_range import EVERYTHING, KeyRange, KeyRanges
from bayou.index.tree import Change, IndexTree, diff, find_many, scan
from bayou.objectstore.multipart import NullSink
from bayou.objectstore.store import Store
from bayou.state import base, file_stats
from bayou.state.base import SyncBase
from bayou.sync.conflicts.renumber import renumberable
from bayou.sync.context import SyncContext
from bayou.sync.plan import steps
from bayou.sync.plan.decision_table import Action, unchanged
from bayou.sync.plan.local_scanner import LocalScanner, ScanResult, check_limit
from bayou.sync.plan.policy import Policy, version_dir
from bayou.sync.plan.remote_snapshot import RemoteSnapshot, rebuilt_since
from bayou.sync.plan.steps import PathAction
from bayou.sync.report import Refusal, left_alone
from bayou.worktree.scan import ScannedFile
from bayou.worktree.scan import scan as scan_tree

_NAMED = 5
"""How many files a warning names."""

Changed: TypeAlias = dict[str, tuple[Entry | None, Entry | None]]
"""The entries that base and the store have for each path where they differ."""


def plan(
    context: SyncContext,
    scanner: LocalScanner,
    observation: ScanResult,
    snapshot: RemoteSnapshot,
    *,
    limit: int | None = None,
) -> list[PathAction]:
    """Return the action for every path that changed in the tree or in the store.

    `TooManyPaths` if the store has changed more than `limit` paths. For a window, only its paths are planned, and the
    caller checks the number of deletes of all windows (`guard`).
    """
    report = context.report
    remote_state = context.base.fold(context.nodes) if not context.options.dry_run else context.base.remote
    mine, theirs = context.base.tree(), snapshot.tree
    same = (mine.root.digest if mine.root else None) == (theirs.root.digest if theirs.root else None)
    rebuilt = snapshot.head if snapshot.head is not None and rebuilt_since(remote_state, snapshot.head) else None
    window = observation.within
    within = _diff_ranges(context, observation) if rebuilt is None else window or EVERYTHING
    changed: Changed = {}
    for change in () if same else diff(mine, theirs, within):
        changed[change.path] = change.old, change.new
        check_limit(changed, limit)
    if rebuilt is not None:
        if window is None:
            forget_unconfirmed(context, (Change(path, *pair) for path, pair in changed.items()), rebuilt)
        changed = {path: (old if old and unchanged(old, new) else None, new) for path, (old, new) in changed.items()}
    wanted = [
        path
        for path in newly_wanted(context.base, context.policy, remote_state.policy, window or EVERYTHING)
        if within.holds(path)
    ]
    unindexed = [path for path in context.state.unindexed if window is None or window.holds(path)]
    scanner.add([*changed, *wanted, *unindexed], observation)
    rest = [path for path in observation.paths if path not in changed]
    bases = context.base.lookup(rest)
    remotes = bases if same else find_many(theirs, rest)
    scanner.read_unread(_unread_to_compare(observation, changed, bases, remotes), observation)
    entries = [entry for pair in changed.values() for entry in pair if entry] + list(bases.values())
    hashes = context.base.hashes(entries, window or EVERYTHING)
    if window is None:
        report_discovery(context, snapshot)
    planned: list[PathAction] = []
    for path, seen in observation.paths.items():
        old, new = changed.get(path, (bases.get(path), remotes.get(path)))
        old = None if path in context.state.unindexed else old
        if snapshot.discovered and snapshot.seen is None and new is None and old is not None:
            report.missing.append(path)  # V5: a listing without the path does not prove a delete
            continue
        decided = steps.decide_path(seen, old, new, hashes, context.policy)
        if decided.absent == "refused" and new is not None and old != new:
            report.refused.append(Refusal(path, new.refusal() or ""))
        planned.append(decided)
    planned = [_compared(context.store, step) for step in planned]
    planned = _decide_contested_versions(context, scanner, observation, snapshot, planned, hashes)
    if window is None:
        guard(context, Counter(step.action for step in planned), snapshot)
    return planned


def _unread_to_compare(
    observation: ScanResult, changed: Changed, bases: Mapping[str, Entry], remotes: Mapping[str, Entry]
) -> list[str]:
    """Return the paths of files that the scanner has not read yet and must read.

    Base or the store has an entry for the path, or the store has changed the version that the path belongs to.
    """
    versions = {version_dir(path) for path in changed} - {None}
    return [
        path
        for path, observed in observation.paths.items()
        if observed.unread is not None
        and (path in changed or path in bases or path in remotes or (versions and version_dir(path) in versions))
    ]


def guard(context: SyncContext, counts: Mapping[Action, int], snapshot: RemoteSnapshot) -> None:
    """Raise `MassDelete` if the plan deletes more than the user is likely to intend (F033)."""
    remote_state, head = context.base.remote, snapshot.head
    roots = (remote_state.root, snapshot.tree.root)
    entries = max(root.entries if root else 0 for root in roots)
    followed = head is not None and any(row.mass_delete and row.seq > (remote_state.seq or 0) for row in head.log)
    steps.guard(counts, entries, allowed=context.options.allow_mass_delete, followed=followed)
    context.state.mass_delete = steps.is_mass(counts.get(Action.DELETE_REMOTE, 0), entries)


def report_discovery(context: SyncContext, snapshot: RemoteSnapshot) -> None:
    """Add the keys that discovery refused or ignored to the report."""
    context.report.refused += [Refusal(key.key, key.reason) for key in snapshot.refused]
    if snapshot.ignored:
        context.report.warn(left_alone(snapshot.ignored))


def forget_unconfirmed(context: SyncContext, changes: Iterable[Change], head: Head) -> None:
    """Forget the entries of base that a rebuilt index does not confirm: it may have lost them, or has older ones.

    The client then treats these files as never synced: it deletes none, and replaces none without a copy (V5).
    """
    doubtful = [change.path for change in changes if change.old is not None and not unchanged(change.old, change.new)]
    if not context.options.dry_run and head.rebuilt is not None:
        with context.database.transaction() as db:
            _forget(db, context.remote_id, doubtful)
            base.record_rebuilt(db, context.remote_id, head.rebuilt)
    if doubtful:
        context.report.warnings.append(
            f"the index was rebuilt, and differs from before in {count(len(doubtful), 'file')}; none was deleted here"
        )


def forget_unindexed(context: SyncContext, index: IndexTree, head: Head) -> frozenset[str]:
    """Forget the entries of base, discovered before the store had a head, that were gone when it got one; return them.

    Another program removed these objects. No client did: what a client deletes is in the trash until it is collected.
    So the client deletes none of the files (V5): they are untracked.
    """
    if not context.options.dry_run:
        context.base.fold(context.nodes)
    found = context.base.tree()
    gone = [change.path for change in diff(found, index) if change.new is None] if found.root is not None else []
    gone = sorted(set(gone) - find_many(IndexTree(index.source, head.trash), gone).keys())
    if gone and not context.options.dry_run:
        with context.database.transaction() as db:
            _forget(db, context.remote_id, gone)
    if gone:
        context.report.warn(
            f"{len(gone)} files that were in the store before it had an index are not in it, and no client deleted "
            f"them: {', '.join(gone[:_NAMED])}{' …' if gone[_NAMED:] else ''}; none was deleted here"
        )
    return frozenset(gone)


def _forget(db: sqlite3.Connection, remote_id: int, paths: Iterable[str]) -> None:
    for path in paths:
        base.record_entry(db, remote_id, path, None)
        file_stats.clear_match(db, path)


def _compared(store: Store, step: PathAction) -> PathAction:
    """Decide a COMPARE, of a file and an object whose hash is unknown, by reading the object: same, or in conflict."""
    content = step.observed.content
    if step.action is not Action.COMPARE or step.remote is None or content is None:
        return step
    came = store.download(step.remote.key, NullSink(), step.remote.size, if_match=step.remote.etag)
    return replace(step, action=Action.RECORD if came.sha256 == content.sha256 else Action.CONFLICT)


def _diff_ranges(context: SyncContext, observation: ScanResult) -> KeyRange | KeyRanges:
    """Return the key ranges in which to diff base with the store.

    Cost follows the change (V16), also where this tree is far behind the store: a scoped pull diffs its scope, and a
    push without a walk diffs the versions that it changes, because a version must not be mixed from two clients.
    """
    if observation.within is not None:
        return observation.within
    if context.options.scope is not None:
        return context.options.scope.spans
    if context.options.mode == "push" and not observation.walked:
        versions = {version_dir(path) for path in observation.paths} - {None}
        return KeyRanges(KeyRange.under(f"{version}/") for version in versions)
    return EVERYTHING


def newly_wanted(base: SyncBase, policy: Policy, old_policy: str, within: KeyRange = EVERYTHING) -> list[str]:
    """Return the paths that were absent under the old policy and must be present under the current one (F015)."""
    if old_policy == policy.text:
        return []
    return [path for path, why in base.absent(within).items() if not policy.still(path, why)]


def _decide_contested_versions(
    context: SyncContext,
    scanner: LocalScanner,
    observation: ScanResult,
    snapshot: RemoteSnapshot,
    planned: list[PathAction],
    hashes: Mapping[str, Entry],
) -> list[PathAction]:
    """Add every file of the version directories that both sides changed to the plan, and decide each as a whole."""
    versions = steps.conflicting_versions(planned)
    if not versions:
        return planned
    known = {step.path for step in planned}
    extra: dict[str, Entry | None] = {}
    for version in versions:
        extra.update(
            {
                entry.path: entry
                for entry in scan(snapshot.tree, KeyRange.under(f"{version}/"))
                if entry.path not in known
            }
        )
        for found in scan_tree(context.root, version):
            if isinstance(found, ScannedFile) and found.path not in known:
                extra.setdefault(found.path, None)
    scanner.add(extra, observation)
    bases = context.base.lookup(extra)
    more = [
        _compared(
            context.store, steps.decide_path(observation.paths[path], bases.get(path), entry, hashes, context.policy)
        )
        for path, entry in extra.items()
        if path in observation.paths
    ]
    all_steps = [*planned, *more]
    return steps.decide_versions(all_steps, versions, renumberable(context, observation, all_steps, versions))
