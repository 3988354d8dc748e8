"""From what was seen to what is to be done: one step for each path, and version directories as units."""

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
from bayou.sync.plan.local_scanner import Observed
from bayou.sync.plan.policy import Policy, version_dir

MASS_SHARE = 0.5
MASS_COUNT = 200


class PathAction(Struct, frozen=True):
    """What to do with one path. `base` and `remote` are verbatim; `absent` says why it stays away on purpose."""

    path: str
    action: Action
    base: Entry | None
    remote: Entry | None
    observed: Observed
    absent: Why | None = None


def decide_path(
    observed: Observed, base: Entry | None, remote: Entry | None, hashes: Mapping[str, Entry], policy: Policy
) -> PathAction:
    """Decide one path. `hashes` has entries of discovery whose hash this machine knows."""
    path = observed.path
    bad = (paths.refusal(path) if remote is None else remote.refusal()) is not None
    refused = bad and not (paths.refusal(path) is None and _changed_here(observed))
    if refused or policy.excluded(path):
        # V8: it never crosses, in either direction; base follows the remote, and says that it is not here.
        action = Action.NOTHING if base == remote else Action.RECORD
        return PathAction(path, action, base, remote, observed, "refused" if refused else "excluded")
    if bad:
        # V25: a row that nothing can be done by is replaced, or deleted, by the first change that is made here.
        return PathAction(path, Action.DELETE_REMOTE if observed.state.deleted else Action.PUSH, base, remote, observed)
    action = decide(_with_hash(base, hashes), observed.state, _with_hash(remote, hashes))
    if action is Action.NOTHING and base != remote:
        action = Action.RECORD
    return PathAction(path, action, base, remote, observed)


def _changed_here(observed: Observed) -> bool:
    """Whether the journal says that this path was written or deleted here."""
    state = observed.state
    return state.deleted or (state.present and state.ours)


def conflicting_versions(steps: Sequence[PathAction]) -> set[str]:
    """Return the version directories that both sides have changed, be it in different files."""
    known = [step for step in steps if step.absent is None]
    there = {
        version_dir(step.path)
        for step in known
        if step.action in _CHANGED_THERE or (step.action is Action.PULL and not _lost_here(step))
    }
    # Hot: a push of many files is mostly about a store that has changed nothing.
    here = {version_dir(step.path) for step in known if step.action in _CHANGED_HERE} if there else set()
    return {version for version in here & there if version is not None}


def decide_versions(
    steps: Iterable[PathAction], versions: Container[str], renumbered: Container[str]
) -> list[PathAction]:
    """Decide contested version directories whole, by the rows of the table that hold for single files.

    `steps` must have every file of each, here and there: deleted there and changed here, it is pushed back; deleted
    here and changed there, it is kept; else ours is `renumbered`, or the two are in conflict, and no file of one gets
    into the other. Files that are untracked stay, unless nobody can tell them from those that are in conflict.
    """
    alone: list[PathAction] = []
    members: dict[str, list[PathAction]] = defaultdict(list)
    for step in steps:
        version = version_dir(step.path) if step.absent is None else None
        if version is not None and version in versions:
            members[version].append(step)
        else:
            alone.append(step)
    for version, actions in members.items():
        known = [step for step in actions if step.action is not Action.UNTRACKED]
        untracked = [step for step in actions if step.action is Action.UNTRACKED]
        if version in renumbered:
            decided = [replace(step, action=Action.RENUMBER) for step in known]
        else:
            decided = list(_decide_version(known))
        alone.extend(decided)
        alone.extend(replace(step, action=Action.CONFLICT) if _is_unclaimed(decided) else step for step in untracked)
    return alone


def _is_unclaimed(decided: Sequence[PathAction]) -> bool:
    """Whether a version is in conflict of which neither base nor a row of the journal names anything here.

    Then its untracked files are as much of it as those that are in conflict, and go aside with them. Left where they
    are, they would lie in the store's version, and be pushed into it with the next mark that names everything.
    """
    named = any(step.base is not None or step.observed.state.ours or step.observed.state.deleted for step in decided)
    return not named and any(step.action is Action.CONFLICT for step in decided)


_CHANGED_HERE = {Action.PUSH, Action.PUSH_BACK, Action.DELETE_REMOTE, Action.KEEP_REMOTE, Action.CONFLICT}
_CHANGED_THERE = {Action.DELETE_LOCAL, Action.PUSH_BACK, Action.KEEP_REMOTE, Action.CONFLICT}
_AGREED = {Action.NOTHING, Action.RECORD}


def _lost_here(step: PathAction) -> bool:
    """Whether a pull only brings back what this tree has lost."""
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
    """Stop before more is deleted than anybody means without saying so (F033).

    `followed`: a commit since base says that its mass delete was allowed, so what it deletes is deleted here too.
    """
    for what, action, waved in (
        ("in the store", Action.DELETE_REMOTE, allowed),
        ("here", Action.DELETE_LOCAL, allowed or followed),
    ):
        count = counts.get(action, 0)
        if not waved and is_mass(count, entries):
            raise MassDelete(
                f"this would delete {count} of {entries} entries {what}; nothing was changed",
                hint="if that is meant: bayou datastore sync --allow-mass-delete",
            )


def is_mass(deletes: int, entries: int) -> bool:
    """Whether so many deletes are more than routine."""
    return deletes > MASS_COUNT and deletes > entries * MASS_SHARE


def _with_hash(entry: Entry | None, hashes: Mapping[str, Entry]) -> Entry | None:
    if entry is None or entry.sha256 is not None:
        return entry
    known = hashes.get(entry.path)
    same = known is not None and (known.size, known.etag, known.version) == (entry.size, entry.etag, entry.version)
    return known if same else entry
