"""`mark_dirty` and `mark_deleted`: programs that write into the tree by themselves, alive and killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bayou.sync.observe import Look
from bayou.sync.service import Datastore
from bayou.tree.scan import scan
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
from bayou.sync.observe import Look
from bayou.sync.service import Datastore
from bayou.tree.scan import scan

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
from bayou.sync.observe import Look
from bayou.sync.service import Datastore
from bayou.tree.scan import scan
from bayou.tree.ground import Ground

Ground.remove = die
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
    look, programs = Look.at, ["a program"]

    def look_late(self: Look, *args: Any, **kwargs: Any) -> Any:
        while programs:
            programs.pop()
            with Datastore(a.repo) as datastore:
                mark = datastore.sync.mark_dirty("files/a")
                a.lay("files/a/x", "written since")
                mark.done()
        return look(self, *args, **kwargs)

    monkeypatch.setattr(Look, "at", look_late)
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
        patch.setattr("bayou.sync.observe.scan", late)
        assert a.sync().untracked == ["files/late/x"]

    assert (a.push().pushed.files, a.sync().untracked) == (1, [])
