"""Paths and hostile input: F103, F104, F108 and F109 of tests/failures.md. Trees and stores are untrusted."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bayou.core.paths import PAYLOAD_ROOTS
from bayou_testing.gcs import GcsServer
from tests import api
from tests.maintenance.setups import newcomer, set_up
from tests.sync.conftest import Clone, Team
from tests.sync.indexes import entries_of

NOBODY = 65534


def fresh(team: Team, name: str = "c") -> Clone:
    clone = team.clone(name)
    assert clone.sync().exit_code == 0
    return clone


def test_f103_every_depth_below_every_root_has_a_place(team: Team) -> None:
    a = team.clone("a")
    for root in PAYLOAD_ROOTS:
        for depth in range(1, 10):
            directories = [f"d{level}" for level in range(1, depth)]
            a.lay("/".join([root, *directories, f"file{depth}"]), f"{root} {depth}")
    assert len(a.files) == 72
    report = a.push(adopt=True)
    assert (report.pushed.files, report.exit_code) == (72, 0)
    assert fresh(team).files == a.files
    assert entries_of(team.store()).keys() == a.files.keys()


def test_f104_dot_files_cross_in_both_directions(team: Team) -> None:
    a = team.clone("a")
    for path in ("data/t/.gitkeep", "files/.gitkeep", "files/.hidden/x", "outputs/.a/.b/.c", "logs/..."):
        a.lay(path, path)
    assert a.push(adopt=True).pushed.files == 5
    c = fresh(team)
    assert c.files == a.files
    again = c.push(adopt=True)
    assert (again.pushed.files, again.untracked, again.engine) == (0, [], "fast")


GOOD = {"data/t/x": b"x", "files/y": b"y", "data/a/b": b"below a", "data/Case": b"upper", "data/case": b"lower"}
ODD = [
    "data//empty",
    "files/a//b",
    "data/control\x07character",
    "data/new\nline",
    f"data/{'n' * 300}",
    "data/./dot",
    "data/../dots",
    "data/back\\slash",
    "data/cafe\u0301",
    "data/t/~x",
    "data/a",
]


@pytest.mark.parametrize("verb", ["pull", "setup"])
def test_f108_one_odd_key_does_not_block_the_others(gcs_team: Team, gcs: GcsServer, verb: str) -> None:
    prefix = gcs_team.url.removeprefix("gs://bayou/")
    for key, content in {**GOOD, **dict.fromkeys(ODD, b"odd")}.items():
        gcs.put_raw(f"{prefix}/{key}", content)
    before = set(gcs.objects())
    if verb == "pull":
        a = gcs_team.clone("a")
        report = a.pull()
        assert (report.pulled.files, report.exit_code) == (len(GOOD), 0)
        assert sorted(one.path for one in report.refused) == sorted(ODD)
        assert all(one.reason for one in report.refused)
    else:
        a = newcomer(gcs_team, "a")
        joined = set_up(a, gcs_team)
        assert (joined.pulled, joined.discovered) == (len(GOOD), True)
        assert sorted(one.path for one in joined.refused) == sorted(ODD)
        verified = api.verify(a.repo, deep=True, repair=True)
        assert (verified.ok, verified.checked, verified.unindexed) == (True, len(GOOD), [])
        assert sorted(one.path for one in verified.refused) == sorted(ODD)
        api.collect(a.repo, dry_run=False, grace_s=0)
        a.write("files/new", "new")
        assert a.sync().pushed.files == 1
        del (files := a.files)["files/new"]
        assert files == GOOD
        assert a.sync().engine == "fast"
    if verb == "pull":
        assert a.files == GOOD
    assert before <= set(gcs.objects())


@contextmanager
def commoner() -> Iterator[Path]:
    """A directory in which permissions count, also when root runs the tests; a home of its own belongs to it."""
    root = os.geteuid() == 0
    with tempfile.TemporaryDirectory(dir="/tmp") as directory, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", directory)
        if root:
            os.chown(directory, NOBODY, NOBODY)
            os.seteuid(NOBODY)
        try:
            yield Path(directory)
        finally:
            if root:
                os.seteuid(0)
            for path in Path(directory).rglob("*"):
                if path.is_dir() and not path.is_symlink():
                    path.chmod(0o755)


def test_f109_what_cannot_be_read_is_named_and_nothing_is_deleted_for_it() -> None:
    with commoner() as root:
        (root / "store").mkdir()
        team = Team(root, (root / "store").as_uri(), {})
        a = team.clone("a")
        a.write_all({f"files/{name}": b"old" for name in ("good", "secret", "closed/in", "closed/deeper/in", "link")})
        a.sync()
        tree = a.repo.tree_root
        a.lay("files/good", "new")
        a.lay("files/secret", "changed")
        (tree / "files/secret").chmod(0)
        (tree / "files/closed").chmod(0)
        (tree / "files/link").unlink()
        (root / "outside").write_text("outside")
        (tree / "files/link").symlink_to(root / "outside")
        (tree / "files/other").symlink_to(root)
        os.mkfifo(tree / "files/fifo")
        a.mark_dirty()
        report = a.push()
        assert {one.path for one in report.failed} == {"files/secret", "files/closed"}
        assert {one.path for one in report.refused} == {"files/link", "files/other", "files/fifo"}
        assert (report.pushed.files, report.pushed.deleted, report.exit_code) == (1, 0, 1)
        assert a.status().journal_paths == 1
        c = fresh(team)
        assert c.files == {
            "files/good": b"new",
            **{f"files/{name}": b"old" for name in ("secret", "closed/in", "closed/deeper/in", "link")},
        }
        # Mended, everything goes up, and the mark has done its service.
        (tree / "files/secret").chmod(0o644)
        (tree / "files/closed").chmod(0o755)
        assert (a.push().pushed.files, a.status().journal_paths) == (1, 0)


@pytest.mark.parametrize("obstacle", ["a file", "a directory", "a link"])
def test_v21_what_stands_in_the_way_is_named_and_what_it_kept_out_comes_when_it_is_gone(
    team: Team, obstacle: str
) -> None:
    b = team.clone("b")
    b.write_all({"files/d/x": b"x", "files/other": b"other"})
    b.sync()
    a = team.clone("a")
    tree = a.repo.tree_root
    (tree / "files").mkdir(parents=True)
    if obstacle == "a file":
        (tree / "files/d").write_text("in the way")
    elif obstacle == "a directory":
        (tree / "files/d/x").mkdir(parents=True)
    else:
        (tree / "files/d").symlink_to(team.root)
    report = a.sync()
    assert ([one.path for one in report.refused if one.path == "files/d/x"], report.exit_code) == (["files/d/x"], 0)
    assert report.pulled.files == 1
    assert (a.sync().pulled.files, a.sync().pushed.deleted) == (0, 0)
    if obstacle == "a directory":
        (tree / "files/d/x").rmdir()
    else:
        (tree / "files/d").unlink()
    assert a.sync().pulled.files == 1
    assert a.files == b.files
    assert (a.sync().engine, b.sync().engine) == ("fast", "fast")
