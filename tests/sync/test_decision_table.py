"""The decision table of section 5 of the design, row by row, and what packs have added to it (P5)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from bayou.index.entry import Entry
from bayou.sync.plan.decision_table import UNREAD, Action, LocalState, decide, unchanged

PUSH, NEXT = "01J8XG4Q6V5T3N2M1K0H9G8F7E", "01J8XG4Q6V5T3N2M1K0H9G8F7F"
OLD, NEW, OTHER = (bytes([number]) * 32 for number in (1, 2, 3))
PATH = "files/x"


def entry(sha256: bytes | None = OLD, push: str | None = PUSH, etag: str | None = None) -> Entry:
    return Entry(PATH, push, 5, sha256, etag, None, 0)


def here(sha256: bytes, *, ours: bool = True) -> LocalState:
    return LocalState(sha256, 5, ours=ours)


BASE = entry()
SAME = here(OLD)
CHANGED = here(NEW)
DELETED = LocalState(deleted=True)
MISSING = LocalState()
ABSENT = LocalState(absent=True)
UNTRACKED = here(NEW, ours=False)

IN_A_PACK = replace(BASE, pack=f"{NEXT}-1000", offset=40, stored=5, method=0)
ELSEWHERE = replace(BASE, at=NEXT)
REMADE = entry(OLD, NEXT)
THEIRS = entry(OTHER, NEXT)
EQUAL = entry(NEW, NEXT)

TABLE = [
    # The table of the design.
    (BASE, SAME, BASE, Action.NOTHING),
    (BASE, CHANGED, BASE, Action.PUSH),
    (None, CHANGED, None, Action.PUSH),
    (BASE, SAME, THEIRS, Action.PULL),
    (None, MISSING, THEIRS, Action.PULL),
    (BASE, SAME, None, Action.DELETE_LOCAL),
    (BASE, DELETED, BASE, Action.DELETE_REMOTE),
    (BASE, DELETED, None, Action.RECORD),
    (BASE, MISSING, BASE, Action.PULL),
    (BASE, MISSING, THEIRS, Action.PULL),
    (BASE, MISSING, None, Action.RECORD),
    (BASE, CHANGED, EQUAL, Action.RECORD),
    (BASE, CHANGED, THEIRS, Action.CONFLICT),
    (None, CHANGED, THEIRS, Action.CONFLICT),
    (None, CHANGED, EQUAL, Action.RECORD),
    (BASE, CHANGED, None, Action.PUSH_BACK),
    (BASE, DELETED, THEIRS, Action.KEEP_REMOTE),
    (None, DELETED, THEIRS, Action.KEEP_REMOTE),
    (None, DELETED, None, Action.NOTHING),
    # Files that no journal row names, and files that are absent on purpose.
    (None, UNTRACKED, None, Action.UNTRACKED),
    (None, UNTRACKED, THEIRS, Action.CONFLICT),
    (None, UNTRACKED, EQUAL, Action.RECORD),
    (BASE, ABSENT, BASE, Action.NOTHING),
    (BASE, ABSENT, THEIRS, Action.PULL),
    (BASE, ABSENT, None, Action.DELETE_LOCAL),
    # P5: the same row at another location is no change; base takes the location.
    *((BASE, SAME, moved, Action.RECORD) for moved in (IN_A_PACK, ELSEWHERE)),
    *((BASE, ABSENT, moved, Action.RECORD) for moved in (IN_A_PACK, ELSEWHERE)),
    *((BASE, CHANGED, moved, Action.PUSH) for moved in (IN_A_PACK, ELSEWHERE)),
    *((BASE, DELETED, moved, Action.DELETE_REMOTE) for moved in (IN_A_PACK, ELSEWHERE)),
    (BASE, MISSING, IN_A_PACK, Action.PULL),
    (IN_A_PACK, SAME, BASE, Action.RECORD),
    # P5: the same bytes of another push are a change: nothing is downloaded, and what was made again stays (K8).
    (BASE, SAME, REMADE, Action.RECORD),
    (BASE, ABSENT, REMADE, Action.RECORD),
    (BASE, DELETED, REMADE, Action.KEEP_REMOTE),
    (BASE, CHANGED, REMADE, Action.CONFLICT),
    (BASE, MISSING, REMADE, Action.PULL),
]


@pytest.mark.parametrize(("base", "local", "remote", "action"), TABLE)
def test_a_path_is_decided_as_the_design_says(
    base: Entry | None, local: LocalState, remote: Entry | None, action: Action
) -> None:
    assert decide(base, local, remote) is action


@pytest.mark.parametrize("moved", [IN_A_PACK, ELSEWHERE])
@pytest.mark.parametrize("local", [SAME, CHANGED, DELETED, MISSING, ABSENT, here(UNREAD)])
def test_a_location_decides_nothing_but_that_it_is_recorded(moved: Entry, local: LocalState) -> None:
    """P4, P5: a compaction between two syncs changes no decision."""
    plain = decide(BASE, local, BASE)

    assert decide(BASE, local, moved) is (Action.RECORD if plain is Action.NOTHING else plain)


FOUND = entry(None, None, etag='"1"')


@pytest.mark.parametrize(
    ("base", "local", "remote", "action"),
    [
        (FOUND, MISSING, FOUND, Action.PULL),
        (FOUND, CHANGED, FOUND, Action.PUSH),
        (FOUND, DELETED, FOUND, Action.DELETE_REMOTE),
        (FOUND, ABSENT, replace(FOUND, etag='"2"'), Action.PULL),
        (FOUND, DELETED, replace(FOUND, etag='"2"'), Action.KEEP_REMOTE),
        (FOUND, ABSENT, replace(FOUND, sha256=OLD), Action.RECORD),
        (None, CHANGED, FOUND, Action.COMPARE),
        (None, CHANGED, replace(FOUND, size=6), Action.CONFLICT),
    ],
)
def test_a_discovered_object_is_told_by_its_etag(
    base: Entry | None, local: LocalState, remote: Entry | None, action: Action
) -> None:
    assert decide(base, local, remote) is action


def test_the_store_still_has_the_content_wherever_it_is_and_whoever_pushed_it() -> None:
    assert all(unchanged(BASE, remote) for remote in (BASE, IN_A_PACK, ELSEWHERE, REMADE))
    assert not any(unchanged(BASE, remote) for remote in (None, THEIRS, EQUAL))
