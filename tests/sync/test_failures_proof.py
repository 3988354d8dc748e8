"""Section 2 of tests/failures.md: "in sync" is said only with proof.

F019 is about a scoped pull, which comes with `model run`; here is its half that sync can show.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

import bayou.sync.commit.publish as publish_module
import bayou.sync.run as run_module
import bayou.sync.transfer.pull as pull_module
from bayou.core.errors import NotFound, StateError, StoreEmptied, StoreRestored, StoreSwapped, SyncError
from bayou.core.ids import ulid
from bayou.objectstore import keys
from bayou.state.database import Database
from bayou_testing.faulty import Crash, Fault, crash
from bayou_testing.proxy import HttpProxy
from tests import api
from tests.maintenance.setups import newcomer, set_up
from tests.sync.conftest import UPLOADS, Clone, Team, Wire, is_payload
from tests.sync.indexes import entries_of, head_of

HEAD = r"head\.json$"
TWENTY = {f"data/t/m/n{number:02}/1/raw": f"content {number}".encode() for number in range(20)}


def payload(proxy: HttpProxy, method: str) -> int:
    """Count the requests about payload."""
    return sum(is_payload(row.path) and "list-type" not in row.query for row in proxy.log.rows(method=method))


def reconfigure(clone: Clone, pattern: str, by: str) -> None:
    """Change the configuration file, as a person would."""
    text = clone.repo.file.read_text()
    changed = re.sub(pattern, by, text)
    assert changed != text
    clone.repo.file.write_text(changed)
    clone.reopen()


@pytest.mark.parametrize("new", [{}, {"files/mine": b"new"}], ids=["empty", "one new file"])
def test_f011_nothing_to_push_is_no_proof_of_being_in_sync(s3_team: Team, new: dict[str, bytes]) -> None:
    a, b = s3_team.clone("a"), s3_team.clone("b")
    a.write_all(TWENTY)
    a.sync()
    b.write_all(new)

    assert b.push().pushed.files == len(new)

    assert not b.status().in_sync
    report = b.pull()
    assert report.pulled.files == 20
    assert b.status().in_sync
    assert b.files == TWENTY | new


def test_f012_a_lost_state_is_found_out_once(s3_team: Team, proxy: HttpProxy) -> None:
    a = s3_team.clone("a")
    a.write_all(TWENTY)
    a.sync()
    a.lose_state()
    proxy.log.clear()

    report = a.sync()

    assert (payload(proxy, "GET"), payload(proxy, "PUT")) == (0, 0)
    assert (report.pulled.files, report.pushed.files, report.untracked, report.exit_code) == (0, 0, [], 0)
    assert a.status().in_sync
    proxy.log.clear()
    assert a.sync().engine == "fast"
    assert len(proxy.log.rows()) == 1


@pytest.mark.parametrize("origin", ["pushed", "discovered"])
def test_f013_whoever_only_pulls_has_the_quick_check_too(s3_team: Team, proxy: HttpProxy, origin: str) -> None:
    if origin == "pushed":
        a = s3_team.clone("a")
        a.write_all(TWENTY)
        a.sync()
    else:
        for path, data in TWENTY.items():
            s3_team.store().put(keys.payload(path, None), data)
        assert set_up(newcomer(s3_team, "a"), s3_team).discovered
        assert all(entry.sha256 is None for entry in entries_of(s3_team.store()).values())
    reader = s3_team.clone("reader")
    assert reader.pull().pulled.files == 20
    proxy.log.clear()

    report = reader.pull()

    assert report.engine == "fast"
    (only,) = proxy.log.rows()
    assert (only.method, only.status) == ("GET", 304)
    assert re.search(HEAD, only.path)


def test_f014_a_namespace_costs_no_more_requests(s3_team: Team, proxy: HttpProxy) -> None:
    counts = []
    for name, namespace in (("solo", None), ("named", "infra")):
        writer = s3_team.clone(f"{name}-writer", namespace=namespace)
        writer.write_all(TWENTY)
        writer.sync()
        clone = s3_team.clone(name, namespace=namespace)
        clone.sync()
        clone.write("files/new", "new")
        for push in range(2):
            proxy.log.clear()
            report = clone.push()
            counts.append((name, push, len(proxy.log.rows()), proxy.log.count(query="list-type"), report.engine))
            assert report.requests.total == len(proxy.log.rows())
            assert report.requests.list == 0
    solo, named = ([row[1:] for row in counts if row[0] == name] for name in ("solo", "named"))
    assert solo == named
    assert named[1] == (1, 1, 0, "fast")


def model(number: int) -> dict[str, bytes]:
    """The files of a model: content, and what describes it."""
    place = f"data/t/m{number}/n/1"
    return {f"{place}/raw": f"raw {number}".encode(), f"{place}/metadata.yaml": b"about: it\n"}


@pytest.mark.parametrize("first", [None, "m1"], ids=["all", "one model, then all"])
def test_f015_from_lazy_to_full_everything_comes(s3_team: Team, first: str | None) -> None:
    """(b) with `hydrate` of one model; a scoped pull comes with `model run`."""
    a, lazy = s3_team.clone("a"), s3_team.clone("lazy", hydrate="lazy")
    a.write_all(model(1) | model(2) | model(3))
    a.sync()
    lazy.sync()
    assert {path.rpartition("/")[2] for path in lazy.files} == {"metadata.yaml"}
    assert lazy.status().in_sync
    reconfigure(lazy, 'hydrate = "lazy"', 'hydrate = "full"')
    assert not lazy.status().in_sync
    if first is not None:
        assert api.hydrate(lazy.repo, first).files == 1
        assert not lazy.status().in_sync
        assert lazy.files.keys() - model(2).keys() - model(3).keys() == model(1).keys()

    report = lazy.pull()

    assert report.pulled.files == (3 if first is None else 2)
    assert lazy.files == a.files
    assert lazy.status().in_sync


def behind(clone: Clone, team: Team, seq: int) -> None:
    """Commit until the head stands at `seq`."""
    while head_of(team.store()).head.seq < seq:
        clone.write("files/counter", ulid())
        clone.sync()


@pytest.mark.parametrize("marked", [True, False], ids=["by us", "by whoever"])
def test_f016_a_rebuilt_head_of_the_same_number_is_never_nothing_to_do(team: Team, marked: bool) -> None:
    """`marked`: with the word of a rebuilding in it, as ours have; else it looks like a restored backup."""
    a, b, ahead = team.clone("a"), team.clone("b"), team.clone("ahead")
    a.write_all({"files/f0": b"0", "files/f1": b"1"})
    a.sync()
    b.sync()
    behind(a, team, 6)
    ahead.sync()
    mine = ahead.files
    store = team.store()
    store.put(keys.HEAD, b"garbage")
    assert api.verify(b.repo, deep=False, repair=True).repaired
    assert head_of(store).head.seq < 6, "whoever rebuilt it did not know how far the store had come"
    b.pull()
    b.write("files/of-b", "b's")
    b.delete("files/f1")
    b.sync()
    behind(b, team, 6)
    if not marked:
        head = json.loads(_read(team, keys.HEAD))
        head.pop("rebuilt")
        store.put(keys.HEAD, json.dumps(head).encode())
    assert head_of(store).head.seq == ahead.status().base_seq == 6

    if marked:
        report = ahead.pull()
        assert report.engine != "fast"
        assert report.pulled.deleted == 0
        assert ahead.files.keys() == mine.keys() | {"files/of-b"}
        assert report.untracked == ["files/f1"], "what is gone there is kept here, and nobody's change"
        kept = {one.path: one.copy for one in report.conflicts}
        assert kept.keys() == {"files/counter"}, "what differs is kept aside"
        assert kept["files/counter"] is not None
        with open(kept["files/counter"], "rb") as copy:
            assert copy.read() == mine["files/counter"]
        assert ahead.sync().exit_code == 0
        assert ahead.files.keys() == mine.keys() | {"files/of-b"}, "nor does a later sync delete it"
    else:
        with pytest.raises(StoreRestored):
            ahead.pull()
        assert ahead.files == mine


@pytest.mark.parametrize("how", ["another store", "an older copy", "none at all"])
def test_f016_a_head_that_does_not_go_on_from_base_is_an_error_that_says_so(team: Team, how: str) -> None:
    a = team.clone("a")
    a.write_all({"files/f0": b"0", "files/f1": b"1"})
    a.sync()
    store = team.store()
    old = _read(team, keys.HEAD)
    a.write("files/f2", "2")
    a.sync()
    mine = a.files
    head = json.loads(_read(team, keys.HEAD))
    error: type[SyncError]
    if how == "another store":
        error, said = StoreSwapped, "another store"
        store.put(keys.HEAD, json.dumps({**head, "store": "11111111-2222-3333-4444-555555555555"}).encode())
    elif how == "an older copy":
        error, said = StoreRestored, "older copy"
        store.put(keys.HEAD, old)
    else:
        error, said = StoreEmptied, "no index any more"
        store.delete([keys.HEAD])

    for attempt in (a.pull, a.sync, a.push):
        with pytest.raises(error, match=said) as raised:
            attempt()
        assert "bayou datastore setup" in (raised.value.hint or "")

    assert a.files == mine
    status = a.status()
    assert not status.in_sync
    assert not status.healthy
    assert said in status.message
    assert "bayou datastore setup" in status.message


@pytest.mark.parametrize("how", ["another store", "none at all"])
@pytest.mark.parametrize("mode", ["push", "pull"])
def test_f016_what_a_killed_first_sync_has_recorded_is_of_that_store_alone(
    team: Team, wire: Wire, no_backoff: None, monkeypatch: pytest.MonkeyPatch, mode: Any, how: str
) -> None:
    """The store is emptied, and perhaps made anew by a peer: no pack that is gone is named, and no file is deleted."""
    a = team.clone("a")
    if mode == "push":
        a.write_all(TWENTY)
        wire.cut(Fault("put", HEAD, nth=2, error=crash))
        with pytest.raises(Crash):
            a.push()
        wire.cut()
    else:
        other = team.clone("other")
        other.write_all(TWENTY)
        other.push()
        _die_after_ten_files(a, monkeypatch)
        a.write("files/mine", "pushed later")
    mine = a.files
    assert len(mine) > 10
    team.store().delete(map(keys.as_listed, team.keys()))
    if how == "another store":
        peer = team.clone("peer")
        peer.write("files/of-peer", "new")
        peer.push()

    for attempt in (a.pull, a.sync, a.push):
        with pytest.raises((StoreSwapped, StoreEmptied)) as raised:
            attempt()
        assert "bayou datastore setup" in (raised.value.hint or "")
    assert a.files == mine

    set_up(a, team)
    assert a.files.items() >= mine.items()
    fresh = team.clone("fresh")
    assert fresh.pull().exit_code == 0
    assert fresh.files == a.files


@pytest.mark.parametrize("moved_on", [False, True], ids=["restored", "restored and used since"])
@pytest.mark.parametrize("first", [False, True], ids=["a later pull", "the first pull"])
def test_f016_after_a_killed_pull_an_older_copy_of_the_store_deletes_nothing(
    team: Team, monkeypatch: pytest.MonkeyPatch, first: bool, moved_on: bool
) -> None:
    """Some files of a commit have come that the restored store never had."""
    other, a = team.clone("other"), team.clone("a")
    other.write("files/first", "1")
    other.push()
    if not first:
        a.pull()
    old = _read(team, keys.HEAD)
    other.write_all(TWENTY)
    other.push()
    _die_after_ten_files(a, monkeypatch)
    mine = a.files
    assert len(mine) >= 10
    team.store().put(keys.HEAD, old)
    if moved_on:
        behind(team.clone("peer"), team, 6)

    _refuses_an_older_copy(a)
    assert a.files == mine


@pytest.mark.parametrize(
    "how", ["killed", "killed, on top of a peer's", "its answer was lost", "its answer was lost, on top of a peer's"]
)
def test_f016_after_a_killed_push_an_older_copy_of_the_store_deletes_nothing(
    team: Team, wire: Wire, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The commit was made, and base has its rows; the restored store has not."""
    a, peer = team.clone("a"), team.clone("peer")
    a.write("files/first", "1")
    a.push()
    old = _read(team, keys.HEAD)
    a.write_all(TWENTY)
    if how.startswith("its answer was lost"):
        on_top = how.endswith("peer's")
        wire.cut(Fault("put", HEAD, nth=2 if on_top else 1, error=crash, when="after"))
        with monkeypatch.context() as patch:
            if on_top:
                _push_first(patch, peer)
            with pytest.raises(Crash):
                a.push()
        wire.cut()
        assert api.verify(a.repo, deep=False, repair=True).ok
    else:
        with monkeypatch.context() as patch:
            _die_after_the_commit(patch, overtaken_by=None if how == "killed" else peer)
            with pytest.raises(Crash):
                a.push()
    mine = a.files
    team.store().put(keys.HEAD, old)

    _refuses_an_older_copy(a)
    assert a.files == mine


