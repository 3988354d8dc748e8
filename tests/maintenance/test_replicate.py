"""One store as a copy of another: what arrives, what is skipped, what is never written over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec.structs
import pytest
from msgspec.structs import replace

from bayou.core.errors import AccessDenied, MassDelete, NotFound, ReplicaRefused, UsageError
from bayou.core.ids import ulid
from bayou.index.entry import Entry
from bayou.index.head import encode_head, parse_head, read_head
from bayou.maintenance.replica import transfer
from bayou.maintenance.replica.pairs import Pair, copy_push, is_copy
from bayou.objectstore import keys, open_store
from bayou.objectstore.multipart import THRESHOLD
from bayou.sync.report import ReplicateReport
from bayou_testing.faulty import Crash, Fault, crash, lost_answer
from tests import api
from tests.maintenance.replicas import FILES, Scene, listed, payload
from tests.sync.conftest import Team, Wire
from tests.sync.indexes import content_of, entries_of, head_of

SOURCE = Path(api.__file__).resolve().parents[2]

loose = pytest.mark.usefixtures("loose_objects")


def test_a_replica_has_every_entry_and_its_bytes_under_keys_of_its_own(scene: Scene):
    report = scene.replicate()

    assert (report.copied, report.skipped, report.bytes) == (12, 0, sum(map(len, FILES.values())))
    assert content_of(scene.store) == FILES
    source, replica = entries_of(scene.team.store()), entries_of(scene.store)
    same = [(e.path, e.size, e.sha256, e.modified) for e in source.values()]
    assert [(e.path, e.size, e.sha256, e.modified) for e in replica.values()] == same
    assert all(replica[path].push != source[path].push for path in FILES)
    assert not set(payload(scene.store)) & set(payload(scene.team.store()))
    assert head_of(scene.store).head.store != head_of(scene.team.store()).head.store
    assert keys.REPLICATING not in listed(scene.store)


def test_a_fresh_repo_hydrates_from_a_replica_and_finds_it_well(scene: Scene):
    scene.replicate()

    bob = scene.replica.clone("bob")
    assert bob.sync().pulled.files == 12
    assert bob.files == FILES
    verified = api.verify(bob.repo, deep=True, repair=False)
    assert verified.ok
    assert (verified.checked, verified.unindexed, verified.leftovers) == (12, [], 0)


def test_a_second_run_looks_at_each_head_and_at_nothing_else(scene: Scene, wire: Wire):
    scene.replicate()
    wire.seen.clear()

    report = scene.replicate()

    assert (report.copied, report.skipped, report.bytes) == (0, 12, 0)
    assert [(one.verb, one.key) for one in wire.seen] == [("get", keys.HEAD)] * 2


def test_only_what_is_new_is_copied_and_what_is_gone_leaves_as_a_recorded_change(scene: Scene, wire: Wire):
    scene.replicate()
    scene.push({"files/1.txt": b"changed", "files/new.txt": b"new"})
    scene.alice.delete("files/2.txt")
    scene.alice.push()
    wire.seen.clear()

    report = scene.replicate()

    assert (report.copied, report.skipped, report.deleted, report.bytes) == (2, 10, 1, 10)
    assert len(wire.sent("put", keys.PACKS)) == 1  # both files are in one pack
    assert content_of(scene.store) == scene.alice.files
    row = head_of(scene.store).head.log[-1]
    assert (row.added, row.changed, row.deleted) == (1, 1, 1)


def test_the_same_content_pushed_again_is_recorded_and_not_copied(scene: Scene):
    scene.replicate()
    scene.alice.delete("files/3.txt")
    scene.alice.push()
    scene.push({"files/3.txt": FILES["files/3.txt"]})
    before = payload(scene.store)

    assert scene.replicate().copied == 0
    assert payload(scene.store) == before
    assert entries_of(scene.store)["files/3.txt"].modified == entries_of(scene.team.store())["files/3.txt"].modified


def test_a_dry_run_says_what_would_be_and_writes_nothing(scene: Scene):
    report = scene.replicate(dry_run=True)

    assert (report.copied, report.skipped) == (12, 0)
    assert scene.replica.keys() == {}
    scene.replicate()
    scene.push({"files/new.txt": b"new"})
    before = scene.replica.keys()
    again = scene.replicate(dry_run=True)
    assert (again.copied, again.skipped, again.bytes) == (1, 12, 3)
    assert scene.replica.keys() == before


def test_nothing_of_the_tree_or_its_state_is_touched(scene: Scene):
    def state() -> dict[str, tuple[int, int]]:
        root = scene.alice.repo.root
        return {str(f): (f.stat().st_mtime_ns, f.stat().st_size) for f in root.rglob("*") if f.is_file()}

    before, source = state(), scene.team.keys()
    scene.replicate()
    assert (state(), scene.team.keys()) == (before, source)


def test_discovered_objects_are_hashed_on_the_way_and_not_copied_twice(scene: Scene, wire: Wire):
    (scene.team.root / "found" / "files").mkdir(parents=True)
    (scene.team.root / "found" / "files" / "old").write_bytes(b"was there before")
    found = Team(scene.team.root, (scene.team.root / "found").as_uri(), {})
    carol = found.clone("carol")
    carol.push()
    assert entries_of(found.store())["files/old"].sha256 is None

    assert api.replicate(carol.repo, scene.url).copied == 1
    there = entries_of(scene.store)["files/old"]
    assert there.push is not None
    assert there.sha256 is not None
    carol.write("files/new", b"new")
    carol.push()
    report = api.replicate(carol.repo, scene.url)
    assert (report.copied, report.skipped) == (1, 1)
    # And also when everything is compared, since nobody knows any more what was replicated.
    seen = read_head(scene.store)
    assert seen is not None
    assert seen.head.replica is not None
    forgotten = msgspec.structs.replace(
        seen.head, replica=msgspec.structs.replace(seen.head.replica, root=None, whole=False)
    )
    scene.store.put(keys.HEAD, encode_head(forgotten), condition=seen.match)
    assert api.replicate(carol.repo, scene.url).copied == 0


def test_a_large_object_is_copied_in_parts_and_under_its_hash(scene: Scene):
    large = bytes(range(256)) * ((THRESHOLD // 256) + 4096)
    scene.push({"files/large": large})

    assert scene.replicate().bytes == sum(map(len, FILES.values())) + len(large)
    assert content_of(scene.store)["files/large"] == large


def test_a_store_of_its_own_is_never_written_over(scene: Scene):
    other = Team(scene.team.root, scene.url, {}).clone("other")
    other.write("files/mine", b"mine")
    other.push()
    before = scene.replica.keys()

    with pytest.raises(ReplicaRefused, match="a datastore of its own"):
        scene.replicate()
    assert scene.replica.keys() == before


def test_payload_without_an_index_is_somebodys(scene: Scene):
    (scene.team.root / "replica" / "files").mkdir()
    (scene.team.root / "replica" / "files" / "theirs").write_bytes(b"theirs")

    with pytest.raises(ReplicaRefused, match="files/theirs"):
        scene.replicate()
    assert list(scene.replica.keys()) == ["files/theirs"]


def test_an_empty_datastore_becomes_a_replica(scene: Scene):
    scene.replica.clone("bob").push()

    assert scene.replicate().copied == 12


def test_a_replica_of_another_store_is_refused(scene: Scene):
    scene.replicate()
    (scene.team.root / "second").mkdir()
    other = Team(scene.team.root, (scene.team.root / "second").as_uri(), {}).clone("other")
    other.push()

    with pytest.raises(ReplicaRefused, match="replica of another store"):
        api.replicate(other.repo, scene.url)


def test_the_store_itself_is_no_replica_whatever_it_is_called(scene: Scene):
    with pytest.raises(UsageError, match="already"):
        api.replicate(scene.alice.repo, scene.team.url)
    link = scene.team.root / "link"
    link.symlink_to(scene.team.root / "store")
    with pytest.raises(ReplicaRefused, match="very store"):
        api.replicate(scene.alice.repo, link.as_uri())


def test_what_somebody_pushed_to_a_replica_is_never_dropped(scene: Scene):
    scene.replicate()
    bob = scene.replica.clone("bob")
    bob.sync()
    bob.write("files/bobs", b"bob's")
    bob.push()
    scene.push({"files/new": b"new"})

    with pytest.raises(ReplicaRefused, match="files/bobs"):
        scene.replicate()
    assert content_of(scene.store)["files/bobs"] == b"bob's"
    assert "files/new" not in entries_of(scene.store)


def test_what_somebody_deleted_in_a_replica_is_copied_again(scene: Scene):
    scene.replicate()
    bob = scene.replica.clone("bob")
    bob.sync()
    bob.delete("files/1.txt")
    bob.push()

    assert scene.replicate().copied == 1
    assert content_of(scene.store) == FILES


def test_a_push_to_the_replica_in_the_middle_is_noticed_by_the_swap(scene: Scene, wire: Wire, monkeypatch):
    scene.replicate()
    bob = scene.replica.clone("bob")
    bob.sync()
    bob.write("files/bobs", b"bob's")
    scene.push({"files/new": b"new"})

    real = transfer.replicate

    def meanwhile(*args: Any, **kwargs: Any) -> Any:
        made = real(*args, **kwargs)
        bob.push()
        return made

    monkeypatch.setattr(transfer, "replicate", meanwhile)
    with pytest.raises(ReplicaRefused, match="files/bobs"):
        scene.replicate()
    assert content_of(scene.store)["files/bobs"] == b"bob's"


@loose
def test_a_collection_in_the_middle_costs_a_second_copy_and_nothing_else(scene: Scene, monkeypatch):
    scene.replicate()
    scene.push({"files/new": b"new"})
    bob = scene.replica.clone("bob")

    real = transfer.replicate
    ran: list[Any] = []

    def meanwhile(*args: Any, **kwargs: Any) -> Any:
        made = real(*args, **kwargs)
        if not ran:
            ran.append(api.collect(bob.repo, dry_run=False, grace_s=0))
        return made

    monkeypatch.setattr(transfer, "replicate", meanwhile)
    scene.replicate()

    assert ran[0].leftovers_deleted == 1
    assert content_of(scene.store) == scene.alice.files
    # Under another key than the one that was collected: a DELETE of that may still be on its way.
    source, head = entries_of(scene.team.store())["files/new"], head_of(scene.store).head
    assert (head.gc.count, entries_of(scene.store)["files/new"].push) == (1, copy_push(source, head.store, 1))


def test_most_of_a_replica_is_not_deleted_unless_somebody_says_so(scene: Scene):
    many = {f"files/many/{number}": b"x" for number in range(250)}
    scene.push(many)
    scene.replicate()
    scene.alice.delete(*many)
    scene.alice.write("files/last", b"x")
    scene.alice.push(allow_mass_delete=True)
    # As if it had been deleted little by little: the source's log allows nothing.
    seen = read_head(scene.team.store())
    assert seen is not None
    log = tuple(msgspec.structs.replace(row, mass_delete=False) for row in seen.head.log)
    scene.team.store().put(keys.HEAD, encode_head(msgspec.structs.replace(seen.head, log=log)), condition=seen.match)

    with pytest.raises(MassDelete, match="250 of 262"):
        scene.replicate()
    with pytest.raises(MassDelete):
        scene.replicate(dry_run=True)
    assert len(entries_of(scene.store)) == 262
    assert scene.replicate(allow_mass_delete=True).deleted == 250
    assert head_of(scene.store).head.log[-1].mass_delete


def test_a_mass_delete_that_was_allowed_in_the_source_is_followed(scene: Scene):
    many = {f"files/many/{number}": b"x" for number in range(250)}
    scene.push(many)
    scene.replicate()
    scene.alice.delete(*many)
    scene.alice.push(allow_mass_delete=True)

    assert scene.replicate().deleted == 250


def test_a_source_that_came_back_from_a_backup_deletes_nothing(scene: Scene):
    old = scene.team.store().get(keys.HEAD)
    assert old is not None
    scene.push({"files/new": b"new"})
    scene.replicate()
    seen = read_head(scene.team.store())
    assert seen is not None
    scene.team.store().put(keys.HEAD, old.data, condition=seen.match)

    with pytest.raises(ReplicaRefused, match="an older copy"):
        scene.replicate()
    assert content_of(scene.store)["files/new"] == b"new"


def test_a_replica_follows_although_the_source_has_forgotten_what_it_was(scene: Scene):
    scene.replicate()
    scene.push({"files/1.txt": b"changed"})
    api.collect(scene.alice.repo, dry_run=False, grace_s=0)

    report = scene.replicate()

    assert (report.copied, report.skipped) == (1, 11)
    assert content_of(scene.store) == scene.alice.files


@loose
def test_what_the_source_has_lost_is_named_and_the_rest_is_copied(scene: Scene):
    version = {"data/t/m/n/1/raw": b"raw", "data/t/m/n/1/metadata.yaml": b"metadata"}
    scene.push(version)
    lost = entries_of(scene.team.store())["data/t/m/n/1/raw"]
    damaged = entries_of(scene.team.store())["files/1.txt"]
    scene.team.store().delete([lost.key])
    (scene.team.root / "store" / damaged.key).write_bytes(b"Content 1")

    report = scene.replicate()

    assert sorted(one.path for one in report.failed) == ["data/t/m/n/1/raw", "files/1.txt"]
    assert report.failures == 2
    row = head_of(scene.store).head.log[-1]
    assert (report.copied, report.skipped, row.added, row.changed, row.deleted) == (12, 0, 11, 0, 0)
    # A version arrives whole or not at all.
    assert content_of(scene.store).keys() == FILES.keys() - {"files/1.txt"}
    scene.push({"files/1.txt": b"mended", **{path: b"again " + data for path, data in version.items()}})
    report = scene.replicate()
    assert (report.failures, content_of(scene.store)) == (0, scene.alice.files)


def test_a_source_without_an_index_is_an_error_and_so_is_a_directory(scene: Scene, team: Team):
    empty = Team(team.root, (team.root / "nothing").as_uri(), {})
    (team.root / "nothing").mkdir()
    with pytest.raises(NotFound, match="nothing to replicate"):
        api.replicate(empty.clone("early").repo, scene.url)
    with pytest.raises(UsageError, match="URL"):
        api.replicate(scene.alice.repo, str(team.root / "x"))
    assert scene.replica.keys() == {}


@loose
@pytest.mark.parametrize("key", ["head", "nodes", "files/", "replicating"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_anywhere_a_plain_retry_completes(scene: Scene, wire: Wire, key: str, when: Any):
    wire.cut(Fault("put", key, nth=1, when=when, error=crash))
    with pytest.raises(Crash):
        scene.replicate()
    wire.cut()

    scene.replicate()

    assert content_of(scene.store) == FILES
    assert api.verify(scene.replica.clone("bob").repo, deep=True, repair=False).ok
    assert keys.REPLICATING not in listed(scene.store)


@loose
def test_what_was_copied_before_a_crash_is_not_copied_again(scene: Scene, wire: Wire):
    wire.cut(Fault("put", "nodes/", nth=1, error=crash))
    with pytest.raises(Crash):
        scene.replicate()
    wire.cut()
    wire.seen.clear()

    report = scene.replicate()

    assert (report.copied, report.skipped, report.bytes) == (0, 12, 0)
    assert wire.sent("put", r"files/") == []
    assert wire.sent("get", r"files/") == []


def test_a_swap_without_an_answer_is_looked_for_in_the_log(scene: Scene, wire: Wire):
    scene.replicate()
    scene.push({"files/new": b"new"})
    before = head_of(scene.store).head.seq
    wire.cut(Fault("put", "head", when="after", error=lost_answer))

    scene.replicate()

    wire.cut()
    assert content_of(scene.store) == scene.alice.files
    assert head_of(scene.store).head.seq == before + 1


@loose
def test_a_target_that_dies_in_the_middle_is_an_error_and_a_retry_completes(scene: Scene, wire: Wire):
    wire.cut(Fault("put", "files/", nth=5, error=lambda: AccessDenied("the server does not let anybody in any more")))
    with pytest.raises(AccessDenied):
        scene.replicate()
    wire.cut()
    assert entries_of(scene.store) == {}

    assert scene.replicate().copied <= 12
    assert content_of(scene.store) == FILES


@loose
def test_two_that_replicate_at_once_both_end_well(scene: Scene):
    results = scene.replicate_at_once(3)

    assert all(isinstance(one, ReplicateReport) for one in results), results
    assert content_of(scene.store) == FILES
    assert len(payload(scene.store)) == 12  # whoever copied, copied to the same keys
    assert api.verify(scene.replica.clone("bob").repo, deep=True, repair=False).ok


@loose
def test_a_process_that_is_killed_while_it_copies_leaves_a_store_that_the_next_completes(scene: Scene):
    many = {f"files/many/{number:04}": os.urandom(2000) for number in range(400)}
    scene.push(many)
    code = """
