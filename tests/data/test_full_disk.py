"""A disk that fills, at whatever moment, leaves no half version, and an error that says so."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bayou.core.errors import BayouError, StateError, TreeError
from bayou.data.records import Records
from bayou.repo import Repo
from tests.data.models import MODEL, OTHER, Seen, in_tree, leftovers, visible
from tests.sync.conftest import Team

_OLD: Seen = {("main", "x", 1): b"1", ("main", "x", 2): b"2", ("main", "log", 1): b"one\n"}


def _furnish(records: Records) -> None:
    records.data.save(MODEL, "x", b"1")
    records.data.save(MODEL, "x", b"2")
    records.data.save(MODEL, "log", b"one\n", streaming=True)


def _publish(records: Records) -> None:
    with records.data.stage() as stage:
        stage.save(MODEL, "x", b"3")
        stage.save(OTHER, "y", b"4")
        stage.publish()


def _allocate(records: Records) -> None:
    with records.data.allocate(MODEL, "x") as room:
        room.path.write_bytes(b"3")
        room.finalize()


WORK: dict[str, tuple[Callable[[Records], object], Seen]] = {
    "save": (lambda records: records.data.save(MODEL, "x", b"3"), _OLD | {("main", "x", 3): b"3"}),
    "save-first": (lambda records: records.data.save(OTHER, "a.b", b"3"), _OLD | {("weekly", "a.b", 1): b"3"}),
    "allocate": (_allocate, _OLD | {("main", "x", 3): b"3"}),
    "append": (lambda records: records.data.append(MODEL, "log", b"two\n"), _OLD | {("main", "log", 1): b"one\ntwo\n"}),
    "publish": (_publish, _OLD | {("main", "x", 3): b"3", ("weekly", "y", 1): b"4"}),
    "rename": (
        lambda records: records.data.rename(MODEL, "x", "z"),
        {("main", "z", 1): b"1", ("main", "z", 2): b"2", ("main", "log", 1): b"one\n"},
    ),
    "delete": (lambda records: records.data.delete(MODEL, "x"), {("main", "log", 1): b"one\n"}),
}


@contextmanager
def full_from(step: int) -> Iterator[None]:
    """Let the disk be full from the step-th write on: to a file, to sync one, or to make a name."""
    counted = 0

    def point() -> None:
        nonlocal counted
        counted += 1
        if counted >= step:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def around(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            point()
            return real(*args, **named)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("write", "fsync", "mkdir", "link"):
            patch.setattr(os, name, around(getattr(os, name)))
        yield


@pytest.mark.parametrize("name", WORK)
def test_a_disk_that_fills_leaves_the_old_state_or_the_new_one(directory_repo: Repo, name: str, tmp_path: Path) -> None:
    work, new = WORK[name]
    with Records(directory_repo) as records:
        _furnish(records)
    shutil.copytree(directory_repo.tree_root, tmp_path / "pristine")
    states = []
    for step in range(1, 100):
        with Records(directory_repo) as records:
            with full_from(step):
                error = _error(work, records)
            assert error is None or isinstance(error, TreeError | StateError)
            assert error is None or ("No space left on device" in error.message and error.hint)
        with Records(directory_repo) as records:  # there is space again
            states.append(visible(records))
            assert states[-1] in (_OLD, new), f"at step {step}"
            assert leftovers(records.tree.root) == [], f"at step {step}"
            assert not list(directory_repo.state.glob("changes/*"))
            rows = {row.metadata_path for row in records.data.find(all_versions=True)}
            assert rows == {path for path, one in in_tree(records.tree.root).items() if not one.deleted}
        if error is None:
            break
        shutil.rmtree(directory_repo.tree_root)  # from the start, with nobody who remembers
        for file in (directory_repo.root / ".bayou").glob("catalog.db*"):
            file.unlink()
        shutil.copytree(tmp_path / "pristine", directory_repo.tree_root)
    assert (states[0], states[-1]) == (_OLD, new)
    assert len(states) > 3


def _error(work: Callable[[Records], object], records: Records) -> BayouError | None:
    try:
        work(records)
    except BayouError as error:
        return error
    return None


def test_f041_a_full_state_volume_refuses_a_save_before_anything_is_written(
    team: Team,
) -> None:
    a = team.clone("a")
    with Records(a.repo) as records:
        records.data.save(MODEL, "x", b"1")
        before = a.files
        database = records.sync._journal.database  # type: ignore[attr-defined]
        ((pages,),) = database.rows("PRAGMA page_count")
        database.rows(f"PRAGMA max_page_count = {pages}")  # to SQLite, a full disk
        with pytest.raises(StateError, match="full") as raised:
            _save_many(records)
        assert "free some space" in str(raised.value.hint)
        found = visible(records)
    after = a.files
    assert before.items() <= after.items()
    assert len(after) == 2 * len(found)
    assert leftovers(a.repo.tree_root) == []


def _save_many(records: Records) -> None:
    for number in range(2000):
        records.data.save(MODEL, "x" * 200 + str(number), b"")
