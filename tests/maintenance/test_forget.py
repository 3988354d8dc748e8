"""`verify --forget`: an entry leaves the index, whatever the clone has of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bayou.core.errors import MassDelete
from bayou.index.head import read_head, swap_head
from bayou.maintenance.replicate import replicate
from bayou.objectstore import keys
from bayou.sync.commit import commit
from bayou.sync.plan.policy import ModelRef, ModelScope
from bayou.sync.report import VerifyReport
from tests import api
from tests.sync.conftest import Clone, Team, Wire

RAW, META, NEXT = "data/t/m/n/1/raw", "data/t/m/n/1/metadata.yaml", "data/t/m/n/2/raw"
FILES = {RAW: b"raw", META: b"meta", NEXT: b"next", "files/x": b"x"}


@pytest.fixture
def writer(team: Team) -> Clone:
    clone = team.clone("writer")
    clone.write_all(FILES)
    clone.push()
    return clone


def forget(clone: Clone, *paths: str) -> VerifyReport:
    return api.verify(clone.repo, deep=False, repair=False, forget=paths)


def indexed(team: Team) -> dict[str, bytes]:
    """What a new clone gets."""
    clone = team.clone("reader")
    clone.pull()
    return clone.files


@pytest.mark.parametrize("path", [RAW, META, NEXT, "files/x"])
def test_a_clone_that_never_had_an_entry_forgets_it(team: Team, writer: Clone, path: str) -> None:
    report = forget(team.clone("b"), path)
    assert (report.warnings, report.checked) == ([], len(FILES) - 1)
    assert indexed(team).keys() == FILES.keys() - {path}
    writer.sync()
    assert writer.files.keys() == FILES.keys() - {path}


def test_a_clone_that_lost_its_state_forgets_an_entry_beside_another_content(team: Team, writer: Clone) -> None:
    b = team.clone("b")
    b.pull()
    b.lose_state()
    b.lay(META, "changed by hand")
    (warning,) = forget(b, RAW).warnings
    assert warning.startswith(f"{RAW} was forgotten, and the file of this tree is kept")
    assert RAW not in indexed(team)


def test_a_clone_that_is_behind_forgets_an_entry_of_a_version_that_has_changed(team: Team, writer: Clone) -> None:
    b = team.clone("b")
    b.pull()
    writer.write(META, b"changed in the store")
    writer.push()
    assert len(forget(b, RAW).warnings) == 1
    b.sync()
    assert b.files == indexed(team) == {META: b"changed in the store", NEXT: FILES[NEXT], "files/x": FILES["files/x"]}


def test_what_was_forgotten_is_settled_and_other_changes_are_pushed(team: Team, writer: Clone) -> None:
    writer.write("files/y", b"y")
    forget(writer, RAW)
    assert (writer.status().journal_paths, writer.status().in_sync) == (0, True)
    assert indexed(team).keys() == {META, NEXT, "files/x", "files/y"}
    assert not (writer.repo.tree_root / RAW).exists()


def test_the_good_file_of_a_forgotten_entry_is_kept_aside_and_the_log_says_forget(team: Team, writer: Clone) -> None:
    report = forget(writer, RAW)
    (kept,) = api.conflicts(writer.repo)
    assert (kept.path, Path(kept.copy).read_bytes()) == (RAW, FILES[RAW])
    assert kept.copy in report.warnings[0]
    (row,) = (row for row in api.log(writer.repo, 10) if row.deleted)
    assert (row.kind, row.deleted) == ("forget", 1)


def test_an_entry_that_a_peer_replaces_meanwhile_is_kept(
    team: Team, writer: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    b, swap, peers = team.clone("b"), swap_head, [writer]

    def late(*args: Any) -> Any:
        while peers:
            peer = peers.pop()
            peer.write("files/x", b"good again")
            peer.push()
        return swap(*args)

    monkeypatch.setattr(commit, "swap_head", late)
    report = forget(b, "files/x")
    assert indexed(team)["files/x"] == b"good again"
    assert report.warnings == ["files/x was deleted here and changed in the store: it was kept"]


def test_a_path_without_an_entry_is_named_and_its_file_stays_where_it_is(team: Team, writer: Clone) -> None:
    writer.lay("files/untracked", "mine")
    report = forget(writer, "files/untracked", "files/x")
    assert report.warnings[0] == "the index has no entry of files/untracked: there is nothing to forget"
    assert writer.files["files/untracked"] == b"mine"
    assert indexed(team).keys() == FILES.keys() - {"files/x"}


def test_a_mass_delete_is_no_word_of_forget(team: Team, writer: Clone) -> None:
    many: Mapping[str, bytes] = {f"files/many/{number}": b"1" for number in range(300)}
    writer.write_all(dict(many))
    writer.push()
    with pytest.raises(MassDelete):
        forget(writer, *many)
    assert writer.files == {**FILES, **many}
    assert writer.status().in_sync


def kept_at(clone: Clone) -> dict[str, bytes]:
    return {kept.path: Path(kept.copy).read_bytes() for kept in api.conflicts(clone.repo)}


def test_a_peer_keeps_the_good_file_of_a_forgotten_entry_and_says_so(team: Team, writer: Clone) -> None:
    peer = team.clone("peer")
    peer.pull()
    forget(writer, "files/x")
    report = peer.pull()
    assert peer.files.keys() == FILES.keys() - {"files/x"}
    assert kept_at(peer) == {"files/x": b"x"}
    (kept,) = api.conflicts(peer.repo)
    assert report.warnings == [
        f"files/x was forgotten by another client, and the file of this tree is kept: {kept.copy}"
    ]
    assert peer.status().in_sync
    assert peer.sync().warnings == []


def test_of_several_commits_a_peer_keeps_what_was_forgotten_and_deletes_what_was_deleted(
    team: Team, writer: Clone
) -> None:
    peer = team.clone("peer")
    peer.pull()
    writer.delete(NEXT)
    writer.push()
    forget(writer, "files/x")
    writer.write("files/later", b"later")
    writer.push()
    peer.sync()
    assert peer.files == {RAW: b"raw", META: b"meta", "files/later": b"later"}
    assert kept_at(peer) == {"files/x": b"x"}


def test_a_peer_that_has_committed_past_a_forget_still_keeps_the_file(team: Team, writer: Clone) -> None:
    peer = team.clone("peer")
    peer.pull()
    forget(writer, "files/x")
    peer.write("files/mine", b"mine")
    peer.push(walk=False)  # its base moves past the forget, and still has the entry
    assert peer.files["files/x"] == b"x"
    peer.sync()
    assert "files/x" not in peer.files
    assert kept_at(peer) == {"files/x": b"x"}


def test_a_peer_that_cannot_read_the_roots_of_a_forget_keeps_every_file_that_it_would_delete(
    team: Team, writer: Clone
) -> None:
    peer = team.clone("peer")
    peer.pull()
    writer.delete(NEXT)
    writer.push()
    forget(writer, "files/x")
    head = read_head(team.store())
    assert head is not None
    before, after = (row.root for row in head.head.log[-2:])
    assert before is not None
    assert after is not None
    writer.write("files/later", b"later")
    writer.push()
    team.store().delete([keys.node(before.node)])
    peer.sync()
    assert peer.files == {RAW: b"raw", META: b"meta", "files/later": b"later"}
    assert kept_at(peer) == {"files/x": b"x", NEXT: b"next"}


def test_a_clone_of_a_replica_keeps_the_file_of_an_entry_that_its_source_forgot(
    team: Team, writer: Clone, tmp_path: Path
) -> None:
    url = (tmp_path / "replica").as_uri()
    (tmp_path / "replica").mkdir()
    replicate(writer.repo, url)
    other = Team(tmp_path / "others", url, {}).clone("a")
    other.pull()
    forget(writer, "files/x")
    replicate(writer.repo, url)
    other.pull()
    assert other.files.keys() == FILES.keys() - {"files/x"}
    assert kept_at(other) == {"files/x": b"x"}


def test_the_first_pull_of_a_model_reads_no_page_of_the_log(
    team: Team, wire: Wire, writer: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bayou.index.head.PAGE_ROWS", 3)
    for number in range(6):
        writer.write("files/x", str(number))
        writer.push(walk=False)
    stored = team.keys()
    assert any(key.startswith(".bayou/log/") for key in stored)
    wire.seen.clear()
    reader = team.clone("reader")
    reader.pull(scope=ModelScope.of([ModelRef("t", "m", "m")]))
    assert RAW in reader.files
    assert "files/x" not in reader.files
    assert wire.sent("get", r"\.bayou/log/") == []


def test_a_file_that_was_discovered_before_the_first_head_is_kept_after_a_forget(team: Team) -> None:
    (team.root / "store" / "files").mkdir()
    (team.root / "store" / "files" / "old").write_text("from before Bayou")
    reader = team.clone("reader")
    reader.pull()
    writer = team.clone("writer")
    writer.push()
    forget(writer, "files/old")
    reader.pull()
    assert (reader.files, kept_at(reader)) == ({}, {"files/old": b"from before Bayou"})
