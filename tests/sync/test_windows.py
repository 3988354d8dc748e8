"""Windows together hold every path once, in order, and no version is cut in two."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from bayou.sync.plan.decision_table import LocalState
from bayou.sync.plan.local_scanner import ObservedPath
from bayou.sync.plan.policy import version_dirs_around
from bayou.sync.plan.windows import Candidate, divide_into_windows

NAMES = st.sampled_from(["raw", "a", "0", "1", "2", "10", "x"])
UNITS = st.lists(NAMES, min_size=1, max_size=5).map(lambda names: "data/t/m/" + "/".join(names))
PATHS = UNITS | st.integers(0, 30).map(lambda at: f"files/{at}")


def candidate(path: str) -> Candidate:
    return Candidate(ObservedPath(path, LocalState(), None, 0), named=True)


@given(st.sets(PATHS, max_size=60), st.integers(1, 10))
def test_windows_are_all_paths_once_and_in_order(paths: set[str], size: int) -> None:
    windows = list(divide_into_windows((candidate(path) for path in sorted(paths)), size))

    assert [row.observed.path for window in windows for row in window.rows] == sorted(paths)
    assert all(window.span.holds(row.observed.path) for window in windows for row in window.rows)
    assert (windows[0].span.start, windows[-1].span.end) == ("", None)
    assert all(one.span.end == other.span.start for one, other in pairwise(windows))


@given(st.sets(PATHS, max_size=60), st.integers(1, 10))
def test_no_version_is_cut_in_two_not_even_around_another_one(paths: set[str], size: int) -> None:
    windows = list(divide_into_windows((candidate(path) for path in sorted(paths)), size))

    homes: dict[str, set[int]] = {}
    for at, window in enumerate(windows):
        for row in window.rows:
            for unit in version_dirs_around(row.observed.path):
                homes.setdefault(unit, set()).add(at)
                # Nor is what nobody has looked at: a version ends where its window does, or before.
                assert window.span.holds(f"{unit}/\U0010fffe")
    assert all(len(found) == 1 for found in homes.values())


def test_a_window_is_as_large_as_it_may_be_and_no_larger() -> None:
    windows = list(divide_into_windows((candidate(f"files/{at:02}") for at in range(40)), 7))

    assert [len(window.rows) for window in windows] == [7, 7, 7, 7, 7, 5]


def test_nothing_to_decide_is_one_window_of_everything() -> None:
    (window,) = divide_into_windows([], 7)

    assert (window.span.start, window.span.end, window.rows) == ("", None, [])
