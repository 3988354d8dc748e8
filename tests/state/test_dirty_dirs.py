"""`mark_dirty` and `mark_deleted`: programs that write into the tree by themselves, alive and killed."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

import bayou
from bayou.core.errors import PathRefused
from bayou.state.database import Database
from bayou.sync.plan.local_scanner import FileScan
from bayou.sync.service import Datastore
from bayou.worktree.scan import scan
from tests.sync import children
from tests.sync.conftest import Clone, Team
from tests.trusting import trust

FILES = {"files/a/x": b"1", "files/a/y": b"1", "files/b/x": b"1", "data/t/z": b"1"}


@pytest.fixture
def a(team: Team) -> Clone:
    """A clone in sync."""
    clone = team.clone("a")
    clone.write_all(FILES)
    clone.sync()
    return clone


def rewrite(clone: Clone) -> None:
    """Change every file and add one to each directory, as a program of its own would."""
    for path in FILES:
        clone.lay(path, "changed by hand")
    for path in ("files/a/new", "files/b/new", "data/new"):
        clone.lay(path, "new")


@pytest.mark.parametrize(
    ("marked", "pushed"),
    [
        ("files/a/x", {"files/a/x"}),
        ("files/a/new", {"files/a/new"}),
        ("files/a", {"files/a/x", "files/a/y", "files/a/new"}),
        ("files", {"files/a/x", "files/a/y", "files/a/new", "files/b/x", "files/b/new"}),
        ("audit", set()),
        (None, {*FILES, "files/a/new", "files/b/new", "data/new"}),
    ],
)
def test_a_mark_covers_a_file_a_directory_or_everything(
    team: Team, a: Clone, marked: str | None, pushed: set[str]
) -> None:
    with Datastore(a.repo) as program:
        mark = program.sync.mark_dirty(marked)
        rewrite(a)
        mark.done()
    assert a.status().journal_bulk
    assert a.push(walk=False).pushed.files == len(pushed)
    assert (a.status().journal_paths, a.status().journal_bulk) == (0, False)
    c = team.clone("c")
    c.sync()
    expected = {path: a.files[path] if path in pushed else content for path, content in FILES.items()}
    assert c.files == {**expected, **{path: b"new" for path in pushed if path not in FILES}}


def test_an_open_mark_of_a_living_program_is_carried_but_never_dropped(team: Team, a: Clone) -> None:
    with Datastore(a.repo) as program:
        mark = program.sync.mark_dirty("files/a")
        assert a.push(walk=False).pushed.files == 0
        for number in (1, 2):
            a.lay("files/a/x", f"written {number}")
            assert a.push(walk=False).pushed.files == 1
            assert a.status().journal_paths == 1
            assert not a.status().in_sync
        a.lay("files/a/x", "written last")
        mark.done()
    assert a.push(walk=False).pushed.files == 1
    assert a.status().in_sync
    c = team.clone("c")
    c.sync()
    assert c.files["files/a/x"] == b"written last"


MARKER = """
from bayou.repo import open_repo
from bayou.sync.service import Datastore

