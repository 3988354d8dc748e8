"""A push reads small files that nobody has hashed only when they go up; whatever happens until then is noticed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bayou.core.errors import TreeError
from bayou.sync import run
from bayou.sync.commit import commit
from bayou.sync.plan import local_scanner
from bayou.sync.plan.local_scanner import FileScan
from bayou.sync.report import SyncReport
from bayou.sync.transfer import push
from bayou.worktree.hashing import Content, read_content
from bayou_testing.faulty import Crash, Fault, crash
from tests import api
from tests.sync.conftest import UPLOADS, Clone, Team, Wire
from tests.sync.turns import meanwhile

RAW, META = "data/t/m/n/1/raw", "data/t/m/n/1/metadata.yaml"
FILES = {RAW: b"raw 1", META: b"meta 1", "files/other": b"other"}
_stamps = iter(range(1, 1 << 30))


def lay(clone: Clone, files: dict[str, bytes]) -> None:
    """Put files there that look as if they had been there for long, each with a time of its own."""
    for path, content in files.items():
        clone.lay(path, content)
        stamp = next(_stamps)
        os.utime(clone.repo.tree_root / path, ns=(stamp, stamp))


def there(team: Team) -> dict[str, bytes]:
    clone = team.clone(f"look{next(_stamps)}")
    clone.pull()
    return clone.files


@pytest.fixture
def a(team: Team) -> Clone:
    clone = team.clone("a")
    lay(clone, FILES)
    return clone


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is read before it goes up, by any look."""
    seen: list[str] = []

    def counted(path: str, *more: Any) -> Content:
        seen.append(path)
        return read_content(path, *more)

    monkeypatch.setattr(local_scanner, "read_content", counted)
    return seen


def at_first_read(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object], *, after: bool) -> None:
    """Let something happen just before, or just after, the first file is read that goes up."""
    changes = iter([change])

    def read(path: str, *more: Any) -> Content:
        if after:
            content = read_content(path, *more)
            for now in changes:
                now()
            return content
        for now in changes:
            now()
        return read_content(path, *more)

    monkeypatch.setattr(push, "read_content", read)


def test_what_is_new_is_read_once_and_only_when_it_goes_up(team: Team, a: Clone, looks: list[str]) -> None:
    report = a.push(adopt=True)
    assert (report.pushed.files, report.pushed.bytes, report.exit_code) == (3, 16, 0)
    assert not looks
    assert there(team) == FILES
    assert a.sync().requests.total == 1
    assert not looks, "its hash is known now"


