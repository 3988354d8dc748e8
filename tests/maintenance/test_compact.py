"""`datastore compact` moves files into new packs: what it takes, what it leaves alone, and what it costs."""

from __future__ import annotations

import hashlib
import pickle
import uuid
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

import bayou.maintenance.compact_move as jobs
from bayou.core.errors import NotFound, StoreSwapped
from bayou.core.ids import ulid
from bayou.index.entry import Entry
from bayou.index.head import encode_head
from bayou.objectstore import keys
from bayou.packs.write import PackWriter
from tests import api
from tests.maintenance.pack_scene import (
    FILE,
    PACK_SIZE,
    Scene,
    check,
    collect,
    compact,
    fresh,
    head,
    make_scene,
    noise,
    packs_of,
    rows,
    small_packs,
    stored_packs,
    without_place,
)
from tests.sync.conftest import Clone, Team, Wire
from tests.sync.indexes import commit_rows, head_of

__all__ = ["small_packs"]

LOOSE = "/~[0-9A-Z]{26}/"
PACK = r"packs/.*\.zip$"


@pytest.fixture
def scene(team: Team, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return make_scene(team, monkeypatch.setenv)


def full_packs(clone: Clone, count: int, name: str = "f") -> list[str]:
    """Push files that fill `count` packs of 64 KiB; return their paths."""
    per_pack = -(-PACK_SIZE // (FILE + 100))
    paths = [f"files/{name}/{number:03}" for number in range(count * per_pack)]
    clone.write_all({path: noise(path) for path in paths})
    clone.push()
    return paths


# ---- what is moved ----


def test_small_packs_and_small_objects_become_one_pack(scene: Scene) -> None:
    before = rows(scene.team)
    objects = [entry for entry in before.values() if entry.pack is None and entry.push is not None]
    assert (len(packs_of(scene.team)), len(objects)) == (3, 2)

    report = compact(scene.a)

    after = rows(scene.team)
    assert (report.packs_before, report.packs_after) == (3, 1)
    assert (report.files, report.objects, report.skipped, report.failures) == (7, 2, 0, 0)
    assert len(packs_of(scene.team)) == 1
    assert check(scene.team) == scene.files
    moved = [entry for entry in after.values() if entry.pack is not None]
    assert sorted(moved, key=lambda entry: entry.offset or 0) == sorted(moved, key=lambda entry: entry.path)


def test_p4_nothing_but_the_place_of_a_file_changes(scene: Scene) -> None:
    before, log = rows(scene.team), len(head(scene.team).log)

    compact(scene.a)

    after = rows(scene.team)
    assert without_place(after) == without_place(before)
    assert all(entry.etag is None and entry.at is None for entry in after.values() if entry.pack is not None)
    new = head(scene.team).log[log:]
    assert [(row.kind, row.added, row.changed, row.deleted, row.bytes) for row in new] == [("compact", 0, 0, 0, 0)]


def test_p4_discovered_and_large_objects_stay_where_they_are(scene: Scene) -> None:
    scene.a.write("files/large", noise("large", 300_000))
    scene.a.push()
    before = rows(scene.team)

    assert compact(scene.a).files == 7

    after = rows(scene.team)
    for path in ("files/found", "files/large"):
        assert after[path] == before[path]


def test_a_compacted_store_has_nothing_to_compact(scene: Scene) -> None:
    compact(scene.a)
    before, keys_before = head(scene.team), scene.team.keys()

    again = compact(scene.b)

    assert (again.files, again.packs_before, again.packs_after) == (0, 1, 1)
    assert head(scene.team) == before
    assert scene.team.keys() == keys_before


def test_a_single_small_pack_or_object_is_left_alone(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    a = team.clone("a")
    a.write("files/one", "1")
    a.push()
    assert compact(a).files == 0
    monkeypatch.setenv("BAYOU_PACK_BELOW", "0")
    b = team.clone("b", namespace="other")
    b.write("files/one", "1")
    b.push()
    monkeypatch.setenv("BAYOU_PACK_BELOW", "256KiB")
    b.reopen()
    assert compact(b).files == 0


def test_packs_that_are_full_are_left_alone(team: Team, small_packs: None) -> None:
    a = team.clone("a")
    full_packs(a, 3)
    before = rows(team)

    report = compact(a)

    assert (report.packs_before, report.files) == (3, 0)
    assert rows(team) == before


def test_a_pack_of_which_less_than_half_is_named_is_rewritten_at_once(team: Team, small_packs: None) -> None:
    a = team.clone("a")
    paths = full_packs(a, 2)
    sparse = rows(team)[paths[0]].pack
    assert sparse is not None
    doomed = [path for path in paths if rows(team)[path].pack == sparse][:7]
    a.delete(*doomed)
    a.push()

    report = compact(a)

    assert report.files == 4
    assert report.freed == keys.pack_bytes(sparse)
    assert sparse not in packs_of(team)
    assert (report.packs_before, report.packs_after) == (2, 2)
    assert set(check(team)) == set(paths) - set(doomed)
    collect(a)
    assert stored_packs(team) == packs_of(team)


@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_p4_deleted_bytes_are_removed_once_no_retained_root_names_them(
    team: Team, small_packs: None, place: str
) -> None:
    """Wherever the deleted file lies in its pack; the last one only the pack's own count shows."""
    a = team.clone("a")
    paths = full_packs(a, 1)
    (pack,) = packs_of(team)
    doomed = {"first": paths[0], "middle": paths[5], "last": paths[-1]}[place]
    a.delete(doomed)
    a.push()
    assert compact(a).files == 0, "an earlier root, which readers may use, still names the file"

    report = compact(a, grace_s=-2.0)

    assert (report.files, report.packs_before, report.packs_after) == (len(paths) - 1, 1, 1)
    assert packs_of(team) != {pack}
    collect(a)
    assert stored_packs(team) == packs_of(team)
    assert check(team) == {path: noise(path) for path in paths if path != doomed}
    assert compact(a, grace_s=-2.0).files == 0


def test_the_bytes_of_a_file_that_was_never_committed_are_removed_too(team: Team, small_packs: None) -> None:
    """A pack may have holes (P2): members that their push did not commit in the end."""
    a = team.clone("a")
    paths = full_packs(a, 1)
    entry = rows(team)[paths[-1]]
    commit_rows(team.store(), {paths[-1]: None})
    collect(a)
    assert entry.pack in stored_packs(team)

    assert compact(a, grace_s=-2.0).files == len(paths) - 1

    collect(a)
    assert entry.pack not in stored_packs(team)


def test_files_that_are_read_together_lie_together(team: Team, small_packs: None) -> None:
    """Files of two models are pushed alternately; after a compaction each pack has neighbours by path."""
    a = team.clone("a")
    for number in range(12):
        a.write_all({f"data/t/{model}/n/{number}/raw": noise(f"{model}{number}") for model in "xy"})
        a.push()

    report = compact(a)

    assert report.packs_before == 12
    assert report.packs_after == 3
    ordered = [entry.pack for _, entry in sorted(rows(team).items())]
    changes = sum(first != second for first, second in pairwise(ordered))
    assert changes == len(set(ordered)) - 1


def test_the_small_packs_of_2000_puts_become_few(team: Team) -> None:
    """Each put makes a pack of two files. (Here one commit names all packs; what is compacted is the same.)"""
    a = team.clone("a")
    a.write("files/first", "so that there is a store")
    a.push()
    store, made = team.store(), dict[str, Entry]()
    writer = PackWriter(store)
    for number in range(2000):
        for name in ("raw", "metadata.yaml"):
            path = f"data/t/m/item-{number:04}/1/{name}"
            writer.add(path, ulid(), data := path.encode(), hashlib.sha256(data).digest(), 1_700_000_000_000)
        sealed = writer.seal()
        assert sealed is not None
        for member in sealed.members:
            place = (None, sealed.name, member.offset, member.stored, member.method)
            made[member.path] = Entry(
                member.path, member.push, member.size, member.sha256, None, None, member.modified, *place
            )
    assert all(sent.error is None for sent in writer.drain())
    writer.close()
    commit_rows(store, made)

    b = fresh(team, "b")
    before = b.repo.tree_root
    report = compact(a)
    counted = team.clone("c")
    pulled = counted.pull()

    assert (report.packs_before, report.packs_after, report.files) == (2001, 1, 4001)
    assert pulled.requests.get < 15
    assert {path: (before / path).read_bytes() for path in made} == {path: path.encode() for path in made}
    assert counted.files == b.files


# ---- base, here and at peers ----


def test_the_next_sync_here_is_a_no_op_of_one_request(scene: Scene) -> None:
    compact(scene.a)

    assert scene.a.status().in_sync
    report = scene.a.sync()
    assert (report.engine, report.requests.total) == ("fast", 1)


def test_k9_a_peer_takes_the_rows_without_a_download_and_is_in_sync(scene: Scene, wire: Wire) -> None:
    compact(scene.a)
    wire.seen.clear()

    report = scene.b.sync()

    assert wire.sent("get", PACK) == []
    assert (report.pulled.files, report.pushed.files, report.exit_code) == (0, 0, 0)
    assert scene.b.status().in_sync
    assert scene.b.sync().requests.total == 1
    assert wire.sent("put") == []


def test_p5_base_takes_moved_rows_only_and_leaves_the_rest_for_a_pull(scene: Scene) -> None:
    scene.b.write("files/new", "of B")
    scene.b.delete("files/p")
    scene.b.push()

    assert compact(scene.a).files == 7

    assert not scene.a.status().in_sync
    report = scene.a.sync()
    assert (report.pulled.files, report.pulled.deleted) == (1, 1)
    assert scene.a.files == scene.b.files
    assert scene.a.sync().requests.total == 1


def test_a_change_that_waits_to_be_pushed_still_waits(scene: Scene) -> None:
    scene.a.write("files/p", "edited")
    scene.a.delete("files/q")

    compact(scene.a)

    assert scene.a.status().journal_paths == 2
    report = scene.a.sync()
    assert (report.pushed.files, report.pushed.deleted, report.conflicts) == (1, 1, [])
    assert scene.a.sync().requests.total == 1


def test_a_lazy_clone_that_compacts_stays_lazy(scene: Scene) -> None:
    lazy = scene.team.clone("lazy", hydrate="lazy")
    lazy.pull()
    assert "data/t/m/n/1/raw" not in lazy.files

    compact(lazy)

    assert lazy.sync().requests.total == 1
    assert "data/t/m/n/1/raw" not in lazy.files
    collect(lazy)
    assert api.hydrate(lazy.repo, None).files == 1
    assert lazy.files == scene.files


def test_a_clone_that_never_synced_can_compact(scene: Scene) -> None:
    stranger = scene.team.clone("stranger")

    assert compact(stranger).files == 7

    assert stranger.files == {}
    assert stranger.sync().pulled.files == len(scene.files)
    assert stranger.files == scene.files


def test_v17_a_clone_that_knows_another_store_says_what_was_compacted(scene: Scene) -> None:
    """The head was lost and rebuilt by a newcomer, so that the store has another id: that is for the next sync."""
    seen = head_of(scene.team.store())
    scene.team.store().put(keys.HEAD, encode_head(replace(seen.head, store=str(uuid.uuid4()))))

    report = compact(scene.a)

    assert (report.files, report.packs_after) == (7, 1)
    (warning,) = report.warnings
    assert "holds another store now" in warning
    assert check(scene.team) == scene.files
    with pytest.raises(StoreSwapped):
        scene.a.sync()


def test_k7_an_edit_or_a_delete_that_waits_at_a_peer_meets_no_conflict(scene: Scene) -> None:
    scene.b.write("files/p", "edited by B")
    scene.b.delete("files/q")

    compact(scene.a)
    report = scene.b.sync()

    assert (report.conflicts, report.warnings) == ([], [])
    assert (report.pushed.files, report.pushed.deleted) == (1, 1)
    scene.a.sync()
    assert scene.a.files == scene.b.files
    assert "files/q" not in scene.a.files


# ---- a dry run, damage, limits ----


def test_v15_a_dry_run_says_what_would_happen_and_writes_nothing(scene: Scene, wire: Wire) -> None:
    dry = compact(scene.a, dry_run=True)

    assert wire.sent("put") == wire.sent("delete") == []
    done = compact(scene.a)
    for name in ("packs_before", "packs_after", "files", "objects", "bytes", "freed"):
        assert getattr(dry, name) == getattr(done, name), name


def test_what_the_report_promises_is_what_gc_frees(scene: Scene) -> None:
    report = compact(scene.a)
    before = scene.team.keys()

    collect(scene.a)

    gone = set(before) - set(scene.team.keys())
    payload = [key for key in gone if not key.startswith((".bayou/nodes/", ".bayou/log/"))]
    assert sum(before[key] for key in payload) == report.freed
    assert check(scene.team) == scene.files


def test_a_file_whose_bytes_are_bad_is_left_where_it_is_and_reported(scene: Scene) -> None:
    before = rows(scene.team)
    bad, loose = before["files/p"], before["files/v"]
    _damage(scene.team, bad.key, bad.offset or 0)
    _damage(scene.team, loose.key, 10)

    report = compact(scene.a)

    assert [(failure.path, failure.code) for failure in report.failed] == [
        ("files/p", "bad_content"),
        ("files/v", "bad_content"),
    ]
    assert (report.files, report.failures) == (5, 2)
    after = rows(scene.team)
    assert (after["files/p"], after["files/v"]) == (bad, loose)
    assert after["files/q"].pack != before["files/q"].pack
    assert without_place(after) == without_place(before)
    collect(scene.a)
    assert bad.pack in stored_packs(scene.team), "a pack stays as long as a file in it is named"


def test_a_pack_that_is_missing_is_reported_for_each_of_its_files(scene: Scene) -> None:
    before = rows(scene.team)
    scene.team.store().delete([before["files/p"].key])

    report = compact(scene.a)

    assert sorted(failure.path for failure in report.failed) == ["files/p", "files/q"]
    assert {failure.code for failure in report.failed} == {"not_found"}
    after = rows(scene.team)
    assert after["files/p"] == before["files/p"]
    assert report.files == 5


def test_v25_a_hostile_row_is_not_moved_and_ends_nothing(scene: Scene) -> None:
    """Rows that point outside of their pack, claim a bomb, or have a path that no tree can have."""
    good = rows(scene.team)["files/p"]
    assert good.pack is not None
    hostile = {
        "files/far": Entry("files/far", good.push, 10, good.sha256, None, None, 1, None, good.pack, 10**9, 10, 0),
        "files/bomb": Entry(
            "files/bomb", good.push, 16 << 20, good.sha256, None, None, 1, None, good.pack, good.offset, good.stored, 8
        ),
        "../up": Entry("../up", good.push, 10, good.sha256, None, None, 1, None, good.pack, 50, 10, 0),
    }
    commit_rows(scene.team.store(), hostile)

    report = compact(scene.a)

    assert {failure.path for failure in report.failed} == {"files/bomb"}
    after = rows(scene.team)
    assert {path: after[path] for path in hostile} == hostile
    assert report.files == 7


def test_commits_and_windows_of_any_size_give_the_same_store(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "COMMIT_ROWS", 2)
    monkeypatch.setattr(jobs, "WINDOW_BYTES", 400)
    before, log = rows(scene.team), head(scene.team).seq

    report = compact(scene.a)

    assert (report.files, report.packs_after) == (7, 1)
    assert head(scene.team).seq == log + 4
    assert without_place(rows(scene.team)) == without_place(before)
    assert check(scene.team) == scene.files
    assert scene.a.sync().requests.total == 1


def test_several_parts_give_the_same_store(team: Team, small_packs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "PART_BYTES", 1)
    a = team.clone("a")
    for number in range(40):
        a.write_all({f"files/{number:02}/{name}": noise(f"{number}{name}", 900) for name in range(40)})
    a.push()
    a.delete(*[f"files/{number:02}/{name}" for number in range(40) for name in range(25)])
    a.push(allow_mass_delete=True)
    before = rows(team)

    compact(a)

    assert without_place(rows(team)) == without_place(before)
    assert len(check(team)) == 600
    assert a.sync().requests.total == 1


def test_p1_a_part_that_runs_twice_writes_packs_under_other_names(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a task of Spark may. The rows of one run are committed, the packs of the other are leftovers."""
    real = jobs.MoveJob.run
    runs: list[list[jobs.MoveRow]] = []

    def twice(job: jobs.MoveJob, part: object) -> Iterator[jobs.MoveRow]:
        kernel = pickle.loads(pickle.dumps(job))
        runs.append(list(kernel.run(part)))
        runs.append(list(real(job, part)))  # type: ignore[arg-type]
        return iter(runs[-1])

    monkeypatch.setattr(jobs.MoveJob, "run", twice)

    report = compact(scene.a)

    first, second = ({row.new_pack for row in rows_} for rows_ in runs)
    assert first.isdisjoint(second)
    assert packs_of(scene.team) == second
    assert stored_packs(scene.team) >= first | second
    assert report.files == 7
    assert collect(scene.a).leftovers_deleted == len(first)
    assert check(scene.team) == scene.files


def test_a_store_without_an_index_cannot_be_compacted(team: Team) -> None:
    with pytest.raises(NotFound, match="nothing can be compacted"):
        compact(team.clone("a"))


def test_status_counts_packs_small_ones_and_dead_bytes(scene: Scene, wire: Wire) -> None:
    before = scene.a.status()
    assert before.packs is not None
    assert (before.packs.count, before.packs.small) == (3, 3)
    assert 900 <= before.packs.dead <= 1500, "three files of 300 bytes, with what goes with them"
    assert wire.sent("get") == [keys.HEAD], "status asks the store for the head alone"

    compact(scene.a)

    after = scene.a.status()
    assert after.packs is not None
    assert (after.packs.count, after.packs.small, after.packs.dead) == (1, 1, 0)


def test_status_of_a_store_without_packs_counts_none(team: Team) -> None:
    packs = team.clone("a").status().packs
    assert (packs.count, packs.small, packs.bytes, packs.dead) == (0, 0, 0, 0)


def test_status_counts_packs_of_a_large_tree_only_if_asked(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayou.sync.status.COUNT_PACKS_UP_TO", 5)
    assert scene.a.status().packs is None
    asked = api.status(scene.a.repo, packs=True)
    assert asked.packs is not None
    assert asked.packs.count == 3


def _damage(team: Team, key: str, at: int) -> None:
    """Change one byte of an object, by hand."""
    file = Path(team.root / "store" / key)
    data = bytearray(file.read_bytes())
    data[at] ^= 0xFF
    file.write_bytes(data)