datastore = Datastore(open_repo(sys.argv[1]))
datastore.sync.mark_dirty(sys.argv[2] or None)
print("marked", flush=True)
sys.stdin.readline()
(datastore.tree.root / "files/a/x").write_text("written by a program that died")
die()
"""


@pytest.mark.parametrize("marked", ["files/a/x", "files/a", ""])
def test_the_mark_of_a_killed_program_counts_as_closed(team: Team, a: Clone, marked: str) -> None:
    program = children.start(MARKER, a.repo.root, marked)
    assert program.stdin is not None
    assert program.stdout is not None
    assert program.stdout.readline() == b"marked\n"
    # Alive, another process: the row stays, whatever is pushed.
    assert a.push(walk=False).pushed.files == 0
    assert a.status().journal_paths == 1
    program.communicate(b"\n", timeout=60)
    assert a.push(walk=False).pushed.files == 1
    assert (a.status().journal_paths, a.status().in_sync) == (0, True)
    assert list((a.repo.state / "owners").iterdir()) == []


SPELLINGS = [
    "files/a/",
    "./files/a",
    "files//a/.",
    "files/b/../a",
    "../tree/files/a",
    "{root}/files/a",
    "{root}/files/a/",
]


def spelled(clone: Clone, text: str) -> str:
    return text.format(root=clone.repo.tree_root)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_mark_means_the_same_path_in_every_spelling(a: Clone, spelling: str) -> None:
    rewrite(a)
    a.mark_dirty(spelled(a, spelling))
    assert a.status().journal_paths == 1
    assert a.push(walk=False).pushed.files == 3
    assert a.status().journal_paths == 0


@pytest.mark.parametrize("spelling", [".", "./", "files/..", "", "{root}", "{root}/", "{root}/files/.."])
def test_a_mark_of_the_root_means_everything(a: Clone, spelling: str) -> None:
    rewrite(a)
    a.mark_dirty(spelled(a, spelling))
    assert a.push(walk=False).pushed.files == len(FILES) + 3


def test_an_absolute_path_may_lead_to_the_tree_through_a_link(a: Clone, tmp_path: Path) -> None:
    (tmp_path / "to-clone").symlink_to(a.repo.root)
    (tmp_path / "to-tree").symlink_to(a.repo.tree_root)
    (tmp_path / "to-files").symlink_to(a.repo.tree_root / "files")
    rewrite(a)
    a.mark_dirty(str(tmp_path / "to-clone" / ".bayou" / "tree" / "files" / "a" / "x"))
    a.mark_dirty(str(tmp_path / "to-tree" / "files" / "a" / "y"))
    a.mark_dirty(str(tmp_path / "to-files" / "b"))
    assert a.push(walk=False).pushed.files == 4


OUTSIDE = ["..", "../other", "files/../../x", "/", "/etc/passwd", "{root}/..", "{root}-other/files/x", "{root}/../x"]


@pytest.mark.parametrize("spelling", OUTSIDE)
def test_a_path_outside_of_the_tree_is_refused_at_once(a: Clone, spelling: str) -> None:
    path = spelled(a, spelling)
    with Datastore(a.repo) as program:
        for call in (program.sync.mark_dirty, program.sync.mark_deleted, program.sync.hydrate):
            with pytest.raises(PathRefused, match="outside of the tree"):
                call(path)
    assert a.status().journal_paths == 0


@pytest.mark.parametrize("path", ["models/x", "files/a\0b", "files/a\\b", "files/.lock", "data/~x/y"])
def test_a_path_that_cannot_be_payload_is_refused_at_once(a: Clone, path: str) -> None:
    with Datastore(a.repo) as program:
        for call in (program.sync.mark_dirty, program.sync.mark_deleted):
            with pytest.raises(PathRefused):
                call(path)
    assert a.status().journal_paths == 0


def test_v21_a_link_below_the_root_is_not_followed(a: Clone, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x").write_text("not payload")
    (a.repo.tree_root / "files" / "link").symlink_to(tmp_path / "outside")
    a.mark_dirty(str(a.repo.tree_root / "files" / "link" / "x"))
    assert a.push(walk=False).pushed.files == 0
    assert a.status().index.entries == len(FILES)


@pytest.mark.parametrize(
    ("spelling", "gone"),
    [
        *((spelling, {"files/a/x", "files/a/y"}) for spelling in ["files/a", *SPELLINGS]),
        ("files/a/x", {"files/a/x"}),
        ("files/a/x/", {"files/a/x"}),
        ("{root}/files/a/x", {"files/a/x"}),
        ("files", {"files/a/x", "files/a/y", "files/b/x"}),
        (".", set(FILES)),
        ("{root}", set(FILES)),
        ("files/c", set()),
    ],
)
def test_a_directory_that_a_program_deletes_by_itself_is_deleted_file_by_file(
    team: Team, a: Clone, spelling: str, gone: set[str]
) -> None:
    for path in gone:
        (a.repo.tree_root / path).unlink()
    with Datastore(a.repo) as program:
        program.sync.mark_deleted(spelled(a, spelling))
    assert a.push(walk=False).pushed.deleted == len(gone)
    assert a.status().in_sync
    c = team.clone("c")
    c.sync()
    assert c.files.keys() == FILES.keys() - gone


def test_a_name_that_begins_like_a_deleted_directory_stays(a: Clone) -> None:
    a.write("files/ab", b"1")
    a.push()
    with Datastore(a.repo) as program:
        program.sync.mark_deleted("files/a/")
    assert {path for (path,) in rows_of(a)} == {"files/a/x", "files/a/y"}


def rows_of(clone: Clone) -> list[Any]:
    with Database(clone.repo.state / "sync.db") as database:
        return database.rows("SELECT path FROM journal")


def test_a_part_of_an_open_repo_keeps_its_state_open(a: Clone) -> None:
    rewrite(a)
    mark = bayou.open(a.repo.root).sync.mark_dirty("files/a")
    gc.collect()
    mark.done()
    del mark
    bayou.open(a.repo.root).tree.write("files/b/x", b"through the tree")
    sync = bayou.open(a.repo.root).sync
    gc.collect()
    sync.mark_deleted("data/t/z")
    assert a.status().journal_paths == 3


def test_an_open_repo_that_is_dropped_gives_its_state_up(a: Clone) -> None:
    sync = bayou.open(a.repo.root).sync
    sync.mark_dirty("files/a")
    assert len(list((a.repo.state / "owners").iterdir())) == 1
    del sync
    gc.collect()
    assert list((a.repo.state / "owners").iterdir()) == []


def test_a_mark_without_a_change_is_dropped_without_a_commit(a: Clone) -> None:
    a.mark_dirty()
    report = a.push(walk=False)
    assert (report.pushed.files, report.commit) == (0, None)
    assert (a.status().journal_paths, a.status().in_sync) == (0, True)


def test_a_pull_leaves_marks_for_the_next_push(a: Clone) -> None:
    rewrite(a)
    a.mark_dirty("files/b")
    assert a.pull(walk=False).exit_code == 0
    assert a.status().journal_paths == 1
    assert a.push(walk=False).pushed.files == 2


def test_a_file_that_vanished_under_a_mark_is_pulled_back_and_not_deleted(a: Clone) -> None:
    with Datastore(a.repo) as program:
        mark = program.sync.mark_dirty("files/a")
        (a.repo.tree_root / "files/a/x").unlink()
        mark.done()
    report = a.sync()
    assert (report.pushed.deleted, report.pulled.files) == (0, 1)
    assert a.files == FILES


def test_a_delete_that_a_program_makes_by_itself_is_marked(team: Team, a: Clone) -> None:
    with Datastore(a.repo) as program:
        program.sync.mark_deleted("files/a/x")
        (a.repo.tree_root / "files/a/x").unlink()
    assert a.push(walk=False).pushed.deleted == 1
    c = team.clone("c")
    c.sync()
    assert c.files.keys() == FILES.keys() - {"files/a/x"}


DELETER = """
from bayou.repo import open_repo
from bayou.sync.service import Datastore
from bayou.worktree.scan import scan
from bayou.worktree.safe_root import SafeRoot

