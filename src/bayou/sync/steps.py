"""From what was seen to what is to be done: one step for each path, and version directories as units."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from bayou import paths
from bayou.errors import MassDelete
from bayou.index.entry import Entry
from bayou.sync.observe import Observed
from bayou.sync.plan import Action, decide
from bayou.sync.policy import Policy, Why
from bayou.sync.units import unit_of

MASS_SHARE = 0.5
MASS_COUNT = 200


@dataclass(frozen=True, slots=True)
class Step:
    """What to do with one path. `base` and `remote` are verbatim; `absent` says why it stays away on purpose."""

    path: str
    action: Action
    base: Entry | None
    remote: Entry | None
    observed: Observed
    absent: Why | None = None


def step(
    observed: Observed, base: Entry | None, remote: Entry | None, hashes: Mapping[str, Entry], policy: Policy
) -> Step:
    """Decide one path. `hashes` has entries of discovery whose hash this machine knows."""
    path = observed.path
    refused = paths.refusal(path) is not None
    if refused or policy.excluded(path):
        # V8: it never crosses, in either direction; base follows the remote, and says that it is not here.
        action = Action.NOTHING if base == remote else Action.RECORD
        return Step(path, action, base, remote, observed, "refused" if refused else "excluded")
    action = decide(_with_hash(base, hashes), observed.state, _with_hash(remote, hashes))
    if action is Action.NOTHING and base != remote:
        action = Action.RECORD
    return Step(path, action, base, remote, observed)


def as_units(steps: Iterable[Step]) -> list[Step]:
    """Make version directories move, conflict and be deleted whole.

    A unit that one side changed and the other changed too, be it in other files, is in conflict; one that is partly
    pushed back is pushed back whole; one that is partly kept is kept whole.
    """
    alone: list[Step] = []
    units: dict[str, list[Step]] = defaultdict(list)
    for one in steps:
        unit = unit_of(one.path) if one.absent is None else None
        if unit is None:
            alone.append(one)
        else:
            units[unit].append(one)
    for members in units.values():
        alone.extend(_one_unit(members))
    return alone


def conflicting_units(steps: Iterable[Step]) -> set[str]:
    """Return the units in conflict: every file of theirs, here and there, takes part."""
    return {unit for one in steps if one.action is Action.CONFLICT and (unit := unit_of(one.path)) is not None}


def _one_unit(members: list[Step]) -> Iterator[Step]:
    actions = {one.action for one in members}
    if Action.CONFLICT in actions or (actions & _OUTWARD and actions & _INWARD):
        return (_in_conflict(one) for one in members)
    if Action.PUSH_BACK in actions:
        return (_turn(one, Action.DELETE_LOCAL, Action.PUSH_BACK) for one in members)
    if Action.KEEP_REMOTE in actions:
        return (_turn(one, Action.DELETE_REMOTE, Action.KEEP_REMOTE) for one in members)
    return iter(members)


_OUTWARD = {Action.PUSH}
_INWARD = {Action.PULL}


def _in_conflict(one: Step) -> Step:
    """Let the store's side of a unit win a path, keeping what is here if that is something else."""
    if one.action in (Action.NOTHING, Action.RECORD, Action.COMPARE, Action.DELETE_LOCAL, Action.KEEP_REMOTE):
        return one
    if one.action is Action.DELETE_REMOTE:
        return replace(one, action=Action.KEEP_REMOTE)
    return replace(one, action=Action.CONFLICT if one.observed.state.present else Action.PULL)


def _turn(one: Step, was: Action, becomes: Action) -> Step:
    return replace(one, action=becomes) if one.action is was else one


def guard(steps: Iterable[Step], entries: int, *, allowed: bool, followed: bool) -> None:
    """Stop before more is deleted than anybody means without saying so (F033).

    `followed`: a commit since base says that its mass delete was allowed, so what it deletes is deleted here too.
    """
    steps = list(steps)
    for what, action, waved in (
        ("in the store", Action.DELETE_REMOTE, allowed),
        ("here", Action.DELETE_LOCAL, allowed or followed),
    ):
        count = sum(one.action is action for one in steps)
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
