"""Replicas of packs: what travels together, what is read once, and what is copied again."""

from __future__ import annotations

import os
import re
import shutil
import tracemalloc
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import bayou.objectstore.open as store_open
from bayou.core.errors import AccessDenied
from bayou.core.ids import ulid
from bayou.maintenance.replica import transfer
from bayou.objectstore import Store, keys, open_store
from bayou.objectstore.backends.directory import LocalTransport
from bayou.packs.read import read_one
from bayou.repo import open_repo
from bayou.sync.report import ReplicateReport
from bayou_testing.faulty import Crash, Fault, FaultyTransport, Seen, crash, lost_answer
from tests import api
from tests.maintenance.replicas import FILES, Scene, compact, damage, listed, payload
from tests.sync.conftest import Clone, Team, Wire
from tests.sync.indexes import commit_rows, content_of, entries_of, head_of

PACKS = re.escape(f"{keys.PACKS}/")
LARGE = 300 << 10


def packs_of(store: Store) -> set[str]:
    return {entry.pack for entry in entries_of(store).values() if entry.pack is not None}


def small_files(count: int, size: int = 5000) -> dict[str, bytes]:
    return {f"files/many/{number:05}": os.urandom(size) for number in range(count)}


def test_a_thousand_small_files_take_a_few_requests(s3_team: Team, proxy: Any):
    alice = s3_team.clone("alice")
    files = small_files(1000)
    alice.write_all(files)
    alice.push()
    url = f"s3://sync-tests/{ulid()}"
    api.replicate(alice.repo, url, options=s3_team.options)  # as any later run: the head is there
    again = small_files(1000)
    alice.write_all(again)
    alice.push()
    proxy.log.clear()

    report = api.replicate(alice.repo, url, options=s3_team.options)

    assert (report.copied, report.bytes) == (1000, 5_000_000)
    assert len(proxy.log.rows(method="PUT", path=keys.PACKS)) == 1
    assert len(proxy.log.rows(method="GET", path=keys.PACKS)) == 1
    assert proxy.log.count() <= 30
    assert content_of(open_store(url, options=s3_team.options)) == again


def test_each_pack_of_the_source_is_read_once(scene: Scene, wire: Wire):
    for _ in range(5):  # five packs, whose files lie beside each other in the order of paths
        scene.push({f"files/many/{ulid()}": os.urandom(3000) for _ in range(20)})
    packs = packs_of(scene.team.store())
    wire.seen.clear()

    assert scene.replicate().copied == 112

    read = wire.sent("get", PACKS)
    assert sorted(read) == sorted(keys.pack(pack) for pack in packs)
    assert len(packs) == 6
    assert content_of(scene.store) == scene.alice.files
    assert len(packs_of(scene.store)) == 1


def test_a_fresh_repo_pulls_a_replica_of_packs(scene: Scene):
    scene.push({"files/large": os.urandom(LARGE), "files/empty": b""})
    scene.replicate()

    bob = scene.replica.clone("bob")

    assert bob.sync().pulled.files == 14
    assert bob.files == scene.alice.files


def test_small_objects_of_the_source_travel_in_packs_and_large_ones_alone(scene: Scene, monkeypatch):
    monkeypatch.setenv("BAYOU_PACK_BELOW", "0")
    loose = Clone(open_repo(scene.alice.repo.root))
    loose.write_all({"files/loose": b"loose", "files/large": os.urandom(LARGE)})
    loose.push()
    monkeypatch.delenv("BAYOU_PACK_BELOW")
    assert entries_of(scene.team.store())["files/loose"].pack is None

    scene.replicate()

    there = entries_of(scene.store)
    assert there["files/loose"].pack is not None
    assert there["files/large"].pack is None
    assert {entry.pack for path, entry in there.items() if path != "files/large"} == packs_of(scene.store)
    assert content_of(scene.store) == loose.files


def test_discovered_objects_go_into_packs_with_their_hashes(scene: Scene):
    (scene.team.root / "found" / "files").mkdir(parents=True)
    (scene.team.root / "found" / "files" / "old").write_bytes(b"was there before")
    carol = Team(scene.team.root, (scene.team.root / "found").as_uri(), {}).clone("carol")
    carol.push()

    assert api.replicate(carol.repo, scene.url).copied == 1

    there = entries_of(scene.store)["files/old"]
    assert there.pack is not None
    assert read_one(scene.store, there) == b"was there before"
    assert there.refusal() is None


