"""Traces of packs, forced upon the code: a weaker protocol loses data in each (tests/failures.md, section 17).

These are the traces of push and pull: K1 to K4, K8, K9, K18 and K19. Those of compaction and collection are in
tests/maintenance. K is a pack's key, `[a, b]` are its files.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import bayou.sync.transfer.push as push_module
from bayou.index.entry import Entry
from bayou.index.head import read_head
from bayou.index.node_store import StoreNodes
from bayou.index.tree import IndexTree, scan
from bayou.objectstore import keys
from bayou_testing.faulty import Crash, Fault, FaultyTransport, crash, lost_answer
from tests import api
from tests.sync.conftest import Clone, Team, Wire

A, B = "files/a", "files/b"
PACKS = r"/packs/"
HEAD = r"head\.json$"


def entries(team: Team) -> dict[str, Entry]:
    store = team.store()
    seen = read_head(store)
    assert seen is not None
    return {entry.path: entry for entry in scan(IndexTree(StoreNodes(store), seen.head.root))}


def check(clone: Clone) -> None:
    report = api.verify(clone.repo, deep=True, repair=False)
    assert report.ok, report


def killed(clone: Clone) -> None:
    with pytest.raises(Crash):
        clone.push()


@pytest.fixture
def a(team: Team) -> Clone:
    """A clone whose store has a head."""
    clone = team.clone("a")
    clone.write("files/first", "first")
    clone.sync()
    return clone


def test_k1_a_pack_that_may_have_landed_is_abandoned(team: Team, a: Clone, wire: Wire) -> None:
    """PUT K=[a] lands unrecorded; the next push makes a pack of its own, so that a late PUT of K changes nothing."""
    a.write(A, "a")
    before = team.packs()
    wire.cut(Fault("put", PACKS, nth=1, when="after", error=crash))
    killed(a)
    wire.cut()
    (landed,) = team.packs() - before
    late = bytes(team.store().get(keys.pack(landed)).data)

    a.write(B, "b")
    assert a.push().pushed.files == 2
    team.store().put(keys.pack(landed), late)  # the first PUT arrives once more

    found = entries(team)
    assert {found[A].pack, found[B].pack}.isdisjoint({landed, None})
    other = team.clone("b")
    other.sync()
    assert other.files == {A: b"a", B: b"b", "files/first": b"first"}
    check(other)


def test_k2_no_push_relies_on_an_object_that_it_did_not_write(team: Team, a: Clone, wire: Wire) -> None:
    """A create-only PUT that is refused would be taken for success; every attempt has a key that nothing has used."""
    a.write(A, "a")
    wire.cut(Fault("put", PACKS, nth=1, when="after", error=crash))
    killed(a)
    wire.cut()
    wire.seen.clear()
    a.write(B, "b")
    a.push()
    sent = wire.sent("put", PACKS)
    assert len(sent) == len(set(sent)) == 1
    assert entries(team)[B].pack == entries(team)[A].pack == keys.parse_pack(sent[0][sent[0].index(".bayou/") :])
    check(a)


def test_k3_a_retry_sends_the_same_bytes_although_a_file_has_changed_meanwhile(
    team: Team, a: Clone, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    a.write(A, "one")
    wire.cut(Fault("put", PACKS, nth=1, when="after", error=lost_answer))
    tree = a.repo.tree_root
    put: list[tuple[str, bytes]] = []  # what each attempt sent
    real = FaultyTransport.put

    def spying(self: FaultyTransport, key: str, data: bytes, **rest: object) -> object:
        if "/packs/" in key:
            put.append((key, bytes(data)))
            (tree / A).write_text("two")  # the file changes before the retry
        return real(self, key, data, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(FaultyTransport, "put", spying)
    a.push()
    first, second, *_ = put
    assert first == second
    found = entries(team)[A]
    assert team.store().get(keys.pack(found.pack)) is not None
    other = team.clone("b")
    other.sync()
    assert other.files[A] in (b"one", b"two")
    check(other)
    a.mark_dirty(A)
    a.sync()
    other.sync()
    assert other.files[A] == b"two"


def test_k4_what_was_deleted_since_the_kill_is_not_published(team: Team, a: Clone, wire: Wire) -> None:
    """Recorded [a, b]; kill; the user deletes a: the resumed push commits b alone, of the same pack."""
    a.write_all({A: b"a", B: b"b"})
    before = team.packs()
    wire.cut(Fault("put", HEAD, nth=1, when="before", error=crash))
    killed(a)
    wire.cut()
    (made,) = team.packs() - before
    a.delete(A)
    wire.seen.clear()
    a.push()
    assert not wire.sent("put", PACKS), "the pack was recorded, and is not sent again"
    found = entries(team)
    assert A not in found
    assert found[B].pack == made
    check(a)


def test_k8_a_pending_delete_is_of_the_old_file_and_not_of_one_that_was_made_again(team: Team, a: Clone) -> None:
    a.write(A, "same")
    a.sync()
    b = team.clone("b")
    b.sync()
    b.delete(A)  # pending
    a.delete(A)
    a.sync()
    a.write(A, "same")
    a.sync()

    report = b.sync()

    assert any("it was kept" in text for text in report.warnings)
    assert b.files[A] == b"same"
    assert A in entries(team)
    a.sync()
    assert a.files[A] == b"same"


def test_k9_the_same_bytes_of_another_push_are_recorded_and_not_downloaded(team: Team, a: Clone, wire: Wire) -> None:
    a.write(A, "same")
    a.sync()
    b = team.clone("b")
    b.sync()
    a.delete(A)
    a.sync()
    a.write(A, "same")
    a.sync()
    wire.seen.clear()

    report = b.sync()

    assert (report.pulled.files, report.pulled.deleted, report.conflicts) == (0, 0, [])
    assert not wire.sent("get", PACKS)
    again = b.sync()
    assert (again.engine, again.requests.total) == ("fast", 1), (
        "base has the head's rows, so nothing is left to compare"
    )


@dataclass
class RewrittenFile:
    """A file that is rewritten in place in the middle of reads: half old bytes, half new ones."""

    file: Path
    torn: Callable[[int], bool]
    """Whether the read of this number, counted from 1, is torn."""
    growth: int
    """The bytes by which each rewrite makes the file longer."""
    reads: int = 0
    tears: int = 0
    size: int = 0

    @property
    def content(self) -> bytes:
        return self.file.read_bytes()

    def tearing(self, real: Callable[[int, int], bytes]) -> Callable[[int, int], bytes]:
        """Return an `os.read` that tears reads of this file."""
        inode, self.size = self.file.stat().st_ino, self.file.stat().st_size

        def read(descriptor: int, size: int) -> bytes:
            if os.fstat(descriptor).st_ino != inode:
                return real(descriptor, size)
            self.reads += 1
            if not self.torn(self.reads):
                return real(descriptor, size)
            half = real(descriptor, size // 2)
            self.tears += 1
            with self.file.open("r+b") as opened:
                opened.write(bytes([self.tears]) * (self.size + self.tears * self.growth))
            os.utime(self.file, ns=(self.tears, self.tears))  # two writes of one tick of the clock differ, too
            return half + real(descriptor, size - size // 2)

        return read


def journaled(clone: Clone) -> set[str]:
    with sqlite3.connect(clone.repo.state / "sync.db") as db:
        found = {path for (path,) in db.execute("SELECT path FROM journal")}
    db.close()
    return found


@pytest.mark.parametrize("growth", [0, 100], ids=["same-size", "longer"])
@pytest.mark.parametrize(
    ("size", "by_hand", "torn"),
    [
        pytest.param(2_000, False, lambda read: True, id="scan"),
        pytest.param(100_000, False, lambda read: read % 2 == 0, id="pack"),
        pytest.param(2_000, True, lambda read: True, id="unread"),
    ],
)
def test_k18_a_file_that_is_rewritten_while_it_is_packed_is_left_out_and_stays_journaled(
    team: Team,
    a: Clone,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    by_hand: bool,
    torn: Callable[[int], bool],
    growth: int,
) -> None:
    """The file is rewritten within each such read, as often as the push tries again.

    The scan reads a small file and keeps its bytes; it hashes a larger one, which is read again for its pack; a file
    whose stat is enough for the scan is read for its pack only.
    """
    if by_hand:
        a.lay(A, b"1" * size)
        os.utime(a.repo.tree_root / A, ns=(1, 1))
        a.mark_dirty(A)
    else:
        a.write(A, b"1" * size)
    a.write(B, "b")
    rewritten = RewrittenFile(a.repo.tree_root / A, torn, growth)
    monkeypatch.setattr(os, "read", rewritten.tearing(os.read))
    report = a.push()
    monkeypatch.undo()

    assert rewritten.tears >= 5
    assert "changing" in " ".join([*report.warnings, *(one.message for one in report.failed)])
    found = entries(team)
    assert found[B].pack is not None
    assert A not in found
    assert journaled(a) == {A}
    other = team.clone("b")
    other.sync()
    assert other.files == {B: b"b", "files/first": b"first"}

    a.sync()
    other.sync()
    assert entries(team)[A].pack is not None
    assert other.files[A] == rewritten.content == bytes([rewritten.tears]) * (size + rewritten.tears * growth)
    assert journaled(a) == set()
    check(other)


def test_k18_of_a_file_that_grows_while_it_is_packed_the_bytes_at_the_start_are_pushed(
    team: Team, a: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    a.write("logs/l", "line 1\n")
    file = a.repo.tree_root / "logs/l"
    grown: list[bool] = []
    real = os.read

    def growing(descriptor: int, size: int) -> bytes:
        data = real(descriptor, size)
        if data == b"line 1\n" and not grown:
            grown.append(True)
            with file.open("a") as opened:
                opened.write("line 2\n")
        return data

    monkeypatch.setattr("bayou.worktree.hashing.os.read", growing)
    a.push()
    monkeypatch.undo()
    assert grown
    other = team.clone("b")
    other.sync()
    assert other.files["logs/l"].startswith(b"line 1\n")
    check(other)
    a.sync()
    other.sync()
    assert other.files["logs/l"] == b"line 1\nline 2\n", "what was appended stays journaled until it is pushed"


def test_k19_the_entry_has_the_hash_of_the_bytes_in_the_pack(
    team: Team, a: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan has hashed 11; the file is 13 when the pack is made: no entry says 11 of 13."""
    a.write(A, "11")
    file = a.repo.tree_root / A
    real = push_module.begin

    def late(*arguments: object) -> object:
        file.write_text("13")
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(push_module, "begin", late)
    a.push(walk=False)
    monkeypatch.undo()
    check(a)
    a.sync()
    other = team.clone("b")
    other.sync()
    assert other.files[A] == b"13"
    check(other)