import os, sys, threading, time
from bayou.repo import open_repo
from bayou.maintenance.replicate import replicate
import bayou.maintenance.replica.copy as copies
real, done = copies.copy_object, []
def slow(*args):
    made = real(*args)
    done.append(1)
    if len(done) == 150:
        print("now", flush=True)
        time.sleep(600)
    return made
copies.copy_object = slow
replicate(open_repo(sys.argv[1]), sys.argv[2])
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(scene.alice.repo.root), scene.url],
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "now\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    before = len(payload(scene.store))
    assert 100 < before < 412
    assert entries_of(scene.store) == {}

    report = scene.replicate()

    assert report.copied == 412 - before
    assert content_of(scene.store) == FILES | many


def test_a_bayou_that_knows_no_replicas_reads_the_head_and_carries_the_word_along(scene: Scene):
    scene.replicate()
    fetched = scene.store.get(keys.HEAD)
    assert fetched is not None
    document = json.loads(bytes(fetched.data))
    assert document["format"] == 2
    # Whoever does not know a field has it among its `extra`, and writes it back (index.head).
    assert parse_head(bytes(fetched.data), "here").replica == head_of(scene.store).head.replica
    assert json.loads(encode_head(head_of(scene.store).head))["replica"] == document["replica"]


def test_an_s3_store_gets_and_gives_replicas(s3_team: Team, tmp_path: Path):
    (tmp_path / "replica").mkdir()
    alice = s3_team.clone("alice")
    alice.write_all(FILES)
    alice.push()
    url = f"s3://sync-tests/{ulid()}"

    assert api.replicate(alice.repo, url, options=s3_team.options, namespace="copy").copied == 12
    there = open_store(url, namespace="copy", options=s3_team.options)
    assert content_of(there) == FILES
    assert api.replicate(alice.repo, (tmp_path / "replica").as_uri()).copied == 12
    alice.delete("files/1.txt")
    alice.push()
    report = api.replicate(alice.repo, url, options=s3_team.options, namespace="copy")
    assert (report.copied, report.deleted, report.skipped) == (0, 1, 11)