def test_with_packs_turned_off_each_file_has_an_object_and_a_pack_is_still_read_once(
    scene: Scene, wire: Wire, monkeypatch
):
    monkeypatch.setenv("BAYOU_PACK_BELOW", "0")
    wire.seen.clear()

    assert api.replicate(open_repo(scene.alice.repo.root), scene.url).copied == 12

    assert len(wire.sent("get", PACKS)) == 1
    assert wire.sent("put", PACKS) == []
    assert len(payload(scene.store)) == 12
    assert content_of(scene.store) == FILES


def test_a_run_with_packs_turned_off_finds_what_a_killed_one_has_copied(scene: Scene, wire: Wire, monkeypatch):
    monkeypatch.setenv("BAYOU_PACK_BELOW", "0")
    repo = open_repo(scene.alice.repo.root)
    wire.cut(Fault("put", "nodes/", nth=1, error=crash))
    with pytest.raises(Crash):
        api.replicate(repo, scene.url)
    wire.cut()
    wire.seen.clear()

    assert api.replicate(repo, scene.url).copied == 0

    assert wire.sent("get", PACKS) == []
    assert content_of(scene.store) == FILES


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("collected", [False, True])
def test_a_compaction_of_either_side_copies_nothing(scene: Scene, wire: Wire, side: str, collected: bool):
    scene.push({"files/large": os.urandom(LARGE)})
    scene.replicate()
    team = scene.team if side == "source" else scene.replica
    compact(team.store())
    if collected:  # the nodes that the last replication knew are gone
        api.collect(team.clone("collector").repo, dry_run=False, grace_s=0)
    before = packs_of(scene.store)
    wire.seen.clear()

    report = scene.replicate()

    assert (report.copied, report.bytes, report.deleted, report.skipped) == (0, 0, 0, 13)
    assert wire.sent("get", PACKS) == []
    assert wire.sent("put", PACKS) == []
    assert packs_of(scene.store) == before
    assert content_of(scene.store) == scene.alice.files
    assert scene.replicate().copied == 0


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_real_compaction_and_a_collection_copy_nothing(scene: Scene, wire: Wire, side: str):
    for number in range(4):
        scene.push({f"files/more/{number}": b"%d" % number})
        scene.replicate()
    team = scene.team if side == "source" else scene.replica
    keeper = team.clone("keeper")
    before = packs_of(team.store())
    assert api.compact(keeper.repo, dry_run=False).packs_after == 1
    assert not packs_of(team.store()) & before
    api.collect(keeper.repo, dry_run=False, grace_s=0)
    wire.seen.clear()

    report = scene.replicate()

    assert (report.copied, report.bytes, report.deleted, report.skipped) == (0, 0, 0, 16)
    assert wire.sent("put", PACKS) == wire.sent("get", PACKS) == []
    assert content_of(scene.store) == scene.alice.files
    assert api.verify(scene.replica.clone("bob").repo, deep=True, repair=False).ok


def test_what_is_new_is_copied_after_compactions_of_both_sides(scene: Scene):
    scene.replicate()
    compact(scene.team.store())
    compact(scene.store)
    scene.push({"files/new": b"new", "files/1.txt": b"changed"})
    scene.alice.delete("files/2.txt")
    scene.alice.push()

    report = scene.replicate()

    assert (report.copied, report.deleted) == (2, 1)
    assert content_of(scene.store) == scene.alice.files


def test_a_push_to_a_compacted_replica_is_still_noticed(scene: Scene):
    scene.replicate()
    compact(scene.store)
    head = head_of(scene.store).head
    assert head.replica is not None
    assert head.replica.into == head.root

    bob = scene.replica.clone("bob")
    bob.sync()
    bob.write("files/bobs", b"bob's")
    bob.push()
    compact(scene.store)

    head = head_of(scene.store).head
    assert head.replica is not None
    assert head.replica.into != head.root  # bob's file is not taken for a copy


def test_a_bad_member_is_named_and_the_rest_is_copied(scene: Scene):
    version = {"data/t/m/n/1/raw": b"raw", "data/t/m/n/1/metadata.yaml": b"metadata"}
    scene.push(version)
    entries = entries_of(scene.team.store())
    damage(scene.team, entries["files/1.txt"])
    damage(scene.team, entries["data/t/m/n/1/raw"])

    report = scene.replicate()

    assert [one.path for one in report.failed] == ["data/t/m/n/1/raw", "files/1.txt"]
    assert all("does not have the bytes" in one.message for one in report.failed)
    # A version arrives whole or not at all.
    assert content_of(scene.store).keys() == FILES.keys() - {"files/1.txt"}
    scene.push({"files/1.txt": b"mended", **{path: b"again " + data for path, data in version.items()}})
    assert scene.replicate().failures == 0
    assert content_of(scene.store) == scene.alice.files