def test_f016_after_a_killed_first_pull_the_next_one_is_still_the_first(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It walks the tree, though nobody asked for that, and lists what is untracked."""
    other, a = team.clone("other"), team.clone("a")
    other.write_all(TWENTY)
    other.push()
    a.lay("files/by-hand", "mine")
    _die_after_ten_files(a, monkeypatch)
    a.lay("files/since", "mine")

    report = a.pull(walk=False)

    assert (report.pulled.files, report.untracked) == (10, ["files/by-hand", "files/since"])
    assert a.status().in_sync


def _refuses_an_older_copy(clone: Clone) -> None:
    for attempt in (clone.pull, clone.sync, clone.push):
        with pytest.raises(StoreRestored, match="older copy"):
            attempt()


def _die_after_the_commit(patch: pytest.MonkeyPatch, overtaken_by: Clone | None) -> None:
    """Kill the next push once base has its commit, which a peer's commit precedes, made since the plan."""

    def die(*_: Any, **__: Any) -> None:
        raise Crash("killed")

    _push_first(patch, overtaken_by, then=lambda: patch.setattr(run_module, "record_in_sync", die))


def _push_first(patch: pytest.MonkeyPatch, peer: Clone | None, then: Callable[[], None] = lambda: None) -> None:
    """Let a peer push between the plan of the next push and its commit."""
    real = publish_module.begin

    def begin(*given: Any) -> Any:
        patch.setattr(publish_module, "begin", real)
        if peer is not None:
            peer.write("files/of-peer", "new")
            peer.push()
        then()
        return real(*given)

    patch.setattr(publish_module, "begin", begin)


def _die_after_ten_files(clone: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    real, placed = pull_module.install_batch, list[Any]()

    def place(*given: Any) -> set[str]:
        if placed:
            raise Crash("killed")
        placed.append(given)
        return real(*given)

    with monkeypatch.context() as patch:
        patch.setattr(pull_module, "per_transaction", lambda _: 10)
        patch.setattr(pull_module, "install_batch", place)
        with pytest.raises(Crash):
            clone.pull()


def _read(team: Team, key: Any) -> bytes:
    fetched = team.store().get(key)
    assert fetched is not None
    return bytes(fetched.data)


def test_f017_what_was_known_of_one_namespace_is_not_applied_to_another(team: Team) -> None:
    a = team.clone("a", namespace="a")
    other = team.clone("other", namespace="b")
    a.write_all({"files/of-a": b"a", "files/both": b"same"})
    a.sync()
    other.write_all({"files/of-b": b"b", "files/both": b"same"})
    other.sync()
    for clone, namespace in ((a, "a"), (other, "b")):
        while head_of(team.store(namespace)).head.seq < 7:
            clone.write("files/counter", namespace + ulid())
            clone.sync()
    before = team.keys("b")
    reconfigure(a, 'namespace = "a"', 'namespace = "b"')

    report = a.sync()

    assert report.engine != "fast"
    assert report.pulled.deleted == 0
    assert a.files["files/of-b"] == b"b", "b's files arrive"
    assert a.files["files/of-a"] == b"a", "no local file is deleted"
    assert report.untracked == ["files/of-a"]
    assert [one.path for one in report.conflicts] == ["files/counter"]
    assert team.keys("b") == before, "nothing of a is pushed into b"
    assert a.sync().pulled.deleted == 0


def test_f018_what_is_known_of_one_store_is_not_applied_to_another(
    s3_team: Team, proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = s3_team.clone("a")
    thirty = {f"files/{number:02}": f"{number}".encode() for number in range(30)}
    a.write_all(thirty)
    a.sync()
    elsewhere = Team(s3_team.root, f"s3://sync-tests/{ulid()}", s3_team.options)
    with monkeypatch.context() as patch:
        patch.setenv("BAYOU_DATASTORE", elsewhere.url)
        patch.setenv("AWS_ENDPOINT_URL", proxy.url)
        a.reopen()

        report = a.sync()

    assert a.files == thirty
    assert report.pulled.deleted == 0
    assert len(report.untracked) == 30
    assert not elsewhere.uploads()
    a.reopen()
    proxy.log.clear()
    back = a.sync()
    assert (back.pulled.files, back.pushed.files, back.untracked, back.exit_code) == (0, 0, [], 0)
    assert a.files == thirty
    assert (payload(proxy, "GET"), payload(proxy, "PUT")) == (0, 0)
    assert a.status().in_sync


def test_f019_asking_for_what_nobody_stored_proves_nothing_about_the_rest(s3_team: Team) -> None:
    a, b = s3_team.clone("a"), s3_team.clone("b", hydrate="lazy")
    a.write_all(model(1))
    a.sync()
    b.pull()
    with pytest.raises(NotFound):
        api.hydrate(b.repo, "nobody")
    a.write_all(model(2))
    a.sync()

    assert b.pull().pulled.files == 1

    assert "data/t/m2/n/1/metadata.yaml" in b.files


class FullDisk:
    """A connection to SQLite on a volume that has no room left whenever `full` says so."""

    def __init__(self, inner: sqlite3.Connection, full: Callable[[str], bool]) -> None:
        self._inner = inner
        self._full = full

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def execute(self, statement: str, *rest: Any) -> Any:
        self._check(statement)
        return self._inner.execute(statement, *rest)

    def executemany(self, statement: str, *rest: Any) -> Any:
        self._check(statement)
        return self._inner.executemany(statement, *rest)

    def _check(self, statement: str) -> None:
        if self._full(statement):
            raise sqlite3.OperationalError("database or disk is full")


def fill(monkeypatch: pytest.MonkeyPatch, full: Callable[[str], bool]) -> None:
    real = Database._open

    def opened(self: Database) -> Any:
        return FullDisk(real(self), full)

    monkeypatch.setattr(Database, "_open", opened)


def three(team: Team) -> tuple[Clone, dict[str, bytes]]:
    a, b = team.clone("a"), team.clone("b")
    a.write_all({f"files/{number}": b"old" for number in range(3)})
    a.sync()
    b.sync()
    new = {f"files/{number}": b"new" for number in range(3)}
    a.write_all(new)
    a.sync()
    return b, new


def test_f020_files_that_came_are_counted_though_the_proof_could_not_be_kept(
    team: Team, wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    b, new = three(team)
    intended: list[bool] = []
    from bayou.sync.transfer.intents import record_intents as real

    def intend(*arguments: Any) -> None:
        real(*arguments)
        intended.append(True)

    monkeypatch.setattr(pull_module, "record_intents", intend)
    with monkeypatch.context() as patch:
        fill(patch, lambda statement: bool(intended) and statement == "COMMIT")

        report = b.pull()

    assert b.files == new
    assert (report.pulled.files, report.exit_code) == (3, 0)
    assert any("proof could not be kept" in warning for warning in report.warnings)
    assert not b.status().in_sync
    wire.seen.clear()
    again = b.pull()
    assert (again.pulled.files, again.warnings, again.untracked) == (0, [], [])
    assert not wire.sent("get", UPLOADS)
    assert b.status().in_sync


def test_f020_without_room_for_the_intents_no_file_is_replaced(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    b, new = three(team)
    before = b.files
    with monkeypatch.context() as patch:
        fill(patch, lambda statement: "INTO intent" in statement)

        with pytest.raises(StateError, match="full") as raised:
            b.pull()

    assert "space" in (raised.value.hint or "")
    assert b.files == before
    assert b.pull().pulled.files == 3
    assert b.files == new
