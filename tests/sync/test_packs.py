"""Push and pull with packs: P1, P2, P3, P5, P6 and P7 of the design, and what a store may do to a pack on its way."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import bayou.sync.transfer.executor as executor_module
import bayou.sync.transfer.packed as packed_module
from bayou.core.errors import AccessDenied, StateError, SyncError, Unavailable
from bayou.objectstore import keys
from bayou.objectstore.retry import RetryPolicy
from bayou.packs.archive import LIST_NAME
from bayou.packs.write import PackWriter
from bayou.state.database import Database
from bayou.sync.commit import commit
from bayou.sync.transfer import push
from bayou_testing.faulty import Crash, Fault, FaultyTransport, crash, lost_answer
from tests import api
from tests.packs.moving import drop_packs, move
from tests.sync import children
from tests.sync.conftest import OBJECTS, UPLOADS, Clone, Team, Wire
from tests.sync.indexes import content_of, entries_of, head_of
from tests.sync.turns import meanwhile

PACKS = r"\.bayou/packs/"
HEAD = r"head\.json$"
LARGE = 256 << 10
V = "data/t/m/n/1"
RAW, META, NOTE = f"{V}/raw", f"{V}/metadata.yaml", f"{V}/note"


def files_of(count: int, size: int = 10_000, seed: int = 0) -> dict[str, bytes]:
    """Return files that do not shrink, so that their number alone says how many packs they fill."""
    chance = random.Random(seed)
    return {f"files/{number:03}": chance.randbytes(size) for number in range(count)}


@pytest.fixture
def small_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven files of 10 KB fill a pack."""
    monkeypatch.setenv("BAYOU_PACK_SIZE", "64KiB")


@pytest.fixture
def a(small_packs: None, no_backoff: None, team: Team, wire: Wire) -> Clone:
    """A clone of a store that has a head; what has been asked so far is forgotten."""
    clone = team.clone("a")
    clone.write("files/first", "so that there is a head")
    clone.push()
    wire.seen.clear()
    return clone


def fresh(team: Team) -> dict[str, bytes]:
    """Return what a new clone gets."""
    clone = team.clone(f"fresh-{os.urandom(4).hex()}")
    assert clone.pull().exit_code == 0
    return clone.files


def packs_of(team: Team) -> dict[str, str | None]:
    """Return the pack of each path, by the index."""
    return {path: entry.pack for path, entry in entries_of(team.store()).items()}


def killed(step: Callable[[], object]) -> None:
    with pytest.raises(Crash):
        step()


# ---- what packs are for ----


def test_many_small_files_go_up_with_few_requests_and_come_down_with_as_few(team: Team, a: Clone, wire: Wire) -> None:
    files = files_of(70)
    a.write_all(files)

    pushed = a.push()

    assert (pushed.pushed.files, pushed.pushed.bytes, pushed.exit_code) == (70, 700_000, 0)
    assert (len(wire.sent("put", PACKS)), wire.sent("put", OBJECTS)) == (10, [])
    assert pushed.requests.put == len(wire.sent("put"))
    assert team.uploads() == sorted([*files, "files/first"])
    b = team.clone("b")
    wire.seen.clear()
    pulled = b.pull()
    assert (pulled.pulled.files, pulled.pulled.bytes) == (71, 700_000 + len(b"so that there is a head"))
    assert len(wire.sent("get", PACKS)) == 11, "one range of each"
    assert b.files == a.files == files | {"files/first": b"so that there is a head"}
    assert a.sync().requests.total == b.sync().requests.total == 1


def test_a_packs_files_are_in_order_of_their_paths(team: Team, a: Clone) -> None:
    files = files_of(70)
    for path in random.Random(1).sample(sorted(files), len(files)):
        a.lay(path, files[path])
    a.push(adopt=True)

    entries = [entry for path, entry in sorted(entries_of(team.store()).items()) if path in files]

    assert len({entry.pack for entry in entries}) == 10
    for one, other in pairwise(entries):
        assert one.pack != other.pack or (one.offset or 0) < (other.offset or 0)
    assert len([1 for one, other in pairwise(entries) if one.pack != other.pack]) == 9


def test_one_changed_file_is_a_pack_of_its_own_and_the_others_stay_where_they_are(team: Team, a: Clone) -> None:
    a.write_all(files_of(10))
    a.push()
    before = entries_of(team.store())
    a.write("files/003", "changed")

    a.push()

    after = entries_of(team.store())
    assert {path for path in after if after[path] != before[path]} == {"files/003"}
    assert after["files/003"].pack not in {entry.pack for entry in before.values()}
    assert fresh(team) == a.files