@pytest.mark.parametrize("left", [None, 0, 9])
def test_a_pack_that_is_gone_or_cut_fails_its_files_and_no_others(scene: Scene, left: int | None):
    scene.push({f"files/more/{number}": b"%d" % number for number in range(5)})
    lost = entries_of(scene.team.store())["files/more/1"]
    file = scene.team.root / "store" / lost.key
    if left is None:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:left])

    report = scene.replicate()

    assert [one.path for one in report.failed] == [f"files/more/{number}" for number in range(5)]
    assert content_of(scene.store) == FILES


def test_a_row_that_claims_too_much_is_refused_and_the_rest_is_copied(scene: Scene):
    """An entry of a hostile source: its bytes would lie outside of its pack."""
    entries = entries_of(scene.team.store())
    bad = replace(entries["files/1.txt"], offset=1 << 40)
    commit_rows(scene.team.store(), {bad.path: bad})

    report = scene.replicate()

    assert [(one.path, one.code) for one in report.failed] == [("files/1.txt", "path_refused")]
    assert content_of(scene.store).keys() == FILES.keys() - {"files/1.txt"}


@dataclass
class Wires:
    """The way to each of several directory stores: the requests that were sent to it, and its faults."""

    faults: dict[str, list[Fault]] = field(default_factory=lambda: defaultdict(list))
    seen: dict[str, list[Seen]] = field(default_factory=lambda: defaultdict(list))


@pytest.fixture
def wires(monkeypatch: pytest.MonkeyPatch) -> Wires:
    made = Wires()

    def opened(place: Any, _: object) -> FaultyTransport:
        name = Path(place.bucket).name
        return FaultyTransport(LocalTransport(Path(place.bucket)), made.faults[name], made.seen[name])

    monkeypatch.setitem(store_open.BUILT_IN, "file", opened)
    return made


@pytest.mark.usefixtures("quick_probe")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("side", ["store", "replica"])
def test_killed_at_any_request_a_plain_retry_completes(scene: Scene, wires: Wires, side: str, when: Any):
    scene.push({"files/large": os.urandom(LARGE)})
    files = scene.alice.files
    folder = scene.team.root / "replica"
    wires.seen.clear()
    scene.replicate()
    requests = list(wires.seen[side])
    assert any(one.verb == ("get" if side == "store" else "put") and keys.PACKS in one.key for one in requests)

    for number, request in enumerate(requests, 1):
        shutil.rmtree(folder)
        folder.mkdir()
        wires.faults[side][:] = [Fault(nth=number, when=when, error=crash)]
        try:
            scene.replicate()
        except Crash:
            pass
        else:  # nothing comes after a request that finds nothing, or that the store refuses as it should
            assert when == "after"
            assert request.verb in ("get", "list") or keys.is_probe(request.key)
        wires.faults[side].clear()

        scene.replicate()

        assert content_of(scene.store) == files, f"killed {when} request {number}, {request}"
        assert head_of(scene.store).head.seq <= 3  # the first head, and one commit or two
    # A marker that a run left after its commit goes with the next run that copies.
    scene.push({"files/new": b"new"})
    assert scene.replicate().copied == 1
    assert keys.REPLICATING not in listed(scene.store)


def test_a_target_that_refuses_a_pack_is_an_error_and_a_retry_completes(scene: Scene, wire: Wire):
    wire.cut(Fault("put", PACKS, nth=1, error=lambda: AccessDenied("no more writes here")))
    with pytest.raises(AccessDenied):
        scene.replicate()
    wire.cut()
    assert entries_of(scene.store) == {}

    assert scene.replicate().copied == 12
    assert content_of(scene.store) == FILES


def test_a_pack_is_never_taken_up_again(scene: Scene, wire: Wire):
    """P1: after a crash the files go into another pack, also where the first one has arrived."""
    wire.cut(Fault("put", "nodes/", nth=1, error=crash))
    with pytest.raises(Crash):
        scene.replicate()
    wire.cut()
    left = payload(scene.store)
    assert len(left) == 1

    assert scene.replicate().copied == 12

    assert not {keys.pack(pack) for pack in packs_of(scene.store)} & set(left)


def test_two_that_replicate_at_once_both_end_well(scene: Scene):
    results = scene.replicate_at_once(3)

    assert [one.failures for one in results if isinstance(one, ReplicateReport)] == [0, 0, 0], results
    assert content_of(scene.store) == FILES
    assert len(packs_of(scene.store)) == 1


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], list[Any]]:
    """Let something happen after a run has copied, and before it swaps the head, once; return the runs' results."""

    def arrange(act: Callable[[], object]) -> list[Any]:
        real = transfer.replicate
        ran: list[Any] = []

        def meanwhile(*args: Any, **kwargs: Any) -> Any:
            ran.append(real(*args, **kwargs))
            if len(ran) == 1:
                act()
            return ran[-1]

        monkeypatch.setattr(transfer, "replicate", meanwhile)
        return ran

    return arrange


