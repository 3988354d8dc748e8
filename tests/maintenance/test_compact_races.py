"""Compaction against everything that happens at once: at each of its requests a peer acts, or the process dies.

K numbers are those of the traces of packs that lost data in drafts of the protocol.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

import bayou.maintenance.compact as compact_module
import bayou.maintenance.gc as gc_module
from bayou.core.clock import format_ms, parse_ms
from bayou.core.errors import BadAnswer, NodeMissing, PreconditionFailed, Rejected, Unavailable
from bayou.index.head import encode_head
from bayou.index.node_store import StoreNodes
from bayou.index.tree import IndexTree, diff, scan
from bayou.maintenance.gc_jobs import Sweep
from bayou.objectstore import keys
from bayou.objectstore.backends.directory import LocalTransport
from bayou.sync.commit import commit
from bayou_testing.faulty import Crash, Fault, crash, lost_answer
from tests import api
from tests.maintenance.pack_scene import (
    GONE_BY,
    Scene,
    check,
    collect,
    compact,
    fresh,
    head,
    make_scene,
    packs_of,
    rows,
    stored_packs,
    without_place,
)
from tests.sync.conftest import Clone, Team, Wire
from tests.sync.turns import Turns, meanwhile, turns

__all__ = ["turns"]

PACK = r"packs/.*\.zip$"
P, Q, NEW = "files/p", "files/q", "files/new"

Act = Callable[[Scene], None]


@pytest.fixture
def scene(team: Team, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return make_scene(team, monkeypatch.setenv)


def settle(scene: Scene, files: dict[str, bytes]) -> None:
    """Check that the store has exactly these files, whole, and that both clones come to agree with it."""
    assert check(scene.team) == files
    for clone in (scene.a, scene.b):
        report = clone.sync()
        assert (report.exit_code, report.conflicts, report.warnings) == (0, [], [])
        assert clone.files == files
    for clone in (scene.a, scene.b):
        assert clone.sync().requests.total == 1
    assert fresh(scene.team).files == files


def deletes(scene: Scene) -> None:
    scene.b.delete(P)
    scene.b.push()
    scene.files.pop(P, None)


def changes(scene: Scene) -> None:
    scene.b.write(P, "other content, of B")
    scene.b.push()
    scene.files[P] = b"other content, of B"


def makes_again(scene: Scene) -> None:
    """Delete a file, and make one of the same bytes: another push, and so another file (K6, K8)."""
    content = scene.files[P]
    scene.b.delete(P)
    scene.b.push()
    scene.b.write(P, content)
    scene.b.push()


def pushes(scene: Scene) -> None:
    scene.b.write_all({NEW: b"new, of B"})
    scene.b.push()
    scene.files[NEW] = b"new, of B"


def compacts(scene: Scene) -> None:
    compact(scene.b)


def collects(scene: Scene) -> None:
    collect(scene.b)


def compacts_and_collects(scene: Scene) -> None:
    compact(scene.b)
    collect(scene.b)


ACTS = [
    deletes,
    makes_again,
    compacts,
    collects,
    compacts_and_collects,
    pytest.param(changes, marks=pytest.mark.soak),
    pytest.param(pushes, marks=pytest.mark.soak),
]


def requests_of(scene: Scene, turns: Turns, step: Callable[[], object]) -> int:
    """Return how many requests an undisturbed step takes."""
    turns.before(10**9, lambda: None)
    step()
    number = len(turns.seen)
    turns.at = 0
    scene.reset()
    return number


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_whatever_a_peer_does_at_any_request_of_a_compaction_stays_done(scene: Scene, turns: Turns, act: Act) -> None:
    """K5 (a deleted or replaced file does not come back), K6 (nor does the push of a remade one), two compactors."""
    count = requests_of(scene, turns, lambda: compact(scene.a))
    assert count > 10
    files, pushed = dict(scene.files), rows(scene.team)[P].push
    for number in range(1, count + 1):
        scene.files = dict(files)
        turns.before(number, lambda: act(scene))
        try:
            report = compact(scene.a)
        except NodeMissing:
            # A collection without grace takes even the nodes of the head that was just read.
            assert act is compacts_and_collects
        else:
            assert report.failures == 0, (number, report.failed)
        turns.at = 0
        assert turns.came, number
        if P in scene.files:
            assert (rows(scene.team)[P].push != pushed) == (act in (changes, makes_again)), number
        settle(scene, scene.files)
        scene.reset()


@pytest.mark.parametrize(
    "act",
    [
        makes_again,
        compacts_and_collects,
        pytest.param(pushes, marks=pytest.mark.soak),
        pytest.param(compacts, marks=pytest.mark.soak),
    ],
    ids=lambda act: act.__name__,
)
def test_whatever_a_peer_does_at_any_request_of_a_collection_stays_done(scene: Scene, turns: Turns, act: Act) -> None:
    """The collection has packs to delete, of a compaction by A, and so has that of B in between."""
    compact(scene.a)
    scene.b.sync()
    scene.b.write_all({"files/more": b"a small pack more, so that B has something to join"})
    scene.b.push()
    scene.a.sync()
    scene.files["files/more"] = scene.a.files["files/more"]
    scene.keep_again()
    count = requests_of(scene, turns, lambda: collect(scene.a))
    assert count > 8
    files = dict(scene.files)
    for number in range(1, count + 1):
        scene.files = dict(files)
        turns.before(number, lambda: act(scene))
        try:
            collect(scene.a)
        except NodeMissing:
            # A collection without grace takes even the nodes of the head that was just read.
            assert act is compacts_and_collects
        turns.at = 0
        assert turns.came, number
        assert packs_of(scene.team) <= stored_packs(scene.team), number
        settle(scene, scene.files)
        scene.reset()


@pytest.mark.parametrize("first", [compacts, collects, compacts_and_collects], ids=lambda act: act.__name__)
def test_a_peer_that_pushes_meets_a_compaction_or_a_collection_at_any_request(
    scene: Scene, turns: Turns, first: Act
) -> None:
    """The pusher has edits, new files and a delete under way, while B moves everything and deletes what is unnamed."""

    def push() -> None:
        scene.a.write_all({P: b"edited by A", NEW: b"new, of A"})
        scene.a.delete(Q)
        report = scene.a.push()
        assert (report.conflicts, report.failed) == ([], [])

    count = requests_of(scene, turns, push)
    expected = {**scene.files, P: b"edited by A", NEW: b"new, of A"}
    del expected[Q]
    for number in range(1, count + 1):
        turns.before(number, lambda: first(scene))
        push()
        turns.at = 0
        assert turns.came, number
        settle(scene, expected)
        scene.reset()


def test_k17_a_pull_that_meets_a_compaction_and_a_collection_at_any_request_deletes_nothing(
    scene: Scene, turns: Turns
) -> None:
    """B has changed a file, and moves everything while A pulls that: A's old file is replaced, never removed."""
    scene.b.write(P, "changed by B")
    scene.b.push()
    scene.files[P] = b"changed by B"
    scene.keep_again()
    late = scene.team.clone("late")

    def pull() -> None:
        for clone in (scene.a, late):
            before = dict(clone.files)
            try:
                report = clone.pull()
            except NodeMissing:
                # A collection without grace takes even the nodes of the head that was just read.
                assert clone.files == before
                report = clone.pull()
            assert (report.failed, report.missing, report.pulled.deleted) == ([], [], 0)
            assert clone.files == scene.files

    count = requests_of(scene, turns, pull)
    assert count > 6
    for number in range(1, count + 1):
        late = scene.team.clone("late")
        turns.before(number, lambda: compacts_and_collects(scene))
        pull()
        turns.at = 0
        assert turns.came, number
        settle(scene, scene.files)
        scene.reset()


