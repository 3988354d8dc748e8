"""Mishaps that a second pair of eyes found: each lost something, or stuck, once."""

from __future__ import annotations

import pytest

from bayou.core.errors import ConflictRefused
from bayou.objectstore import keys
from bayou_testing.faulty import Crash, Fault, crash
from tests import api
from tests.sync.conftest import OBJECTS, Team, Wire


def found(team: Team, path: str, content: bytes) -> None:
    """Put an object into the store that was there before Bayou."""
    team.store().put(keys.payload(path, None), content)


def test_a_conflict_with_an_object_of_unknown_hash_fails_when_asked_to(team: Team) -> None:
    found(team, "files/x", b"theirs")
    a = team.clone("a")
    a.lay("files/x", b"ours !")
    with pytest.raises(ConflictRefused):
        a.sync(on_conflict="fail")
    assert a.files == {"files/x": b"ours !"}


def test_a_conflict_with_an_object_of_unknown_hash_keeps_both(team: Team) -> None:
    found(team, "files/x", b"theirs")
    found(team, "files/same", b"equal")
    a = team.clone("a")
    a.lay("files/x", b"ours !")
    a.lay("files/same", b"equal")
    report = a.sync()
    assert [one.path for one in report.conflicts] == ["files/x"]
    assert a.files["files/x"] == b"theirs"
    assert report.conflicts[0].copy is not None
    with open(report.conflicts[0].copy, "rb") as kept:
        assert kept.read() == b"ours !"


@pytest.mark.parametrize("how", ["lost", "damaged"])
def test_a_base_that_cannot_be_read_is_found_out_anew(team: Team, how: str) -> None:
    a, b = team.clone("a"), team.clone("b")
    a.write_all({f"files/{number}": b"x" for number in range(5)})
    a.sync()
    b.sync()
    b.write("files/0", "changed by b")
    b.sync()
    for node in (a.repo.state / "nodes").iterdir():
        if how == "lost":
            node.unlink()
        else:
            node.write_bytes(node.read_bytes()[:-20] + b"garbage that is here")
    report = a.sync()
    assert any("compared anew" in warning for warning in report.warnings)
    assert a.files["files/0"] == b"changed by b" or report.conflicts
    assert a.files.keys() == b.files.keys()
    assert a.sync().engine == "fast"
    assert a.status().in_sync


def test_a_delete_of_a_found_object_reaches_a_store_without_a_head(team: Team) -> None:
    found(team, "files/x", b"1")
    found(team, "files/y", b"2")
    a = team.clone("a")
    a.pull()
    a.delete("files/x")
    assert a.sync().pushed.deleted == 1
    assert team.clone("c").pull().pulled.files == 1


def test_an_object_that_was_put_anew_leaves_the_trash_and_is_never_deleted(team: Team) -> None:
    found(team, "files/x", b"old")
    a = team.clone("a")
    a.pull()
    a.delete("files/x")
    a.sync()
    found(team, "files/x", b"somebody else's, newer")
    report = api.collect(a.repo, dry_run=False, grace_s=0)
    assert report.trash_deleted == 0
    assert "files/x" in team.payload_keys()
    verified = api.verify(a.repo, deep=False, repair=False)
    assert (verified.trash, verified.unindexed) == (0, ["files/x"])


@pytest.mark.parametrize("listed", [True, False], ids=["known before", "new"])
def test_t11_a_file_whose_adoption_was_interrupted_is_untracked_until_a_commit_has_it(
    team: Team, wire: Wire, listed: bool
) -> None:
    """Seen: `status` said "in sync", with no word of the file, until the next sync."""
    a = team.clone("a")
    a.write("files/first", "1")
    a.push()
    a.lay("files/adopted", b"2" * 300_000)
    a.write("files/journaled", b"3" * 300_000)
    if listed:
        a.pull()
    wire.cut(Fault("put", f"{OBJECTS}adopted", error=crash))

    with pytest.raises(Crash):
        a.push(adopt=True)

    assert a.status().untracked == 1
    wire.cut()
    assert a.push(adopt=True).pushed.files == 2
    assert a.status().untracked == 0


def test_t11_a_file_that_a_program_has_marked_stays_its_own_when_an_adoption_is_interrupted(
    team: Team, wire: Wire
) -> None:
    a = team.clone("a")
    a.write("files/first", "1")
    a.push()
    a.lay("files/marked/x", b"2" * 300_000)
    a.mark_dirty("files/marked")
    wire.cut(Fault("put", f"{OBJECTS}x", error=crash))
    with pytest.raises(Crash):
        a.push(adopt=True)
    wire.cut()

    assert a.push().pushed.files == 1, "without --adopt"
