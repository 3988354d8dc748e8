"""What becomes of the copies that conflicts leave behind: listed, taken, dropped."""

from __future__ import annotations

from pathlib import Path

import pytest

import bayou.sync.transfer.pull as pull_module
from bayou.core.errors import UsageError
from tests import api
from tests.sync.conftest import Clone, Team

X = "files/x"


@pytest.fixture
def fought(team: Team) -> tuple[Clone, Clone]:
    """A has a conflict copy of x: `ours` against B's `theirs`."""
    a, b = team.clone("a"), team.clone("b")
    a.write(X, "1")
    a.sync()
    b.sync()
    b.write(X, "theirs")
    b.sync()
    a.write(X, "ours")
    assert a.sync().exit_code == 3
    return a, b


def test_copies_are_listed_with_path_time_and_size(fought: tuple[Clone, Clone]) -> None:
    a, b = fought
    (kept,) = api.conflicts(a.repo)
    assert (kept.path, kept.size, Path(kept.copy).read_text()) == (X, 4, "ours")
    assert Path(kept.copy).is_relative_to(a.repo.conflicts)
    assert kept.at > 0
    assert api.conflicts(b.repo) == []


@pytest.mark.parametrize("named", ["by path", "by copy"])
def test_taking_a_copy_makes_it_a_change_of_ours(fought: tuple[Clone, Clone], named: str) -> None:
    a, b = fought
    (kept,) = api.conflicts(a.repo)
    api.take_conflict(a.repo, X if named == "by path" else kept.copy)
    assert (a.files, api.conflicts(a.repo)) == ({X: b"ours"}, [])
    assert a.status().journal_paths == 1
    assert a.push(walk=False).pushed.files == 1
    b.sync()
    assert b.files == {X: b"ours"}
    assert list(a.repo.conflicts.iterdir()) == []


def test_dropping_a_copy_leaves_the_stores_side(fought: tuple[Clone, Clone]) -> None:
    a, _ = fought
    api.drop_conflict(a.repo, X)
    assert (a.files, api.conflicts(a.repo)) == ({X: b"theirs"}, [])
    assert a.sync().engine == "fast"


def test_of_several_copies_the_newest_is_meant(fought: tuple[Clone, Clone]) -> None:
    a, b = fought
    b.write(X, "theirs again")
    b.sync()
    a.write(X, "ours again")
    assert a.sync().exit_code == 3
    assert [Path(kept.copy).read_text() for kept in api.conflicts(a.repo)] == ["ours again", "ours"]
    api.take_conflict(a.repo, X)
    assert a.files == {X: b"ours again"}
    api.drop_conflict(a.repo, X)
    assert api.conflicts(a.repo) == []


def test_what_is_not_there_is_an_error_that_says_so(fought: tuple[Clone, Clone]) -> None:
    a, _ = fought
    for step in (api.take_conflict, api.drop_conflict):
        with pytest.raises(UsageError, match="files/other"):
            step(a.repo, "files/other")
    assert len(api.conflicts(a.repo)) == 1


def test_links_and_odd_names_among_the_copies_are_left_alone(fought: tuple[Clone, Clone], tmp_path: Path) -> None:
    a, _ = fought
    (kept,) = api.conflicts(a.repo)
    folder = Path(kept.copy).parent
    (tmp_path / "outside").write_text("outside")
    (folder / "link").symlink_to(tmp_path / "outside")
    (folder / ".lock").write_text("odd")
    (a.repo.conflicts / "stray").write_text("no copy at all")
    assert [one.path for one in api.conflicts(a.repo)] == [X]


def test_a_file_that_changes_again_while_its_copy_is_made_leaves_one_copy(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = team.clone("a"), team.clone("b")
    a.write(X, "1")
    a.sync()
    b.sync()
    b.write(X, "theirs")
    b.sync()
    a.write(X, "ours")
    real = pull_module.install_batch

    def changed(*args: object) -> object:
        monkeypatch.setattr(pull_module, "install_batch", real)
        a.write(X, "ours, later")
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(pull_module, "install_batch", changed)
    report = a.sync()
    assert [one.path for one in report.conflicts] == [X]
    assert [Path(kept.copy).read_text() for kept in api.conflicts(a.repo)] == ["ours, later"]
    assert a.files == {X: b"theirs"}