def test_k16_a_lazy_clone_hydrates_after_a_compaction_and_a_collection(scene: Scene) -> None:
    lazy = scene.team.clone("lazy", hydrate="lazy")
    lazy.pull()
    assert "data/t/m/n/1/raw" not in lazy.files

    compact(scene.a)
    collect(scene.a)
    moved = api.hydrate(lazy.repo, "data/t/m/n/1/raw")

    assert moved.files == 1
    assert lazy.files == scene.files
    assert lazy.sync().pulled.files == 0
    assert lazy.status().in_sync


@pytest.mark.parametrize("step", ["compact", "collect"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_v19_a_process_that_dies_at_any_request_is_repeated_without_a_trace(
    scene: Scene, wire: Wire, step: str, when: Any
) -> None:
    def run() -> None:
        compact(scene.a) if step == "compact" else collect(scene.a)

    if step == "collect":
        compact(scene.a)
        scene.keep_again()
    wire.seen.clear()
    run()
    count = len(wire.seen)
    assert count > 6
    scene.reset()
    for number in range(1, count + 1):
        wire.cut(Fault(nth=number, when=when, error=crash))
        with pytest.raises(Crash):
            run()
        wire.cut()
        assert check(scene.team) == scene.files, number
        assert fresh(scene.team).files == scene.files, number
        run()
        collect(scene.b)
        assert len(packs_of(scene.team)) == 1, number
        assert stored_packs(scene.team) == packs_of(scene.team), number
        _in_step(scene)
        scene.reset()


def test_a_store_that_has_no_room_for_a_pack_ends_a_compaction_and_nothing_has_moved(scene: Scene, wire: Wire) -> None:
    before = rows(scene.team)
    wire.cut(Fault("put", PACK, error=lambda: Rejected("no space left on device")))
    with pytest.raises(Rejected, match="no space left"):
        compact(scene.a)
    wire.cut()

    assert rows(scene.team) == before
    assert compact(scene.a).files == 7
    settle(scene, scene.files)


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_answer_that_is_lost_is_asked_for_again(scene: Scene, wire: Wire, when: Any, no_backoff: None) -> None:
    """Also that of the swap: the head itself says whether it took effect (P4)."""
    wire.seen.clear()
    compact(scene.a)
    count = len(wire.seen)
    scene.reset()
    for number in range(1, count + 1):
        wire.cut(Fault(nth=number, when=when, error=lost_answer))
        report = compact(scene.a)
        wire.cut()
        assert (report.files, report.skipped, report.packs_after) == (7, 0, 1), number
        settle(scene, scene.files)
        scene.reset()


def test_a_swap_whose_answer_stays_lost_is_found_in_the_head(scene: Scene, wire: Wire, no_backoff: None) -> None:
    seq = head(scene.team).seq

    wire.cut(Fault("put", r"head\.json$", nth=1, times=1, when="after", error=lambda: BadAnswer("half of an answer")))
    report = compact(scene.a)
    wire.cut()

    assert (report.files, report.skipped) == (7, 0)
    assert head(scene.team).seq == seq + 1, "it was not committed twice"
    settle(scene, scene.files)


def test_a_swap_that_arrives_late_changes_nothing_but_places(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compactor is dead, and B has deleted and changed files since: its swap no longer fits."""
    held = _held_swap(monkeypatch)
    with pytest.raises(Crash):
        compact(scene.a)
    deletes(scene)
    assert held() is False
    settle(scene, scene.files)


def test_a_swap_that_arrives_late_on_an_unchanged_head_moves_files_and_undoes_no_journal(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = _held_swap(monkeypatch)
    with pytest.raises(Crash):
        compact(scene.a)
    scene.a.delete(P)
    scene.b.write(Q, "edited by B")
    assert held() is True

    for clone in (scene.a, scene.b, scene.a):
        assert clone.sync().conflicts == []
    del scene.files[P]
    settle(scene, {**scene.files, Q: b"edited by B"})


# ---- P6: a collection between the upload of a pack and its commit ----


class PausedGc:
    """A collection on a thread of its own, which stops before it announces itself, or before it deletes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, clone: Clone, grace_s: float = GONE_BY) -> None:
        self._clone = clone
        self._grace_s = grace_s
        self._reached = {"announce": threading.Event(), "delete": threading.Event()}
        self._go = {"announce": threading.Event(), "delete": threading.Event()}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._error: BaseException | None = None
        announce, delete = gc_module._announce, Sweep.delete

        def announcing(*args: Any) -> Any:
            self._stop("announce")
            return announce(*args)

        def deleting(sweep: Any) -> None:
            self._stop("delete")
            delete(sweep)

        monkeypatch.setattr(gc_module, "_announce", announcing)
        monkeypatch.setattr(Sweep, "delete", deleting)

    def until(self, point: str) -> None:
        """Let it run until it stands before this step."""
        if not self._thread.is_alive():
            self._thread.start()
        if point == "delete":
            self._go["announce"].set()
        assert self._reached[point].wait(30)

    def finish(self) -> None:
        for event in self._go.values():
            event.set()
        if not self._thread.is_alive() and not self._reached["announce"].is_set():
            self._thread.start()
        self._thread.join(30)
        assert not self._thread.is_alive()
        assert self._error is None

    def _stop(self, point: str) -> None:
        if threading.current_thread() is self._thread:
            self._reached[point].set()
            assert self._go[point].wait(30)

    def _run(self) -> None:
        try:
            collect(self._clone, self._grace_s)
        except BaseException as error:
            self._error = error
            raise


def committing(monkeypatch: pytest.MonkeyPatch, what: str, step: Callable[[], object]) -> None:
    """Let `step` happen once the packs of a push or of a compaction have arrived, and before it commits them."""
    if what == "compact":
        meanwhile(monkeypatch, compact_module._Moves, "commit", step)
    else:
        meanwhile(monkeypatch, commit, "swap_head", step)


def begin(scene: Scene, what: str) -> None:
    if what == "compact":
        compact(scene.a)
    else:
        scene.a.write(NEW, "pushed while a collection runs")
        scene.files[NEW] = b"pushed while a collection runs"
        scene.a.push()


BOTH = pytest.mark.parametrize("what", ["compact", "push"])


@BOTH
def test_k11_a_pack_that_a_collection_has_deleted_before_its_commit_is_not_committed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    committing(monkeypatch, what, lambda: collect(scene.b))

    begin(scene, what)

    settle(scene, scene.files)


@BOTH
def test_k12_a_pack_that_a_collection_will_delete_is_not_committed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The collection has listed and announced; the commit comes before the DELETE."""
    gc = PausedGc(monkeypatch, scene.b)
    committing(monkeypatch, what, lambda: gc.until("delete"))

    begin(scene, what)
    gc.finish()

    settle(scene, scene.files)


@BOTH
def test_k13_a_pack_that_was_written_twice_is_not_committed_after_a_collection(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, what: str, no_backoff: None
) -> None:
    """The answer to the PUT is lost; the collection lists the pack; the retry makes it young; a HEAD would not tell."""
    gc = PausedGc(monkeypatch, scene.b)
    written: list[str] = []
    real = LocalTransport.put

    def put(transport: LocalTransport, key: str, *args: Any, **kwargs: Any) -> Any:
        stored = real(transport, key, *args, **kwargs)
        if "/packs/" in key:
            written.append(key)
            if len(written) == 1:
                gc.until("announce")
                raise Unavailable("the connection broke, and the answer with it")
            later = (scene.team.root / "store" / key).stat().st_mtime + 3600
            os.utime(scene.team.root / "store" / key, (later, later))
        return stored

    monkeypatch.setattr(LocalTransport, "put", put)
    committing(monkeypatch, what, lambda: gc.until("delete"))

    begin(scene, what)
    monkeypatch.setattr(LocalTransport, "put", real)
    gc.finish()

    assert written[0] == written[1]
    assert not (scene.team.root / "store" / written[0]).exists(), "the collection has deleted what it listed"
    settle(scene, scene.files)


@BOTH
def test_k14_before_never_goes_back_when_two_collections_overlap(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The older collection announces itself last, while the newer one has yet to delete what it listed."""
    newer = PausedGc(monkeypatch, scene.b)
    older = PausedGc(monkeypatch, fresh(scene.team, "c"), grace_s=3600.0)
    older.until("announce")

    def overlap() -> None:
        newer.until("delete")
        before = head(scene.team).gc
        older.finish()
        after = head(scene.team).gc
        assert after.count == before.count + 1
        assert after.before == before.before

    committing(monkeypatch, what, overlap)

    begin(scene, what)
    newer.finish()

    settle(scene, scene.files)


def test_p6_packs_are_looked_at_once_if_a_collection_came_and_never_otherwise(
    scene: Scene, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire.seen.clear()
    compact(scene.a)
    assert wire.sent("head", PACK) == []
    scene.reset()
    committing(monkeypatch, "compact", lambda: collect(scene.b, grace_s=3600.0))
    wire.seen.clear()

    assert compact(scene.a).files == 7

    assert len(wire.sent("head", PACK)) == 1
    settle(scene, scene.files)


def test_two_compactors_do_not_undo_each_other(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slower one finds other rows than it copied; its packs are leftovers, and nothing is lost or moved twice."""
    faster: list[Any] = []
    before = without_place(rows(scene.team))
    committing(monkeypatch, "compact", lambda: faster.append(compact(scene.b)))

    report = compact(scene.a)

    assert (faster[0].files, report.files, report.skipped) == (7, 0, 7)
    assert without_place(rows(scene.team)) == before
    assert len(packs_of(scene.team)) == 1
    assert collect(scene.b).leftovers_deleted == 1
    settle(scene, scene.files)


def test_k15_a_root_that_was_current_until_a_moment_ago_is_retained(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All packs and commits are two days old. A reader has read the head; then compact, and gc with its usual grace."""
    two_days = 2 * 86400
    _age(scene.team, two_days)
    before = rows(scene.team)
    old = head(scene.team)

    compact(scene.a)
    done = collect(scene.b, grace_s=86400.0)

    assert done.packs_deleted == 0
    store = scene.team.store()
    assert {entry.path: entry for entry in scan(IndexTree(StoreNodes(store), old.root))} == before
    for entry in before.values():
        assert store.head(entry.key).size
    changes = list(diff(IndexTree(StoreNodes(store), old.root), IndexTree(StoreNodes(store), head(scene.team).root)))
    assert len(changes) == 7
    assert all(change.moved for change in changes)


# ---- helpers ----


def _in_step(scene: Scene) -> None:
    """Check that both clones come to agree with the store, and stay so."""
    for clone in (scene.a, scene.b):
        clone.sync()
        assert clone.files == scene.files
        assert clone.sync().requests.total == 1


def _age(team: Team, seconds: int) -> None:
    """Make every object of the store, and every commit in its log, older."""
    store, old = team.store(), head(team)
    log = tuple(replace(row, at=format_ms(parse_ms(row.at) - seconds * 1000)) for row in old.log)
    store.put(keys.HEAD, encode_head(replace(old, log=log)))
    for file in (team.root / "store").rglob("*"):
        if file.is_file():
            then = file.stat().st_mtime - seconds
            os.utime(file, (then, then))


def _held_swap(monkeypatch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """Let the next swap be sent, and its sender die; return how to let it arrive, which says whether it took effect."""
    held: list[Callable[[], object]] = []
    real = LocalTransport.put

    def put(transport: LocalTransport, key: str, *args: Any, **kwargs: Any) -> Any:
        if held or not key.endswith(keys.HEAD):
            return real(transport, key, *args, **kwargs)
        held.append(lambda: real(transport, key, *args, **kwargs))
        raise Crash("killed")

    def arrive() -> bool:
        try:
            held[0]()
        except PreconditionFailed:
            return False
        return True

    monkeypatch.setattr(LocalTransport, "put", put)
    return arrive