def test_empty_files_and_names_of_all_kinds_are_packed(team: Team, a: Clone) -> None:
    files = {
        "files/empty": b"",
        "files/Zoë/日本語 \U0001f600.txt": "grüße".encode(),
        "files/" + "n" * 200: b"long",
        "audit/day/.hidden": b"hidden",
        f"files/{LIST_NAME}x": b"like the list",
        "files/spaces and 'quotes'": b"quoted",
    }
    a.write_all(files)
    assert a.push().pushed.files == len(files)
    assert {path: data for path, data in fresh(team).items() if path != "files/first"} == files


# ---- which files are packed ----


def test_large_and_small_files_of_one_version_go_up_together(team: Team, a: Clone, wire: Wire) -> None:
    files = {RAW: os.urandom(LARGE), META: b"meta", NOTE: os.urandom(LARGE - 1)}
    a.write_all(files)
    assert a.push().pushed.files == 3

    entries = entries_of(team.store())

    assert (entries[RAW].pack, entries[RAW].key) == (None, keys.payload(RAW, entries[RAW].push))
    assert entries[META].pack is not None
    assert entries[NOTE].pack is not None, "just below the limit"
    assert len({entry.push for path, entry in entries.items() if path in files}) == 1, "one push made them all"
    assert {path: data for path, data in fresh(team).items() if path in files} == files


def test_a_version_of_which_the_large_file_is_refused_waits_with_its_small_ones(
    team: Team, a: Clone, wire: Wire
) -> None:
    a.write_all({RAW: os.urandom(LARGE), META: b"meta", "files/other": b"other"})
    wire.cut(Fault("put", OBJECTS, error=lambda: AccessDenied("403")))

    report = a.push()

    assert ([one.path for one in report.failed], report.pushed.files, report.exit_code) == ([RAW], 1, 1)
    assert entries_of(team.store()).keys() == {"files/first", "files/other"}
    assert a.status().journal_paths == 2
    wire.cut()
    wire.seen.clear()
    assert a.push().pushed.files == 2
    assert (len(wire.sent("put", OBJECTS)), wire.sent("put", PACKS)) == (1, []), "the small file was there already"
    assert fresh(team) == a.files