SafeRoot.remove = die
with Datastore(open_repo(sys.argv[1])) as datastore:
    datastore.tree.delete("files/a/x")
"""


def test_a_delete_that_a_crash_left_undone_is_finished(team: Team, a: Clone) -> None:
    assert children.run_to_death(DELETER, a.repo.root)
    assert "files/a/x" in a.files
    assert a.push(walk=False).pushed.deleted == 1
    assert a.files.keys() == FILES.keys() - {"files/a/x"}
    c = team.clone("c")
    c.sync()
    assert c.files == a.files


def test_a_delete_that_was_left_undone_is_not_meant_for_a_file_that_is_written_under_a_later_mark(
    a: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the simulation (seed 903494150049): the mark came between the journal and the look at the file."""
    assert children.run_to_death(DELETER, a.repo.root)
    look, programs = FileScan.at, ["a program"]

    def look_late(self: FileScan, *args: Any, **kwargs: Any) -> Any:
        while programs:
            programs.pop()
            with Datastore(a.repo) as datastore:
                mark = datastore.sync.mark_dirty("files/a")
                a.lay("files/a/x", "written since")
                mark.done()
        return look(self, *args, **kwargs)

    monkeypatch.setattr(FileScan, "at", look_late)
    a.push(walk=False)
    assert not programs
    assert a.files["files/a/x"] == b"written since"


def test_a_directory_datastore_has_the_same_face_and_nothing_to_mark(team: Team) -> None:
    clone = team.clone("a")
    clone.repo.file.write_text(clone.repo.file.read_text().replace(f'url = "{team.url}"', f'path = "{team.root}/dir"'))
    trust(clone.repo.root)
    clone.reopen()
    with Datastore(clone.repo) as program:
        program.sync.mark_dirty().done()
        program.sync.mark_deleted("files/x")
        program.tree.write("files/x", b"x")
        for call in (program.sync.mark_dirty, program.sync.mark_deleted, program.sync.hydrate):
            call(str(clone.repo.tree_root / "files" / "x"))
            for outside in ("../x", "/etc/passwd"):
                with pytest.raises(PathRefused, match="outside of the tree"):
                    call(outside)
    assert clone.files == {"files/x": b"x"}
    assert clone.status().in_sync
    assert not (clone.repo.root / ".bayou" / "state").exists()


def test_t11_what_is_written_under_a_mark_that_came_after_the_journal_was_read_is_not_untracked_for_good(
    a: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(root: Path, *rest: Any) -> Any:
        with Datastore(a.repo) as datastore:
            mark = datastore.sync.mark_dirty("files/late")
            a.lay("files/late/x", "of a program that said so")
            mark.done()
        yield from scan(root, *rest)

    with monkeypatch.context() as patch:
        patch.setattr("bayou.sync.plan.local_scanner.scan", late)
        assert a.sync().untracked == ["files/late/x"]

    assert (a.push().pushed.files, a.sync().untracked) == (1, [])