def test_bytes_are_held_no_longer_than_it_takes_to_send_them(a: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[tuple[bool, bool]] = []
    collect = push.collect

    def watched(context: Any, underway: push.StartedUploads) -> Any:
        entries = collect(context, underway)
        contents = [one.content for one in underway.files.values()]
        held.extend((content is not None, content is not None and content.data is not None) for content in contents)
        return entries

    monkeypatch.setattr(push, "collect", watched)
    a.push(adopt=True)
    assert held == [(True, False)] * 3


def test_what_a_mark_covers_is_read_once_too(team: Team, looks: list[str]) -> None:
    clone = team.clone("a")
    clone.sync()
    lay(clone, FILES)
    clone.mark_dirty()
    assert clone.sync().pushed.files == 3
    assert not looks
    assert there(team) == FILES


def test_what_may_have_been_written_just_now_is_read_at_once(team: Team, looks: list[str]) -> None:
    clone = team.clone("a")
    for path, content in FILES.items():
        clone.lay(path, content)
    clone.push(adopt=True)
    assert len(looks) == 3
    assert there(team) == FILES


@pytest.mark.parametrize("mode", ["dry", "pull", "nobody's"])
def test_whoever_pushes_nothing_reads_at_once(a: Clone, looks: list[str], mode: str) -> None:
    if mode == "dry":
        assert len(a.push(adopt=True, dry_run=True).actions) == 3
    elif mode == "pull":
        a.pull(adopt=True, walk=True)
    else:
        assert sorted(a.push().untracked) == sorted(FILES)
    assert len(looks) == 3


@pytest.mark.parametrize("after", [False, True])
def test_a_version_that_changes_under_the_hand_is_never_mixed(
    team: Team, a: Clone, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """Whoever reads one file before the change and one after it has seen a version that was never there."""
    new = {RAW: b"raw 2", META: b"meta 2"}
    at_first_read(monkeypatch, lambda: lay(a, new), after=after)
    monkeypatch.setattr(run, "PASSES", 1)
    report = a.push(adopt=True)
    assert report.pushed.files == 1
    assert there(team) == {"files/other": b"other"}, "nothing of the version is there yet"
    monkeypatch.setattr(run, "PASSES", 5)
    assert a.push(adopt=True).pushed.files == 2
    assert there(team) == FILES | new


def test_what_changes_is_pushed_as_it_is_then(team: Team, a: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    new = {RAW: b"raw 2", META: b"meta 2"}
    at_first_read(monkeypatch, lambda: lay(a, new), after=False)
    assert a.push(adopt=True).exit_code == 0
    assert there(team) == FILES | new
    assert team.uploads() == sorted(FILES), "what it had before was sent too"


def test_what_changes_once_it_is_read_is_pushed_by_the_next_sync(
    team: Team, a: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    meanwhile(monkeypatch, commit, "commit", lambda: lay(a, {RAW: b"raw 2"}))
    a.push(adopt=True)
    assert there(team) == FILES
    a.push(adopt=True, walk=True)
    assert there(team) == FILES | {RAW: b"raw 2"}


def test_what_vanishes_is_left_out_with_its_version(team: Team, a: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    at_first_read(monkeypatch, (a.repo.tree_root / META).unlink, after=False)
    report = a.push(adopt=True)
    assert (report.exit_code, report.failed) == (0, [])
    assert there(team) == {path: content for path, content in FILES.items() if path != META}


def test_a_link_in_its_place_is_refused(team: Team, a: Clone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_bytes(b"raw 1")
    file = a.repo.tree_root / RAW

    def swap() -> None:
        file.unlink()
        file.symlink_to(tmp_path / "secret")

    at_first_read(monkeypatch, swap, after=False)
    report = a.push(adopt=True)
    assert [one.path for one in report.refused] == [RAW]
    assert RAW not in there(team)


def test_a_link_above_it_leads_nowhere(team: Team, a: Clone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    for path in (RAW, META):
        (outside / path.rpartition("/")[2]).write_bytes(b"secret")
    folder = (a.repo.tree_root / RAW).parent

    def swap() -> None:
        folder.rename(folder.with_name("2"))
        folder.symlink_to(outside)

    at_first_read(monkeypatch, swap, after=False)
    a.push(adopt=True)
    assert b"secret" not in there(team).values()


def test_what_cannot_be_read_is_told_and_its_version_waits(
    team: Team, a: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(path: str, *more: Any) -> Content:
        if path.endswith(META):
            raise TreeError(f"cannot read {META}: Input/output error")
        return read_content(path, *more)

    monkeypatch.setattr(push, "read_content", read)
    report = a.push(adopt=True)
    assert [(one.path, one.code) for one in report.failed] == [(META, "tree_error")]
    assert report.exit_code == 1
    assert there(team) == {"files/other": b"other"}
    monkeypatch.setattr(push, "read_content", read_content)
    assert a.push(adopt=True).exit_code == 0
    assert there(team) == FILES


def killed_before_its_commit(a: Clone, wire: Wire) -> None:
    """Push something, and then kill a push of the rest that has uploaded everything."""
    a.write("files/first", b"")
    a.push()
    wire.cut(Fault("put", r"\.bayou/head", nth=1, error=crash))
    with pytest.raises(Crash):
        a.push(adopt=True, walk=True)
    wire.cut()


def test_what_a_killed_push_has_uploaded_is_not_uploaded_again(
    both_ways: str, team: Team, a: Clone, wire: Wire
) -> None:
    killed_before_its_commit(a, wire)
    assert a.push(adopt=True, walk=True).pushed.files == 3
    assert team.uploads() == sorted([*FILES, "files/first"])
    assert len(wire.sent("put", UPLOADS)) == (2 if both_ways == "packs" else 4)
    assert there(team) == FILES | {"files/first": b""}


def test_what_a_killed_push_has_uploaded_and_has_changed_since_is(team: Team, a: Clone, wire: Wire) -> None:
    killed_before_its_commit(a, wire)
    lay(a, {RAW: b"raw 2"})
    assert a.push(adopt=True, walk=True).pushed.files == 3
    assert there(team) == FILES | {RAW: b"raw 2", "files/first": b""}


def test_what_another_pushes_meanwhile_is_met(team: Team, a: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    b = team.clone("b")
    b.write_all({RAW: b"theirs", META: FILES[META], "files/other": b"other"})
    meanwhile(monkeypatch, commit, "commit", b.push)
    report = a.sync(adopt=True)
    assert {one.path for one in report.conflicts} == {RAW}
    assert a.files == b.files == there(team)
    [kept] = [one.copy for one in report.conflicts]
    assert kept is not None
    assert Path(kept).read_bytes() == b"raw 1"


@pytest.mark.usefixtures("loose_objects")
def test_what_a_collector_took_is_uploaded_again(team: Team, a: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    """T13"""
    a.write("files/first", b"")
    a.push()
    b = team.clone("b")
    b.pull()
    taken = []
    meanwhile(monkeypatch, commit, "commit", lambda: taken.append(api.collect(b.repo, dry_run=False, grace_s=0)))
    assert a.push(adopt=True, walk=True).exit_code == 0
    assert taken[0].leftovers_deleted == 3
    assert there(team) == FILES | {"files/first": b""}


SCENES: dict[str, dict[str, bytes]] = {
    "the same is there": FILES,
    "something else is there": {RAW: b"theirs", META: b"theirs", "files/other": b"theirs"},
    "one file of the version is there, the same": {RAW: FILES[RAW]},
    "one file of the version is there, another": {RAW: b"theirs"},
    "a file that we do not have": {"data/t/m/n/1/more": b"theirs"},
    "another version": {"data/t/m/n/2/raw": b"theirs"},
    "nothing": {},
}


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("mode", ["push", "sync"])
@pytest.mark.parametrize("on_conflict", ["keep", "ours", "theirs"])
def test_it_makes_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scene: str, mode: str, on_conflict: str
) -> None:
    """Whatever is there already: the same is decided as if everything had been read first."""

    def play(name: str) -> tuple[Any, ...]:
        root = tmp_path / name
        (root / "store").mkdir(parents=True)
        team = Team(root, (root / "store").as_uri(), {})
        b = team.clone("b")
        b.write_all({"files/first": b"", **SCENES[scene]})
        b.push()
        clone = team.clone("a")
        lay(clone, FILES)
        report: SyncReport = clone.sync(mode=mode, adopt=True, on_conflict=on_conflict)
        conflicts = sorted((one.path, one.kept) for one in report.conflicts)
        return clone.files, there(team), conflicts, report.pushed, report.pulled, report.exit_code

    deferred = play("deferred")
    monkeypatch.setattr(FileScan, "stat_only", lambda *_: None)
    assert play("at once") == deferred