def test_without_packs_every_file_is_an_object_of_its_own(
    team: Team, wire: Wire, no_backoff: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAYOU_PACK_BELOW", "0")
    clone = team.clone("a")
    clone.write_all(files_of(5) | {"files/empty": b""})
    assert clone.push().pushed.files == 6
    assert team.packs() == set()
    assert set(packs_of(team).values()) == {None}
    assert team.payload_keys() == {entry.key for entry in entries_of(team.store()).values()}


def test_another_limit_moves_nothing_that_has_not_changed(
    team: Team, a: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed, then as objects, then packed again: each push places only what it pushes."""
    files = {"files/one": b"1" * 100, "files/two": b"2" * 100}
    a.write_all(files)
    a.push()
    packed = entries_of(team.store())

    monkeypatch.setenv("BAYOU_PACK_BELOW", "50")
    a.reopen()
    assert a.sync().requests.total == 1, "a new limit is no change"
    a.write("files/two", b"3" * 100)
    a.write("files/three", b"4" * 49)
    assert a.push().pushed.files == 2
    mixed = entries_of(team.store())
    assert mixed["files/one"] == packed["files/one"]
    assert (mixed["files/two"].pack, mixed["files/three"].pack is not None) == (None, True)

    monkeypatch.setenv("BAYOU_PACK_BELOW", "1MiB")
    a.reopen()
    a.write("files/two", b"5" * 100)
    a.push()
    assert entries_of(team.store())["files/two"].pack is not None
    assert fresh(team) == a.files


def test_a_file_that_outgrows_the_limit_becomes_an_object_and_a_shrunken_one_is_packed(team: Team, a: Clone) -> None:
    a.write_all({"files/grows": b"x", "files/shrinks": os.urandom(LARGE)})
    a.push()
    assert (packs_of(team)["files/grows"] is None, packs_of(team)["files/shrinks"] is None) == (False, True)
    a.write_all({"files/grows": os.urandom(LARGE), "files/shrinks": b"x"})
    a.push()
    assert (packs_of(team)["files/grows"] is None, packs_of(team)["files/shrinks"] is None) == (True, False)
    assert fresh(team) == a.files


@pytest.mark.parametrize("then", ["0", "1MiB"])
def test_what_a_killed_push_has_uploaded_is_taken_whatever_the_limit_is_by_then(
    team: Team, a: Clone, wire: Wire, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """Before: two packed, one as an object. The next push sends none of them again."""
    a.write_all({"files/one": b"1", "files/two": b"2", "files/large": os.urandom(LARGE)})
    wire.cut(Fault("put", HEAD, nth=1, error=crash))
    killed(a.push)
    wire.cut()
    wire.seen.clear()
    monkeypatch.setenv("BAYOU_PACK_BELOW", then)
    a.reopen()

    assert a.push().pushed.files == 3

    assert wire.sent("put", UPLOADS) == []
    assert fresh(team) == a.files


def test_an_object_that_a_killed_push_had_begun_stays_an_object(
    team: Team, a: Clone, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its key is recorded, and a late PUT may still write it: it gets the same bytes again."""
    monkeypatch.setenv("BAYOU_PACK_BELOW", "0")
    a.reopen()
    a.write("files/begun", "begun")
    wire.cut(Fault("put", OBJECTS, nth=1, when="after", error=crash))
    killed(a.push)
    wire.cut()
    (begun,) = wire.sent("put", OBJECTS)
    monkeypatch.delenv("BAYOU_PACK_BELOW")
    a.reopen()
    wire.seen.clear()

    a.push()

    assert wire.sent("put", UPLOADS) == [begun]
    assert entries_of(team.store())["files/begun"].key == begun
    assert fresh(team) == a.files


# ---- P3: files that change while they are packed ----


def just_before_it_is_packed(monkeypatch: pytest.MonkeyPatch, path: str, change: Callable[[], object]) -> None:
    """Let something happen after a file was scanned and right before its bytes are read for a pack, once."""
    read = packed_module._read
    changes = iter([change])

    def reading(root: Path, upload: Any) -> Any:
        if upload.path == path:
            for now in changes:
                now()
            upload = replace(upload, data=None)  # as of a file that did not fit into memory
        return read(root, upload)

    monkeypatch.setattr(packed_module, "_read", reading)


def test_p3_a_file_that_is_rewritten_is_left_out_and_pushed_by_the_next_pass(
    team: Team, a: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = files_of(10)
    a.write_all(files)
    target = a.repo.tree_root / "files/004"
    just_before_it_is_packed(monkeypatch, "files/004", lambda: target.write_bytes(b"z" * 10_000))
    monkeypatch.setattr("bayou.sync.run.PASSES", 1)

    report = a.push()

    assert (report.pushed.files, report.failed) == (9, [])
    assert "files/004" not in team.uploads(), "neither its old bytes nor torn ones"
    assert a.status().journal_paths == 1
    monkeypatch.setattr("bayou.sync.run.PASSES", 5)
    assert a.push().pushed.files == 1
    assert fresh(team) == a.files
    assert a.files["files/004"] == b"z" * 10_000


def test_p3_a_file_that_only_grew_is_packed_as_it_was_and_stays_journaled(
    team: Team, a: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    a.write("logs/day/host", "line 1\n")
    log = a.repo.tree_root / "logs/day/host"
    just_before_it_is_packed(monkeypatch, "logs/day/host", lambda: log.write_bytes(b"line 1\nline 2\n"))

    report = a.push()

    assert (report.pushed.files, report.failed, report.exit_code) == (1, [], 0)
    assert content_of(team.store())["logs/day/host"] == b"line 1\n"
    assert a.status().journal_paths == 1
    assert a.push().pushed.files == 1
    assert fresh(team)["logs/day/host"] == b"line 1\nline 2\n"


@pytest.mark.parametrize("how", ["removed", "a link", "a directory"])
def test_p3_a_file_that_is_no_file_any_more_is_left_out(
    team: Team, a: Clone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    a.write_all({"files/here": b"here", "files/gone": b"gone"})
    (tmp_path / "secret").write_bytes(b"gone")
    target = a.repo.tree_root / "files/gone"

    def change() -> None:
        target.unlink()
        if how == "a link":
            target.symlink_to(tmp_path / "secret")
        elif how == "a directory":
            target.mkdir()

    just_before_it_is_packed(monkeypatch, "files/gone", change)
    report = a.push()

    assert entries_of(team.store()).keys() == {"files/first", "files/here"}
    assert "files/gone" not in team.uploads()
    assert report.pushed.files == 1
    assert all(failure.path == "files/gone" for failure in report.failed)


def test_p3_a_version_of_which_one_file_changes_is_not_mixed(
    team: Team, a: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P2: a member that is held back holds back its unit, although the other file lies in the pack."""
    a.write_all({RAW: b"raw 1", META: b"meta 1", "files/other": b"other"})
    new = {RAW: b"raw 2", META: b"meta 2"}
    just_before_it_is_packed(monkeypatch, RAW, lambda: a.write_all(new))
    monkeypatch.setattr("bayou.sync.run.PASSES", 1)

    a.push()

    assert entries_of(team.store()).keys() == {"files/first", "files/other"}
    monkeypatch.setattr("bayou.sync.run.PASSES", 5)
    a.push()
    assert {path: data for path, data in fresh(team).items() if path in new} == new


def test_p3_a_file_that_cannot_be_read_fails_alone(team: Team, a: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    a.write_all(files_of(5))

    def broken(path: str, flags: int) -> int:
        if path.endswith("/002"):
            raise OSError(5, "Input/output error")
        return open_regular(path, flags)

    open_regular = executor_module.open_regular
    just_before_it_is_packed(monkeypatch, "files/002", lambda: None)
    for module in (executor_module, packed_module):
        monkeypatch.setattr(module, "open_regular", broken)
    report = a.push()

    assert [(one.path, one.code) for one in report.failed] == [("files/002", "unreadable")]
    assert (report.pushed.files, report.exit_code) == (4, 1)


# ---- P1 and P2: pushes that die ----


KILLED = """
from bayou.repo import open_repo
from bayou.state.connection import Connection
from bayou.sync.service import sync
from bayou.sync.transfer import push
from bayou.sync.report import SyncOptions

after(push, "_record")
sync(Connection(open_repo(sys.argv[1])), SyncOptions(mode="push"))
"""


def test_p1_a_killed_push_goes_on_from_the_packs_that_it_recorded_and_abandons_the_others(
    team: Team, a: Clone, wire: Wire
) -> None:
    files = files_of(280)
    a.write_all(files)
    assert children.run_to_death(KILLED, a.repo.root)
    before = team.packs()
    recorded = {path: upload for path, upload in uploads_of(a).items() if upload.stored is not None}
    assert recorded
    assert len(recorded) < len(files)
    wire.seen.clear()

    report = a.push()

    assert (report.pushed.files, report.exit_code) == (len(files), 0)
    entries = {path: entry for path, entry in entries_of(team.store()).items() if path in files}
    for path, entry in entries.items():
        if path in recorded:
            assert (entry.pack, entry.push) == (recorded[path].location.pack, recorded[path].push)
        else:
            assert entry.pack not in before, "what was under way is abandoned"
    assert not {keys.parse_pack(key) for key in wire.sent("put", PACKS)} & before, "no key is used twice"
    assert fresh(team) == a.files
    assert uploads_of(a) == {}


def uploads_of(clone: Clone) -> dict[str, Any]:
    """Return what `sync.db` says of uploads that no commit contains."""
    from bayou.sync.context import open_context
    from bayou.sync.report import SyncOptions

    with open_context(clone.repo, SyncOptions()) as context:
        return push.recorded(context.database, context.remote_id)


def test_p1_a_pack_that_lands_after_its_pushers_death_changes_nothing(team: Team, a: Clone, wire: Wire) -> None:
    """K1: the answer never came, so nothing is recorded; the files go up again, under another key."""
    a.write_all({"files/a": b"1", "files/b": b"2"})
    wire.cut(Fault("put", PACKS, nth=1, error=crash))
    killed(a.push)
    wire.cut()
    assert uploads_of(a) == {}
    (late,) = (keys.parse_pack(key) for key in wire.sent("put", PACKS))
    a.write("files/b", "changed")

    a.push()
    assert late is not None
    team.store().put(keys.pack(late), b"the late PUT, whatever it has")

    assert late not in packs_of(team).values()
    assert fresh(team) == a.files


@pytest.mark.parametrize("change", ["deleted", "edited"])
def test_p2_a_recorded_pack_is_committed_file_by_file(team: Team, a: Clone, wire: Wire, change: str) -> None:
    """K4: the pack has a hole then."""
    a.write_all({"files/a": b"1", "files/b": b"2"})
    wire.cut(Fault("put", HEAD, nth=1, error=crash))
    killed(a.push)
    wire.cut()
    (pack,) = team.packs() - set(packs_of(team).values())
    a.delete("files/a") if change == "deleted" else a.write("files/a", "another")

    a.push()

    entries = entries_of(team.store())
    assert entries["files/b"].pack == pack
    if change == "deleted":
        assert "files/a" not in entries
    else:
        assert entries["files/a"].pack not in (pack, None)
    assert fresh(team) == a.files


def test_p2_a_version_that_changed_since_is_not_completed_from_a_recorded_pack(
    team: Team, a: Clone, wire: Wire
) -> None:
    a.write_all({RAW: b"raw 1", META: b"meta 1"})
    wire.cut(Fault("put", HEAD, nth=1, error=crash))
    killed(a.push)
    wire.cut()
    new = {RAW: b"raw 2", META: b"meta 1"}
    a.write_all(new)
    a.push()
    assert {path: data for path, data in fresh(team).items() if path in new} == new


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_push_that_dies_at_any_pack_is_repeated_without_a_trace(
    team: Team, a: Clone, wire: Wire, moment: Any
) -> None:
    """V19, one pack after the other; nothing that a reader sees is without its bytes (V11)."""
    a.write_all(files_of(30))
    for number in range(1, 20):
        wire.cut(Fault("put", PACKS, nth=number, when=moment, error=crash))
        try:
            a.push()
        except Crash:
            assert head_of(team.store()).head.seq == 2
            assert content_of(team.store()) == {"files/first": b"so that there is a head"}
            continue
        break
    else:
        pytest.fail("it never got through")
    wire.cut()
    assert fresh(team) == a.files
    assert a.sync().requests.total == 1


# ---- stores that fail ----


def test_a_pack_that_is_refused_fails_its_files_and_the_others_are_committed(team: Team, a: Clone, wire: Wire) -> None:
    a.write_all(files_of(21))
    wire.cut(Fault("put", PACKS, nth=2, error=lambda: AccessDenied("403")))

    report = a.push()

    failed = sorted(one.path for one in report.failed)
    assert (len(failed), report.pushed.files, report.exit_code) == (7, 14, 1)
    assert {one.code for one in report.failed} == {"access_denied"}
    assert entries_of(team.store()).keys() == a.files.keys() - set(failed)
    assert a.status().journal_paths == 7
    wire.cut()
    wire.seen.clear()
    assert a.push().pushed.files == 7
    assert len(wire.sent("put", PACKS)) == 1
    assert team.uploads() == sorted(a.files), "nothing was sent twice"
    assert fresh(team) == a.files


def test_a_version_that_two_packs_share_waits_for_both(team: Team, a: Clone, wire: Wire) -> None:
    """One pack is refused: what the other has of the version is not committed either."""
    big = {RAW: os.urandom(60_000), META: os.urandom(60_000), "files/other": os.urandom(60_000)}
    a.write_all(big)
    wire.cut(Fault("put", PACKS, nth=1, error=lambda: AccessDenied("403")))

    report = a.push()

    assert report.exit_code == 1
    assert not entries_of(team.store()).keys() & {RAW, META}
    assert "files/other" in entries_of(team.store())
    wire.cut()
    wire.seen.clear()
    assert a.push().pushed.files == 2
    assert len(wire.sent("put", PACKS)) == 1, "the half that arrived is there"
    assert {path: data for path, data in fresh(team).items() if path in big} == big


def test_a_pack_that_answers_503_throughout_fails_alone_if_the_store_is_up(team: Team, a: Clone, wire: Wire) -> None:
    a.write("files/only", "1")
    wire.cut(Fault("put", PACKS, error=lost_answer))

    report = a.push()

    assert [(one.path, one.code) for one in report.failed] == [("files/only", "store_unavailable")]
    assert len(wire.sent("put", PACKS)) == RetryPolicy().attempts
    assert wire.sent("head", HEAD), "the store was asked whether it is up"
    wire.cut()
    assert a.push().pushed.files == 1


def test_a_store_that_is_down_ends_a_push_after_a_few_packs_and_with_one_error(
    team: Team, a: Clone, wire: Wire
) -> None:
    """V12: not so many attempts for each of 40 packs."""
    a.write_all(files_of(280))
    wire.cut(Fault("put", PACKS, nth=3, times=100_000, error=lost_answer))

    with pytest.raises(Unavailable):
        a.push()

    attempts = len(wire.sent("put", PACKS))
    assert attempts <= 2 + 6 * RetryPolicy().attempts
    assert head_of(team.store()).head.seq == 2, "nothing was committed"
    wire.cut()
    before = team.packs()
    wire.seen.clear()
    assert a.push().pushed.files == 280
    assert len(wire.sent("put", PACKS)) <= 38, "the packs that arrived are not sent again"
    assert not {keys.parse_pack(key) for key in wire.sent("put", PACKS)} & before
    assert fresh(team) == a.files


@pytest.mark.parametrize("fault", [r"\.bayou/nodes/", HEAD], ids=["node", "head"])
def test_packs_are_not_sent_again_after_a_commit_that_failed(team: Team, a: Clone, wire: Wire, fault: str) -> None:
    a.write_all(files_of(21))
    wire.cut(Fault("put", fault, error=lambda: AccessDenied("403")))
    with pytest.raises(AccessDenied):
        a.push()
    wire.cut()
    wire.seen.clear()

    assert a.push().pushed.files == 21

    assert wire.sent("put", PACKS) == []
    assert fresh(team) == a.files


def test_v11_no_head_names_a_file_before_its_pack_has_arrived(
    team: Team, a: Clone, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes are written while packs are on their way; the swap waits for all of them, and here one is refused."""
    a.write_all(files_of(21))
    before, nodes, packs = entries_of(team.store()), threading.Event(), count()
    real = FaultyTransport.put

    def put(self: FaultyTransport, key: str, data: bytes, **rest: Any) -> Any:
        if "/packs/" in key and next(packs) == 0:
            assert nodes.wait(60), "the nodes are not written while a pack is on its way"
            raise AccessDenied("403")
        stored = real(self, key, data, **rest)
        if "/nodes/" in key:
            nodes.set()
        return stored

    monkeypatch.setattr(FaultyTransport, "put", put)
    report = a.push()

    failed = {one.path for one in report.failed}
    assert (len(failed), report.pushed.files, report.exit_code) == (7, 14, 1)
    assert entries_of(team.store()).keys() == before.keys() | a.files.keys() - failed
    monkeypatch.undo()
    assert fresh(team).keys() == a.files.keys() - failed


# ---- pulls ----


def test_a_missing_pack_is_missing_files_and_the_rest_arrives(team: Team, a: Clone) -> None:
    a.write_all(files_of(21))
    a.push()
    entries = entries_of(team.store())
    lost = entries["files/010"].pack
    gone = sorted(path for path, entry in entries.items() if entry.pack == lost)
    team.store().delete([entries["files/010"].key])
    b = team.clone("b")

    report = b.pull()

    assert (sorted(report.missing), report.failed, report.exit_code) == (gone, [], 1)
    assert b.files == {path: data for path, data in a.files.items() if path not in gone}
    assert not b.status().in_sync
    assert a.sync().pulled.deleted == 0, "P7: a missing pack deletes nothing"


@pytest.mark.parametrize("damage", ["a bit", "truncated", "garbage"])
def test_damage_in_a_pack_is_told_for_each_file_and_the_others_arrive(team: Team, a: Clone, damage: str) -> None:
    a.write_all(files_of(7))
    a.push()
    entry = entries_of(team.store())["files/004"]
    assert entry.offset is not None
    fetched = team.store().get(entry.key)
    assert fetched is not None
    data = bytearray(fetched.data)
    if damage == "a bit":
        data[entry.offset] ^= 1
        bad = {"files/004"}
    elif damage == "truncated":
        del data[entry.offset + 5 :]
        bad = {"files/004", "files/005", "files/006"}
    else:
        data[:] = os.urandom(len(data))
        bad = {f"files/{number:03}" for number in range(7)}
    team.store().put(entry.key, bytes(data))
    b = team.clone("b")

    report = b.pull()

    assert {one.path for one in report.failed} == bad
    assert (report.missing, report.exit_code) == ([], 1)
    assert b.files == {path: content for path, content in a.files.items() if path not in bad}
    team.store().put(entry.key, fetched.data)
    assert b.pull().exit_code == 0
    assert b.files == a.files


def test_a_pack_that_answers_503_fails_its_files_and_the_rest_arrives(team: Team, a: Clone, wire: Wire) -> None:
    a.write_all(files_of(21))
    a.push()
    pack = packs_of(team)["files/010"]
    b = team.clone("b")
    wire.cut(Fault("get", str(pack), error=lost_answer))

    report = b.pull()

    bad = {path for path, name in packs_of(team).items() if name == pack}
    assert ({one.path for one in report.failed}, report.exit_code) == (bad, 1)
    assert b.files.keys() == a.files.keys() - bad
    wire.cut()
    assert b.pull().pulled.files == len(bad)
    assert b.files == a.files


def test_a_full_disk_in_the_middle_of_a_pack_loses_nothing_and_leaves_nothing(
    team: Team, a: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    a.write_all(files_of(30))
    a.push()
    b = team.clone("b")
    write, room = os.write, [12]

    def full(descriptor: int, data: Any) -> int:
        if "incoming" in os.readlink(f"/proc/self/fd/{descriptor}"):
            room[0] -= 1
            if room[0] < 0:
                raise OSError(28, "No space left on device")
        return write(descriptor, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(Exception, match="cannot store a download"):
            b.pull()
    staging = b.repo.state / "incoming"
    assert not staging.exists() or not os.listdir(staging)
    assert b.files.items() <= a.files.items()
    assert b.pull().exit_code == 0
    assert b.files == a.files


def test_a_full_disk_that_cannot_take_the_record_of_a_pack_ends_a_push_and_loses_nothing(
    team: Team, a: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    a.write_all(files_of(300, size=200))
    before, real = entries_of(team.store()), push._record

    def full(database: Database, *given: Any) -> None:
        ((pages,),) = database.rows("PRAGMA page_count")
        database.rows(f"PRAGMA max_page_count = {pages}")  # to SQLite, a full disk
        real(database, *given)

    with monkeypatch.context() as patch:
        patch.setattr(push, "_record", full)
        with pytest.raises(StateError, match="full"):
            a.push()
    assert entries_of(team.store()) == before

    assert a.push().exit_code == 0
    assert fresh(team) == a.files


def test_p7_a_pull_that_finds_its_packs_gone_reads_the_head_again(
    team: Team, a: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K17: the pull has read the head; a compaction moves the files, and a collection takes the old packs."""
    a.write_all(files_of(10))
    a.push()
    b = team.clone("b")
    meanwhile(monkeypatch, executor_module, "fetch_all", lambda: drop_packs(team.store(), move(team.store()).values()))

    report = b.sync()

    assert (report.pulled.files, report.missing, report.failed, report.exit_code) == (11, [], [], 0)
    assert b.files == a.files
    assert b.sync().requests.total == 1


@pytest.mark.parametrize("then", ["deleted", "changed"])
def test_p7_what_a_peer_has_deleted_or_replaced_meanwhile_is_taken_as_it_is_now(
    team: Team, a: Clone, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    a.write("files/x", "1")
    a.push()
    old = entries_of(team.store())["files/x"]
    b = team.clone("b")

    def act() -> None:
        a.delete("files/x") if then == "deleted" else a.write("files/x", "2")
        a.push()
        drop_packs(team.store(), [old])

    meanwhile(monkeypatch, executor_module, "fetch_all", act)
    report = b.sync()

    assert (report.missing, report.exit_code) == ([], 0)
    assert b.files == a.files


def test_p7_a_lazy_read_through_an_old_pack_finds_the_file_where_it_is_now(team: Team, a: Clone) -> None:
    """K16: the lazy tree knows the old pack, and its head is the store's no longer."""
    a.write_all({RAW: b"raw", META: b"meta"})
    a.push()
    lazy = team.clone("lazy", hydrate="lazy")
    lazy.sync()
    drop_packs(team.store(), move(team.store()).values())

    assert api.hydrate(lazy.repo, RAW).files == 1

    assert lazy.files[RAW] == b"raw"
    assert lazy.sync().exit_code == 0
    assert (lazy.status().in_sync, lazy.sync().requests.total) == (True, 1)


def test_p7_a_lazy_read_of_what_was_changed_meanwhile_says_so(team: Team, a: Clone) -> None:
    a.write_all({RAW: b"raw", META: b"meta"})
    a.push()
    old = entries_of(team.store())[RAW]
    lazy = team.clone("lazy", hydrate="lazy")
    lazy.sync()
    a.write_all({RAW: b"raw 2", META: b"meta 2"})
    a.push()
    drop_packs(team.store(), [old])

    with pytest.raises(SyncError, match="changed or deleted in the store since"):
        api.hydrate(lazy.repo, RAW)

    assert RAW not in lazy.files
    lazy.sync()
    assert api.hydrate(lazy.repo, RAW).files == 1
    assert lazy.files[RAW] == b"raw 2"


# ---- P5: the same bytes ----


@pytest.fixture
def remade(team: Team, a: Clone) -> tuple[Clone, Clone]:
    """A, which has deleted a file and made the same bytes again, and B, which knows the first ones."""
    a.write("files/x", "the same")
    a.push()
    b = team.clone("b")
    b.sync()
    a.delete("files/x")
    a.push()
    a.write("files/x", "the same")
    a.push()
    return a, b


def test_p5_a_pending_delete_does_not_remove_what_was_made_again(team: Team, remade: tuple[Clone, Clone]) -> None:
    """K8."""
    a, b = remade
    b.delete("files/x")

    report = b.sync()

    assert (report.pushed.deleted, report.exit_code) == (0, 0)
    assert any("files/x was deleted here and changed in the store" in warning for warning in report.warnings)
    assert b.files == a.files
    assert a.sync().pulled.deleted == 0
    assert "files/x" in fresh(team)


def test_p5_an_edit_over_what_was_made_again_is_a_conflict(remade: tuple[Clone, Clone]) -> None:
    _, b = remade
    b.write("files/x", "edited")

    report = b.sync()

    assert ([(one.path, one.kept) for one in report.conflicts], report.exit_code) == ([("files/x", "remote")], 3)
    assert b.files["files/x"] == b"the same"
    assert Path(report.conflicts[0].copy or "").read_text() == "edited"


def test_p5_who_has_the_bytes_downloads_nothing_and_is_in_sync(
    team: Team, remade: tuple[Clone, Clone], wire: Wire
) -> None:
    _, b = remade
    wire.seen.clear()

    report = b.sync()

    assert (report.pulled.files, report.conflicts, report.exit_code) == (0, [], 0)
    assert wire.sent("get", PACKS) == []
    assert (b.status().in_sync, b.sync().requests.total) == (True, 1)


def test_p5_files_that_only_moved_are_no_change_here(team: Team, a: Clone, wire: Wire) -> None:
    """K9."""
    a.write_all(files_of(10))
    a.push()
    b = team.clone("b")
    b.sync()
    drop_packs(team.store(), move(team.store()).values())
    wire.seen.clear()
    for clone in (a, b):
        report = clone.sync()
        assert (report.pulled.files, report.pushed.files, report.exit_code) == (0, 0, 0)
        assert (clone.status().in_sync, clone.sync().requests.total) == (True, 1)
    assert wire.sent("get", PACKS) == []


@pytest.mark.parametrize("change", ["edit", "delete"])
def test_p5_a_change_of_ours_to_a_file_that_only_moved_is_pushed(team: Team, a: Clone, change: str) -> None:
    """K7: no conflict with a compaction, also with one that comes between plan and commit."""
    a.write_all({"files/x": b"1", "files/y": b"2"})
    a.push()
    a.write("files/x", "changed") if change == "edit" else a.delete("files/x")
    move(team.store())

    report = a.sync()

    assert (report.conflicts, report.exit_code) == ([], 0)
    assert (report.pushed.files, report.pushed.deleted) == ((1, 0) if change == "edit" else (0, 1))
    assert fresh(team) == a.files


@pytest.mark.parametrize("change", ["edit", "delete", "version"])
def test_p5_a_compaction_between_plan_and_commit_is_no_reason_to_plan_again(
    team: Team, a: Clone, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    a.write_all({"files/x": b"1", RAW: b"raw", META: b"meta"})
    a.push()
    if change == "edit":
        a.write("files/x", "changed")
    elif change == "delete":
        a.delete("files/x")
    else:
        a.write(META, "meta 2")
    meanwhile(monkeypatch, commit, "_swap", lambda: move(team.store()))
    monkeypatch.setattr("bayou.sync.run.PASSES", 1)

    report = a.push()

    assert (report.conflicts, report.warnings, report.exit_code) == ([], [], 0)
    assert report.pushed.files + report.pushed.deleted == 1
    assert fresh(team) == a.files


# ---- P6: collections ----


def test_p6_after_a_collection_each_pack_is_looked_at_once(
    team: Team, a: Clone, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The packs are younger than what the collection takes: they stay, and nothing is sent again."""
    b = team.clone("b")
    b.sync()
    a.write_all(files_of(21))
    wire.seen.clear()

    def collect_early() -> None:
        api.collect(b.repo, dry_run=False, grace_s=3600)
        wire.seen.clear()

    meanwhile(monkeypatch, commit, "_swap", collect_early)
    assert a.push().pushed.files == 21

    assert sorted(wire.sent("head", PACKS)) == sorted(
        {entry.key for path, entry in entries_of(team.store()).items() if path != "files/first"}
    )
    assert len(wire.sent("head", PACKS)) == 3
    assert wire.sent("put", PACKS) == []
    assert fresh(team) == a.files


def test_p6_what_a_collection_took_is_made_again_under_another_key(
    team: Team, a: Clone, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K11."""
    b = team.clone("b")
    b.sync()
    a.write_all(files_of(10))
    taken: set[str] = set()

    def collect() -> None:
        before = team.packs()
        api.collect(b.repo, dry_run=False, grace_s=0)
        taken.update(before - team.packs())

    meanwhile(monkeypatch, commit, "_swap", collect)
    assert a.push().pushed.files == 10

    assert len(taken) == 2
    assert not taken & set(packs_of(team).values())
    assert fresh(team) == a.files


def test_p6_a_pack_that_more_than_one_request_has_written_is_made_again(
    team: Team, a: Clone, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K13: it looks young, and a DELETE that was meant for the first PUT may still come."""
    b = team.clone("b")
    b.sync()
    a.write_all({"files/x": b"1", "files/y": b"2"})
    wire.cut(Fault("put", PACKS, nth=1, when="after", error=lost_answer))
    suspects: set[str] = set()

    def collect_early() -> None:
        suspects.update(team.packs() - set(packs_of(team).values()))
        api.collect(b.repo, dry_run=False, grace_s=3600)

    meanwhile(monkeypatch, commit, "_swap", collect_early)
    assert a.push().pushed.files == 2

    assert len(suspects) == 1
    assert not suspects & set(packs_of(team).values())
    team.store().delete([keys.pack(name) for name in suspects])
    assert fresh(team) == a.files


def test_p6_a_pack_of_an_earlier_run_is_not_taken_after_a_collection(team: Team, a: Clone, wire: Wire) -> None:
    """A killed push recorded its packs; a collection announced itself since: the next push makes them again."""
    b = team.clone("b")
    b.sync()
    a.write("files/x", "1")
    wire.cut(Fault("put", HEAD, nth=1, error=crash))
    killed(a.push)
    wire.cut()
    (old,) = team.packs() - set(packs_of(team).values())
    api.collect(b.repo, dry_run=False, grace_s=3600)

    assert a.push().pushed.files == 1

    team.store().delete([keys.pack(old)])
    assert fresh(team) == a.files


def test_a_pack_writer_is_closed_whatever_happens(
    team: Team, a: Clone, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V14."""
    closed: list[bool] = []
    close = PackWriter.close

    def closing(self: PackWriter) -> None:
        close(self)
        closed.append(True)

    monkeypatch.setattr(PackWriter, "close", closing)
    a.write_all(files_of(10))
    wire.cut(Fault("put", r"\.bayou/nodes/", error=lambda: AccessDenied("403")))
    with pytest.raises(AccessDenied):
        a.push()
    wire.cut()
    a.push()
    assert len(closed) == 2
