"""The walk: every payload file, and a word about everything else (V8, V18)."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from bayou.core import paths
from bayou.core.errors import PathRefused, TreeError
from bayou.worktree.hashing import FileStat, read_content
from bayou.worktree.scan import ScannedFile, SkippedPath, scan
from bayou.worktree.tree import Worktree
from tests.worktree.commoner import Commoner

BYTES_THAT_ARE_NO_TEXT = b"caf\xe9"


def put(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())


def found(root: Path, under: str | None = None) -> set[str]:
    return {item.path for item in scan(root, under) if isinstance(item, ScannedFile)}


def skipped(root: Path, under: str | None = None) -> dict[str, str]:
    return {item.path: item.kind for item in scan(root, under) if isinstance(item, SkippedPath)}


def test_files_at_every_depth_below_every_root_are_found(root: Path) -> None:
    # F103
    names = {f"{top}/{'d/' * depth}x" for top in paths.PAYLOAD_ROOTS for depth in range(9)}
    put(root, *names)
    assert found(root) == names
    assert skipped(root) == {}


@pytest.mark.parametrize("under", [None, "data", "data/a"])
def test_files_that_are_as_known_are_passed_over_and_ticked_off(root: Path, under: str | None) -> None:
    put(root, "data/a", "data/b", "data/c", "data/new", "files/x")
    known: dict[str, Any] = {
        one.path: tuple(one.stat) for one in scan(root) if isinstance(one, ScannedFile) and one.path != "data/new"
    }
    known["data/gone"] = known["data/a"]
    put(root, "data/a")  # the same bytes, written again
    os.unlink(root / "data/c")
    os.mkdir(root / "data/c")
    if under == "data/a":
        os.utime(root / "data/a", ns=(1, 1))
    before = dict(known)
    items = {item.path for item in scan(root, under, None, known)}

    everything = {"data/a", "data/b", "data/c", "data/gone", "files/x"}
    looked_at = {None: {"data/a", "data/b", "files/x"}, "data": {"data/a", "data/b"}, "data/a": {"data/a"}}[under]
    assert items == {"data/a"} | ({"data/new"} if under != "data/a" else set())
    assert known.keys() == everything - looked_at, "what was not found as a file is left, also where a directory is now"
    assert all(known[path] == before[path] for path in known)


def test_dot_files_are_files(root: Path) -> None:
    # F104
    names = {"data/.gitkeep", "data/.hidden/x", "data/.a/.b/.c", "files/.env"}
    put(root, *names)
    assert found(root) == names


def test_unusual_but_safe_names_are_found(root: Path) -> None:
    names = {"data/naïve/日本語", "data/with space", "data/a~b", "data/x.lock", "data/a:b?*", "data/" + "n" * 255}
    put(root, *names)
    assert found(root) == names
    assert skipped(root) == {}


def test_a_found_file_has_its_stat(root: Path) -> None:
    put(root, "data/a")
    assert list(scan(root)) == [ScannedFile("data/a", FileStat.of(os.stat(root / "data/a")))]


def test_what_other_systems_leave_is_named_and_not_payload(root: Path) -> None:
    # F042, F044
    foreign = {
        "data/_catalog.db",
        "data/a/_catalog.db-wal",
        "data/a/b/_catalog.db-shm",
        "data/.lock",
        "data/a/.Lock",
        "data/a/.datastore.lock",
        "data/.6f2b1c1e-0000-4000-8000-000000000000.tmp",
        "data/raw.tmp.123.6f2b1c1e-0000-4000-8000-000000000000",
    }
    put(root, "data/a/good", *foreign)
    put(root, "data/.locks/x", "data/a/_index/1/x", "data/b/.bayou/head.json")
    assert found(root) == {"data/a/good"}
    directories = {"data/.locks", "data/a/_index", "data/b/.bayou"}
    assert skipped(root) == dict.fromkeys(foreign | directories, "foreign")


def test_temporaries_of_ours_are_passed_over_without_a_word(root: Path, tree: Worktree) -> None:
    # F044, V14: what a killed write left, and a write in progress
    put(root, "data/good", "data/.bayou-01HZZZZZZZZZZZZZZZZZZZZZZZ.tmp", ".bayou-x.tmp")
    with tree.writing("data/t/m/n/1/raw") as file:
        file.write(b"half")
        file.flush()
        assert [item.path for item in scan(root)] == ["data/good"]


def test_a_directory_named_like_a_temporary_is_not_one(root: Path) -> None:
    put(root, "data/.bayou-x.tmp/somebody's file")
    assert skipped(root) == {"data/.bayou-x.tmp": "foreign"}


def test_strangers_beside_the_payload_roots_are_named_once(root: Path) -> None:
    # F043
    put(root, "data/x", ".dot-file", "secrets/a", "secrets/b", "Data/x", "catalog.db")
    (root / "link").symlink_to(root)
    assert found(root) == {"data/x"}
    assert skipped(root) == dict.fromkeys([".dot-file", "secrets", "Data", "catalog.db", "link"], "foreign")


def test_names_that_have_no_safe_place_are_refused_with_the_reason(root: Path) -> None:
    decomposed = "cafe\u0301"
    put(root, "data/good", "data/a\\b", "data/line\nbreak", f"data/{decomposed}", "data/~x", "data/~dir/x")
    with open(os.fsencode(root / "data") + b"/" + BYTES_THAT_ARE_NO_TEXT, "wb"):
        pass
    reasons = {item.path: item.reason for item in scan(root) if isinstance(item, SkippedPath)}
    assert reasons == {
        "data/a\\b": "a backslash",
        "data/line\\nbreak": "a control character",
        f"data/{decomposed}": "not in Unicode normal form C",
        "data/~x": "~x: names that begin with ~ belong to pushes",
        "data/~dir": "~dir: names that begin with ~ belong to pushes",
        "data/caf\\xe9": "not valid Unicode",
    }
    assert set(skipped(root).values()) == {"refused"}
    assert found(root) == {"data/good"}
    for path in reasons:
        path.encode()  # can be printed, whatever it was


def test_a_path_that_is_too_long_is_refused_where_it_gets_too_long(root: Path) -> None:
    deep = "data/" + "/".join(["d" * 200] * 3)
    put(root, f"{deep}/short", f"{deep}/{'x' * 200}/y", f"{deep}/{'x' * 100}/y")
    assert found(root) == {f"{deep}/short", f"{deep}/{'x' * 100}/y"}
    assert skipped(root) == {f"{deep}/{'x' * 200}": "refused"}


def test_special_files_are_refused_and_not_opened(root: Path) -> None:
    # F109
    put(root, "data/good")
    os.mkfifo(root / "data/fifo")
    os.mknod(root / "data/socket", stat.S_IFSOCK | 0o600)
    reasons = {item.path: (item.reason, item.kind) for item in scan(root) if isinstance(item, SkippedPath)}
    assert reasons == {"data/fifo": ("a FIFO", "refused"), "data/socket": ("a socket", "refused")}
    for path in reasons:
        with pytest.raises((PathRefused, TreeError)):
            read_content(root / path)


def test_a_payload_root_that_is_a_file_is_refused(root: Path) -> None:
    put(root, "data", "logs/x")
    assert skipped(root) == {"data": "refused"}
    assert skipped(root, "data") == {"data": "refused"}
    assert found(root) == {"logs/x"}


def test_what_may_not_be_read_is_named_and_the_rest_found(commoner: Commoner) -> None:
    # F109, with real permissions
    root = commoner.home / "tree"
    with commoner.acting():
        put(root, "data/good", "data/closed/x", "data/file")
        (root / "data/closed").chmod(0)
        (root / "data/file").chmod(0)
        assert found(root) == {"data/good", "data/file"}
        assert list(scan(root, "data/closed")) == [SkippedPath("data/closed", "Permission denied", "unreadable")]
        assert list(scan(root, "data/closed/x")) == [SkippedPath("data/closed/x", "Permission denied", "unreadable")]
        assert skipped(root) == {"data/closed": "unreadable"}
        with pytest.raises(TreeError, match="Permission denied"):
            read_content(root / "data/file")
        root.chmod(0)
        with pytest.raises(TreeError, match="cannot read the tree"):
            list(scan(root))


class Failing:
    """Directory entries of which one cannot be looked at, and a listing that breaks off."""

    def __init__(self, entries: Any, bad: str, code: int, breaks: bool) -> None:
        self._entries, self._bad, self._code, self._breaks = entries, bad, code, breaks

    def __enter__(self) -> Failing:
        return self

    def __exit__(self, *_: object) -> None:
        self._entries.close()

    def __iter__(self) -> Any:
        for entry in self._entries:
            yield Unlookable(entry, self._code) if entry.name == self._bad else entry
        if self._breaks:
            raise OSError(self._code, os.strerror(self._code))


class Unlookable:
    def __init__(self, entry: Any, code: int) -> None:
        self.name, self._code = entry.name, code

    def is_dir(self, *, follow_symlinks: bool) -> bool:
        return False

    def stat(self, *, follow_symlinks: bool) -> os.stat_result:
        raise OSError(self._code, os.strerror(self._code))


@pytest.mark.parametrize(
    ("code", "breaks", "expected"),
    [
        (errno.EIO, False, {"data/a/bad": "unreadable"}),
        (errno.ENOENT, False, {}),
        (errno.EIO, True, {"data/a/bad": "unreadable", "data/a": "unreadable"}),
    ],
    ids=["an entry with an error", "an entry that vanished", "a listing that breaks off"],
)
def test_one_bad_entry_does_not_end_the_walk(
    root: Path, monkeypatch: pytest.MonkeyPatch, code: int, breaks: bool, expected: dict[str, str]
) -> None:
    put(root, "data/a/1", "data/a/bad", "data/a/2", "data/b/3")
    real = os.scandir
    target = os.stat(root / "data/a").st_ino

    def scandir(where: Any) -> Any:
        is_target = os.stat(where).st_ino == target
        return Failing(real(where), "bad", code, breaks) if is_target else real(where)

    monkeypatch.setattr(os, "scandir", scandir)
    assert found(root) == {"data/a/1", "data/a/2", "data/b/3"}
    assert skipped(root) == expected


def test_a_directory_that_vanishes_during_the_walk_is_not_there(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(root, "data/a/x", "data/b")
    real = os.open

    def late(path: Any, *args: Any, **kwargs: Any) -> int:
        if str(path).endswith("data/a"):
            (root / "data/a/x").unlink(missing_ok=True)
            (root / "data/a").rmdir()
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", late)
    assert [item.path for item in scan(root)] == ["data/b"]


def test_a_tree_that_does_not_exist_is_empty(root: Path) -> None:
    assert list(scan(root)) == []
    assert list(scan(root, "data")) == []
    assert list(scan(root, "data/a")) == []


def test_a_walk_below_a_path_sees_that_path_only(root: Path) -> None:
    put(root, "data/a/b/x", "data/a/b/y/z", "data/a/bc", "outputs/x")
    assert found(root, "data/a/b") == {"data/a/b/x", "data/a/b/y/z"}
    assert found(root, "data/a/bc") == {"data/a/bc"}
    assert found(root, "data") == {"data/a/b/x", "data/a/b/y/z", "data/a/bc"}
    assert found(root, "data/a/bc/d") == set()
    assert found(root, "data/nowhere") == set()


@pytest.mark.parametrize("under", ["", ".", "..", "data/..", "/", "secrets", "data/.lock"])
def test_a_walk_below_what_is_no_payload_is_refused(root: Path, under: str) -> None:
    put(root, "data/x")
    with pytest.raises(PathRefused):
        list(scan(root, under))
