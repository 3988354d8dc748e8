"""The steps of a plan: the action for each path, the decision for whole version directories, the mass-delete guard.

All functions are pure. `decide_path` applies the decision table and the policy to one path; `decide_versions` then
makes one decision for all files of a version that both sides changed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from bayou.core import paths
from bayou.core.errors import MassDelete
from bayou.index.entry import Entry
from bayou.state.base import Why
from bayou.sync.plan.decision_table import Action, decide, unchanged
from bayou.sync.plan.local_scanner import ObservedPath
from bayou.sync.plan.policy import Policy, version_dir

MASS_SHARE = 0.5
MASS_COUNT = 200
"""A plan that deletes more than this number and this share of all entries is a mass delete."""

_CHANGED_HERE = {Action.PUSH, Action.PUSH_BACK, Action.DELETE_REMOTE, Action.KEEP_REMOTE, Action.CONFLICT}
_CHANGED_THERE = {Action.DELETE_LOCAL, Action.PUSH_BACK, Action.KEEP_REMOTE, Action.CONFLICT}
_AGREED = {Action.NOTHING, Action.RECORD}


class PathAction(Struct, frozen=True):
    """The planned action for one path. `base` and `remote` are its entries; `absent` says why it stays absent."""

    path: str
    action: Action
    base: Entry | None
    remote: Entry | None
    observed: ObservedPath
    absent: Why | None = None

    @property
    def is_change(self) -> bool:
        """Whether the file, the entry or the record of either changes; base taking a new location is no change (P4)."""
        moved = self.base is not None and self.remote is not None and self.base.same_content(self.remote)
        return self.action is not Action.NOTHING and not (self.action is Action.RECORD and moved)


def decide_path(
    observed: ObservedPath, base: Entry | None, remote: Entry | None, hashes: Mapping[str, Entry], policy: Policy
) -> PathAction:
    """Decide one path. `hashes` has discovered entries whose hash this machine knows."""
    path = observed.path
    unsafe = (paths.refusal(path) if remote is None else remote.refusal()) is not None
    refused = unsafe and not (paths.refusal(path) is None and _changed_here(observed))
    if refused or policy.excluded(path):
        # V8: it is transferred in neither direction; base follows the remote, and records that the file is absent.
        action = Action.NOTHING if base == remote else Action.RECORD
        return PathAction(path, action, base, remote, observed, "refused" if refused else "excluded")
    if unsafe:
        # V25: the first local change replaces, or deletes, an unsafe row of the index.
        return PathAction(path, Action.DELETE_REMOTE if observed.state.deleted else Action.PUSH, base, remote, observed)
    action = decide(_with_hash(base, hashes), observed.state, _with_hash(remote, hashes))
    if action is Action.NOTHING and base != remote:
        action = Action.RECORD
    return PathAction(path, action, base, remote, observed)


def _changed_here(observed: ObservedPath) -> bool:
    """Return whether the journal has a write or a delete of this path."""
    state = observed.state
    return state.deleted or (state.present and state.ours)


def conflicting_versions(steps: Sequence[PathAction]) -> set[str]:
    """Return the version directories that both sides have changed, even in different files."""
    known = [step for step in steps if step.absent is None]
    changed_here = [step for step in known if step.action in _CHANGED_HERE]
    # Hot: in most large pulls this machine has changed nothing, and in most large pushes the store.
    if not changed_here:
        return set()
    there = {
        version_dir(step.path)
        for step in known
        if step.action in _CHANGED_THERE or (step.action is Action.PULL and not _lost_here(step))
    }
    here = {version_dir(step.path) for step in changed_here} if there else set()
    return {version for version in here & there if version is not None}


def decide_versions(
    steps: Iterable[PathAction], versions: Container[str], renumbered: Container[str]
) -> list[PathAction]:
    """Decide each of these version directories as a whole, by the rules that the table has for single files.

    `steps` must have every file of each version, local and remote. A version that was deleted remotely and changed
    locally is pushed back; one that was deleted locally and changed remotely is kept. Otherwise the local version is
    renumbered if it is in `renumbered`, or the two are in conflict, and no file of one gets into the other. Untracked
    files stay, unless they cannot be told apart from the files in conflict (`_is_unclaimed`).
    """
    decided_all: list[PathAction] = []
    members: dict[str, list[PathAction]] = defaultdict(list)
    for step in steps:
        version = version_dir(step.path) if step.absent is None else None
        if version is not None and version in versions:
            members[version].append(step)
        else:
            decided_all.append(step)
    for version, actions in members.items():
        known = [step for step in actions if step.action is not Action.UNTRACKED]
        untracked = [step for step in actions if step.action is Action.UNTRACKED]
        if version in renumbered:
            decided = [replace(step, action=Action.RENUMBER) for step in known]
        else:
            decided = list(_decide_version(known))
        decided_all.extend(decided)
        decided_all.extend(
            replace(step, action=Action.CONFLICT) if _is_unclaimed(decided) else step for step in untracked
        )
    return decided_all


def _is_unclaimed(decided: Sequence[PathAction]) -> bool:
    """Return whether a version is in conflict and neither base nor the journal names any local file of it.

    Then its untracked files belong to it as much as the files in conflict, and are kept aside with them. If they
    stayed, they would lie in the store's version, and the next mark of the whole tree would push them into it.
    """
    named = any(step.base is not None or step.observed.state.ours or step.observed.state.deleted for step in decided)
    return not named and any(step.action is Action.CONFLICT for step in decided)


def _lost_here(step: PathAction) -> bool:
    """Return whether a pull only restores a file that this tree has lost."""
    return step.base is not None and unchanged(step.base, step.remote)


def _decide_version(members: list[PathAction]) -> Iterator[PathAction]:
    present = [step for step in members if step.observed.state.present]
    elsewhere = [step for step in members if step.observed.state.absent and not step.observed.state.present]
    if not elsewhere and not any(step.remote is not None for step in members):
        return (replace(step, action=Action.PUSH_BACK) if step in present else step for step in members)
    if not elsewhere and not present:
        return (replace(step, action=Action.KEEP_REMOTE) if step.action in _CHANGED_HERE else step for step in members)
    return (step if step.action in _AGREED else replace(step, action=Action.CONFLICT) for step in members)


def guard(counts: Mapping[Action, int], entries: int, *, allowed: bool, followed: bool) -> None:
    """Raise `MassDelete` if a plan deletes more than the user is likely to intend (F033).

    `followed`: a commit since base is an allowed mass delete, so its deletes are also allowed here.
    """
    for what, action, permitted in (
        ("in the store", Action.DELETE_REMOTE, allowed),
        ("here", Action.DELETE_LOCAL, allowed or followed),
    ):
        count = counts.get(action, 0)
        if not permitted and is_mass(count, entries):
            raise MassDelete(
                f"this would delete {count} of {entries} entries {what}; nothing was changed",
                hint="if that is meant: bayou datastore sync --allow-mass-delete",
            )


def is_mass(deletes: int, entries: int) -> bool:
    """Return whether so many deletes of so many entries need the user's permission."""
    return deletes > MASS_COUNT and deletes > entries * MASS_SHARE


def _with_hash(entry: Entry | None, hashes: Mapping[str, Entry]) -> Entry | None:
    if entry is None or entry.sha256 is not None:
        return entry
    known = hashes.get(entry.path)
    same = known is not None and (known.size, known.etag, known.version) == (entry.size, entry.etag, entry.version)
    return known if same else entry
