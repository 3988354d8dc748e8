"""The walk of a range of paths: in order, and all ranges together find what one walk of the whole tree finds."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bayou.core import paths
from bayou.core.errors import PathRefused
from bayou.index.key_range import EVERYTHING, KeyRange
from bayou.worktree.scan import ScannedFile, SkippedPath, dividing_paths, scan, scan_range

# `.` and `-` come before `/`, letters after it: `a.b` lies before `a/x`, and `a0` after it.
NAMES = st.sampled_from(["a", "a.b", "a-", "a0", "b", "é", "\U0001f600", "~x", ".x", "c\x01", ".bayou-x.tmp"])
FILES = st.lists(
    st.tuples(st.sampled_from(sorted(paths.PAYLOAD_ROOTS)), st.lists(NAMES, min_size=1, max_size=4)), max_size=25
)


def lay(root: Path, files: list[tuple[str, list[str]]]) -> None:
    for top, names in files:
        path = root.joinpath(top, *names)
        if not any(above.is_file() for above in path.parents) and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x" * len(names))


def in_ranges(root: Path, starts: list[str]) -> tuple[list[ScannedFile], list[SkippedPath], list[str]]:
    """Walk each of the ranges that begin at these paths."""
    bounds = ["", *sorted({start for start in starts if start})]
    files: list[ScannedFile] = []
    skipped: list[SkippedPath] = []
    temporaries: list[str] = []
    for start, end in zip(bounds, [*bounds[1:], None], strict=True):
        files += scan_range(root, KeyRange(start, end), skipped, temporaries)
    return files, skipped, temporaries


def whole(root: Path) -> tuple[list[ScannedFile], list[SkippedPath], list[str]]:
    temporaries: list[str] = []
    items = list(scan(root, None, temporaries))
    files = sorted(item for item in items if isinstance(item, ScannedFile))
    return files, [item for item in items if isinstance(item, SkippedPath)], temporaries


def by_path(items: list[SkippedPath]) -> list[tuple[str, str, str]]:
    return sorted((item.path, item.kind, item.reason) for item in items)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(FILES, st.lists(st.text("abdefilts/.-0é~\U0001f600", max_size=9), max_size=5))
def test_the_ranges_find_in_order_what_one_walk_finds(tmp_path: Path, files, starts) -> None:
    root = tmp_path / "tree"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    lay(root, files)

    found, skipped, temporaries = in_ranges(root, starts)

    expected, others, left = whole(root)
    assert found == expected  # sorted by path: the ranges and the files in them are in order
    assert by_path(skipped) == by_path(others)
    assert sorted(temporaries) == sorted(left)


def test_links_fifos_and_foreign_names_are_reported_once(tmp_path: Path) -> None:
    lay(tmp_path, [("files", ["a", "b"]), ("data", ["x"])])
    (tmp_path / "foreign").touch()
    os.symlink("/", tmp_path / "files/link")
    os.mkfifo(tmp_path / "files/fifo")
    os.symlink(tmp_path / "files", tmp_path / "logs")

    found, skipped, _ = in_ranges(tmp_path, ["files/", "files/g"])

    assert [file.path for file in found] == ["data/x", "files/a/b"]
    assert by_path(skipped) == by_path(whole(tmp_path)[1])
    assert {item.path for item in skipped} == {"foreign", "files/link", "files/fifo", "logs"}


def test_a_name_that_is_no_text_is_reported_in_one_range(tmp_path: Path) -> None:
    lay(tmp_path, [("files", ["a"]), ("files", ["z"])])
    Path(os.fsdecode(os.fsencode(tmp_path / "files") + b"/caf\xe9")).touch()

    found, skipped, _ = in_ranges(tmp_path, ["files/b", "files/z"])

    assert [file.path for file in found] == ["files/a", "files/z"]
    assert by_path(skipped) == by_path(whole(tmp_path)[1])


def test_a_tree_that_is_a_link_is_refused_and_one_that_is_missing_is_empty(tmp_path: Path) -> None:
    os.symlink(tmp_path, tmp_path / "link")

    with pytest.raises(PathRefused):
        list(scan_range(tmp_path / "link", EVERYTHING, [], []))
    assert list(scan_range(tmp_path / "missing", EVERYTHING, [], [])) == []


def test_a_walk_that_is_given_up_leaves_no_descriptor_open(tmp_path: Path) -> None:
    lay(tmp_path, [("files", ["a", "b", "c", "d"]), ("files", ["z"])])
    before = len(os.listdir("/proc/self/fd"))

    walk = scan_range(tmp_path, EVERYTHING, [], [])
    next(walk)
    assert len(os.listdir("/proc/self/fd")) > before
    walk.close()  # type: ignore[attr-defined]

    assert len(os.listdir("/proc/self/fd")) == before


def test_a_directory_that_becomes_a_link_is_not_followed(tmp_path: Path) -> None:
    lay(tmp_path, [("files", ["a"]), ("files", ["b", "c"])])
    skipped: list[SkippedPath] = []
    walk = scan_range(tmp_path, EVERYTHING, skipped, [])
    assert next(walk).path == "files/a"
    (tmp_path / "files/b").rename(tmp_path / "moved")
    os.symlink(tmp_path / "moved", tmp_path / "files/b")

    assert list(walk) == []
    assert [(item.path, item.kind) for item in skipped if item.path != "moved"] == [("files/b", "unreadable")]


class Listing:
    """A listing of a directory that has changes made to it."""

    def __init__(self, entries: Iterable[os.DirEntry[str]]) -> None:
        self._entries = entries

    def __enter__(self) -> Iterable[os.DirEntry[str]]:
        return self._entries

    def __exit__(self, *_: object) -> None:
        return


def test_what_is_replaced_during_a_listing_and_so_listed_twice_is_found_once(tmp_path: Path, monkeypatch) -> None:
    lay(tmp_path, [("files", ["a", "b"]), ("files", ["a", "c"]), ("files", ["d"]), ("data", ["e"])])
    real = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: Listing([*real(path), *real(path)]))

    found = [file.path for file in scan_range(tmp_path, EVERYTHING, [], [])]

    assert found == ["data/e", "files/a/b", "files/a/c", "files/d"]


def test_a_directory_that_cannot_be_read_to_its_end_is_reported_and_its_files_are_in_order(
    tmp_path: Path, monkeypatch
) -> None:
    lay(tmp_path, [("files", ["a", name]) for name in "bcd"] + [("files", ["e"])])
    real = os.scandir

    def failing(path: int | Path) -> Listing:
        entries = sorted(real(path), key=lambda entry: entry.name)

        def some() -> Iterator[os.DirEntry[str]]:
            yield from entries
            if entries[0].name == "b":
                raise OSError(errno.EIO, "Input/output error")

        return Listing(some())

    monkeypatch.setattr(os, "scandir", failing)
    skipped: list[SkippedPath] = []

    found = [file.path for file in scan_range(tmp_path, EVERYTHING, skipped, [])]

    assert found == ["files/a/b", "files/a/c", "files/a/d", "files/e"]
    assert [(item.path, item.kind) for item in skipped] == [("files/a", "unreadable")]


@pytest.mark.parametrize("wanted", [1, 4, 16])
def test_a_flat_directory_and_a_deep_tree_are_both_divided(tmp_path: Path, wanted: int) -> None:
    lay(tmp_path, [("files", [f"{at:03}"]) for at in range(200)])
    lay(tmp_path, [("data", ["t", f"m{at}", "1", "raw"]) for at in range(40)])

    weighed = dividing_paths(tmp_path, wanted)

    found = [path for path, weight in weighed if weight == 1]
    assert len(found) == len(weighed)
    assert found == sorted(found)
    assert all(one < following for one, following in pairwise(found))
    assert sum(path.startswith("files/0") for path in found) == 100
    assert sum(path.startswith("data/t/m") for path in found) >= 40 or wanted == 1


def test_of_many_names_a_few_are_kept_that_stand_for_all(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("bayou.worktree.scan.SAMPLED_PATHS", 20)
    lay(tmp_path, [("files", [f"{at:03}"]) for at in range(200)])
    lay(tmp_path, [("data", [f"m{at:03}", "raw"]) for at in range(100)])

    found = dividing_paths(tmp_path, 4)

    assert [path for path, _ in found] == sorted(path for path, _ in found)
    assert 10 <= len(found) <= 20
    assert abs(sum(weight for _, weight in found) - 302) <= found[0][1]
    assert 5 <= sum(path.startswith("files/") for path, _ in found) <= 15