Between = Callable[[Callable[[], object]], list[Any]]


def collection(scene: Scene, grace_s: float) -> Callable[[], object]:
    bob = scene.replica.clone("collector")
    return lambda: api.collect(bob.repo, dry_run=False, grace_s=grace_s)


def test_a_collection_in_the_middle_costs_one_request_for_each_young_pack(scene: Scene, wire: Wire, between: Between):
    scene.replicate()
    scene.push({f"files/new/{number}": b"%d" % number for number in range(20)})
    ran = between(collection(scene, 86400))
    wire.seen.clear()

    report = scene.replicate()

    assert (len(ran), report.copied, report.failures) == (2, 20, 0)
    assert len(wire.sent("put", PACKS)) == 1
    assert wire.sent("head", PACKS) == wire.sent("put", PACKS)
    assert head_of(scene.store).head.gc.count == 1
    assert content_of(scene.store) == scene.alice.files


def test_a_pack_that_a_collection_may_delete_is_made_again_under_another_name(
    scene: Scene, wire: Wire, between: Between
):
    scene.replicate()
    scene.push({"files/new": b"new"})
    ran = between(collection(scene, 0))
    wire.seen.clear()

    scene.replicate()

    first, second = wire.sent("put", PACKS)
    assert len(ran) == 2
    assert entries_of(scene.store)["files/new"].key == second != first
    assert content_of(scene.store) == scene.alice.files


def test_a_pack_that_two_requests_wrote_is_made_again_after_a_collection(scene: Scene, wire: Wire, between: Between):
    """K13: the collection may have listed the first of them, and its DELETE may be on its way."""
    scene.replicate()
    scene.push({"files/new": b"new"})
    between(collection(scene, 86400))
    wire.seen.clear()
    wire.cut(Fault("put", PACKS, nth=1, when="after", error=lost_answer))

    scene.replicate()

    wire.cut()
    first, repeated, second = wire.sent("put", PACKS)
    assert first == repeated
    assert entries_of(scene.store)["files/new"].key == second != first
    assert content_of(scene.store) == scene.alice.files


def test_a_lost_swap_costs_no_second_copy(scene: Scene, wire: Wire, between: Between):
    scene.replicate()
    scene.push({"files/new": b"new"})
    compacted: list[str] = []
    between(lambda: compacted.append(compact(scene.store)))
    wire.seen.clear()

    report = scene.replicate()

    assert report.copied == 1
    assert [key for key in wire.sent("put", PACKS) if keys.parse_pack(key) not in compacted] == [
        entries_of(scene.store)["files/new"].key
    ]
    assert wire.sent("head", PACKS) == []
    assert content_of(scene.store) == scene.alice.files


def test_packs_that_the_source_compacted_away_in_the_middle_are_read_where_they_are_now(scene: Scene, monkeypatch):
    """P7: the head that the run began with names packs that are gone."""
    real = transfer.replicate
    old = payload(scene.team.store())
    ran: list[Any] = []

    def late(*args: Any, **kwargs: Any) -> Any:
        if not ran:
            compact(scene.team.store())
            scene.team.store().delete([keys.as_listed(key) for key in old])
        ran.append(real(*args, **kwargs))
        return ran[-1]

    monkeypatch.setattr(transfer, "replicate", late)

    report = scene.replicate()

    assert [made.failures for made in ran] == [12, 0]
    assert (report.copied, report.failures, report.failed) == (12, 0, [])
    assert content_of(scene.store) == FILES


def test_a_damaged_source_that_goes_on_changing_is_reported_and_not_tried_for_ever(scene: Scene, between: Between):
    scene.push({"files/lost": b"lost"})
    scene.team.store().delete([entries_of(scene.team.store())["files/lost"].key])
    ran = between(lambda: scene.push({"files/other": b"other"}))

    report = scene.replicate()

    assert len(ran) == 1
    assert [one.path for one in report.failed] == ["files/lost"]
    assert content_of(scene.store) == FILES


def test_files_that_expand_take_memory_one_at_a_time(scene: Scene):
    files = {f"files/zeros/{number:03}": bytes(200_000 + number) for number in range(400)}
    scene.push(files)
    tracemalloc.start()
    try:
        report = scene.replicate()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert report.bytes > 80_000_000
    assert peak < 24_000_000
    assert len(packs_of(scene.store)) == 1