def test_from_google_to_a_directory_and_back(gcs_team: Team, tmp_path: Path):
    (tmp_path / "replica").mkdir()
    alice = gcs_team.clone("alice")
    alice.write_all(FILES)
    alice.push()

    assert api.replicate(alice.repo, (tmp_path / "replica").as_uri()).copied == 12
    bob = Team(tmp_path, (tmp_path / "replica").as_uri(), {}).clone("bob")
    assert bob.sync().pulled.files == 12
    assert api.replicate(bob.repo, f"gs://bayou/{ulid()}").copied == 12


def test_offline_nothing_is_replicated(scene: Scene):
    with pytest.raises(UsageError, match="offline"):
        api.replicate(replace(scene.alice.repo, offline=True), scene.url)


def entry(**changes: Any) -> Entry:
    return replace(Entry("files/a", None, 3, b"h" * 32, '"e"', None, 1_700_000_000_123), **changes)


def test_a_key_stands_for_one_content_and_one_age_of_the_target():
    one = copy_push(entry(), "store", 0)
    assert keys.is_push_id(one)
    assert copy_push(entry(etag='"f"', push=ulid()), "store", 0) == one
    others = {
        copy_push(entry(sha256=b"g" * 32), "store", 0),
        copy_push(entry(), "store", 1),
        copy_push(entry(), "b", 0),
    }
    assert len(others | {one}) == 4
    unknown = entry(sha256=None, etag=None)
    assert copy_push(unknown, "store", 0) != copy_push(unknown, "store", 0)


def test_what_a_pair_asks_for():
    copied = entry(push=copy_push(entry(), "store", 0), etag='"x"')
    assert Pair("files/a", entry(), None).action == "copy"
    assert Pair("files/a", entry(), copied).action == "keep"
    assert Pair("files/a", entry(sha256=b"g" * 32), copied).action == "copy"
    assert Pair("files/a", entry(modified=7), copied).action == "record"
    assert Pair("files/a", None, copied).action == "delete"
    assert Pair("files/a", entry(size=4, sha256=None), copied).action == "copy"
    found = entry(sha256=None)
    assert is_copy(entry(push=copy_push(found, "store", 3)), found)
    assert not is_copy(copied, found)
