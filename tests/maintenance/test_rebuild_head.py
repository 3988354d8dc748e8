"""Heads that are lost, or no heads any more, and how the index comes back."""

from __future__ import annotations

from typing import Any

import pytest

from bayou.core.errors import HeadCorrupt, HeadLost, NotFound, StoreSwapped
from bayou.index.log import LogRow, read_page
from bayou.objectstore import Store, keys
from tests import api
from tests.maintenance.damages import FILES, SOME, objects, ready, repair, small_nodes, verify
from tests.sync.conftest import Clone, Team, Wire
from tests.sync.indexes import entries_of, head_of

__all__ = ["ready", "small_nodes"]


def garbage(data: bytes) -> bytes:
    return b"<html>502 Bad Gateway</html>"


def empty(data: bytes) -> bytes:
    return b""


def truncated(data: bytes) -> bytes:
    return data[: len(data) * 2 // 3]


def one_wrong_field(data: bytes) -> bytes:
    return data.replace(b'"gc":{"count":0', b'"gc":{"count":"none"')


@pytest.mark.parametrize("harm", [garbage, empty, truncated, one_wrong_field])
def test_a_corrupt_head_is_rebuilt_by_whoever_knew_it(team: Team, ready: tuple[Clone, Clone], harm: Any) -> None:
    a, b = ready
    store = team.store()
    before, entries = head_of(store).head, entries_of(store)
    fetched = store.get(keys.HEAD)
    assert fetched is not None
    store.put(keys.HEAD, harm(bytes(fetched.data)))
    damaged = objects(team)
    for attempt in (b.pull, b.sync, lambda: verify(b), lambda: api.collect(b.repo, dry_run=False, grace_s=0)):
        with pytest.raises(HeadCorrupt) as raised:
            attempt()
        assert raised.value.exit_code == 4
        assert "verify --repair" in (raised.value.hint or "")
    assert objects(team) == damaged, "nothing was written"

    report = repair(b)

    assert report.ok
    assert report.repaired >= 1
    after = head_of(store).head
    assert entries_of(store) == entries
    assert (after.store, after.seq) == (before.store, before.seq + 1)
    assert after.gc.count != before.gc.count, "pushes under way look at their uploads again"
    assert repair(b).repaired == 0
    for clone in (a, b):
        pulled = clone.pull()
        assert (pulled.pulled.files, pulled.pulled.deleted, pulled.exit_code) == (0, 0, 0)
        assert clone.sync().engine == "fast"
    a.write(SOME, "goes on")
    a.sync()
    b.sync()
    assert b.files[SOME] == b"goes on"


def test_a_corrupt_head_that_still_names_its_root_is_rebuilt_by_anybody(team: Team, ready: tuple[Clone, Clone]) -> None:
    store = team.store()
    before, entries = head_of(store).head, entries_of(store)
    fetched = store.get(keys.HEAD)
    assert fetched is not None
    store.put(keys.HEAD, truncated(bytes(fetched.data)))

    report = repair(team.clone("c"))

    assert report.ok
    assert not report.warnings, "nothing is in doubt: digests prove the root"
    assert entries_of(store) == entries
    assert head_of(store).head.store == before.store


def test_a_rebuilding_by_somebody_who_is_behind_loses_nothing_that_others_have_pushed(
    team: Team, ready: tuple[Clone, Clone]
) -> None:
    a, b = ready
    a.write(SOME, "newer")
    a.write("files/new", "new")
    a.sync()
    store = team.store()
    expected = {path: row.push for path, row in entries_of(store).items()}
    store.put(keys.HEAD, b"garbage")

    report = repair(b)

    assert report.ok
    assert {path: row.push for path, row in entries_of(store).items()} == expected
    pulled = a.pull()
    assert (pulled.pulled.files, pulled.pulled.deleted, pulled.exit_code) == (0, 0, 0)
    assert a.files[SOME] == b"newer"
    assert b.pull().pulled.files == 2
    assert b.files == a.files


def test_a_lazy_tree_in_a_namespace_rebuilds_what_it_knows_and_fetches_nothing_for_it(team: Team, wire: Wire) -> None:
    a = team.clone("a", namespace="infra")
    lazy = team.clone("lazy", namespace="infra", hydrate="lazy")
    a.write_all({f"data/t/m/n/{number}/{name}": b"x" for number in range(1, 9) for name in ("raw", "metadata.yaml")})
    a.sync()
    lazy.sync()
    store, here = team.store("infra"), lazy.files
    entries = entries_of(store)
    store.put(keys.HEAD, b"garbage")

    assert repair(lazy).ok

    assert entries_of(store) == entries
    wire.seen.clear()
    assert lazy.pull().pulled.files == 0
    assert lazy.files == here
    assert lazy.status().in_sync
    assert a.sync().exit_code == 0
    assert not wire.sent("get", "~")


def test_a_lost_head_is_an_error_until_somebody_rebuilds_it(team: Team, ready: tuple[Clone, Clone]) -> None:
    a, b = ready
    a.delete("files/00")
    a.sync()
    b.sync()
    store, entries = team.store(), entries_of(team.store())
    store.delete([keys.HEAD])
    c = team.clone("c")
    for attempt in (c.pull, c.sync, lambda: verify(c), lambda: verify(b)):
        with pytest.raises(HeadLost) as raised:
            attempt()
        assert raised.value.exit_code == 4

    report = repair(b)

    assert report.ok
    assert entries_of(store) == entries, "what was deleted, and not collected yet, stays deleted"
    assert a.pull().pulled.files == 0
    assert c.pull().pulled.files == len(entries)


@pytest.mark.parametrize("left", ["nodes", "packs", "objects"])
def test_a_lost_head_can_be_rebuilt_by_a_newcomer_who_knows_nothing(
    team: Team, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if left == "objects":
        monkeypatch.setenv("BAYOU_PACK_BELOW", "0")
    a, b = team.clone("a"), team.clone("b")
    a.write_all(FILES)
    a.sync()
    b.sync()
    store, expected = team.store(), entries_of(team.store())
    store.put(keys.payload("files/plain", None), b"was there before")
    doomed = [
        key for key in objects(team) if key.startswith(".bayou") and f"/{left}/" not in key and "/packs/" not in key
    ]
    store.delete([keys.as_listed(key) for key in doomed])
    c = team.clone("c")
    c.write("files/of c", "1")
    for attempt in (c.pull, c.push, lambda: verify(c)):
        with pytest.raises(HeadLost):
            attempt()

    report = repair(c)

    assert report.ok
    assert any("it is not known whether they were committed" in warning for warning in report.warnings)
    assert report.attested == (sorted(FILES) if left == "packs" else [])
    found = entries_of(store)
    assert found.keys() == {*FILES, "files/plain"}
    if left == "objects":
        assert all(row.sha256 is None for row in found.values())
    else:
        assert found.items() >= expected.items(), "leaves tell the hashes, and so do packs"
    for clone in (a, b):
        with pytest.raises(StoreSwapped, match="another store"):
            clone.pull()
        assert clone.files == FILES, "nobody could tell the old id, so peers are asked first"
    assert verify(a, deep=True, repair=True).repaired == sum(row.sha256 is None for row in found.values())
    assert all(row.sha256 is not None for row in entries_of(store).values()), "a deep repair records hashes"


def test_p9_pages_of_a_log_alone_show_that_there_was_a_head_and_a_repair_makes_one(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bayou.index.head.PAGE_ROWS", 2)
    a = team.clone("a")
    for number in range(6):
        a.write(SOME, f"{number}")
        a.sync()
    store = team.store()
    store.delete([keys.as_listed(key) for key in objects(team) if not key.startswith(f"{keys.LOGS}/")])
    store.put(keys.payload("files/plain", None), b"was there before")
    c = team.clone("c")
    for attempt in (c.pull, c.push, lambda: verify(c)):
        with pytest.raises(HeadLost, match=str(keys.LOGS)):
            attempt()
    with pytest.raises(NotFound):
        store.head(keys.HEAD)

    assert repair(c).ok

    assert entries_of(store).keys() == {"files/plain"}
    assert c.pull().pulled.files == 1


def test_a_store_that_never_had_a_head_is_not_rebuilt(team: Team) -> None:
    team.store().put(keys.payload("files/plain", None), b"was there before")
    c = team.clone("c")
    before = objects(team)

    for report in (verify, repair):
        with pytest.raises(NotFound, match="no index yet"):
            report(c)

    assert objects(team) == before


def test_a_corrupt_head_keeps_its_numbers_and_its_log(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayou.index.head.PAGE_ROWS", 2)
    a = team.clone("a")
    for number in range(6):
        a.write(SOME, f"{number}")
        a.sync()
    store = team.store()
    seqs = [row.seq for row in api.log(a.repo, 100)]
    fetched = store.get(keys.HEAD)
    assert fetched is not None

    store.put(keys.HEAD, one_wrong_field(bytes(fetched.data)))
    assert repair(team.clone("b")).ok
    assert [row.seq for row in api.log(a.repo, 100)] == [seqs[0] + 1, *seqs], "what could be read goes on"

    store.put(keys.HEAD, b"garbage")
    assert repair(team.clone("c")).ok
    assert head_of(store).head.seq > max(row.seq for row in pages_of(store)), "pages tell how far it had come"
    assert entries_of(store)[SOME].sha256 is not None
    assert team.clone("d").pull().exit_code == 0


def pages_of(store: Store) -> list[LogRow]:
    names = [keys.parse_log_page(meta.key) for page in store.list(keys.LOGS) for meta in page]
    return [row for name in names if name is not None for row in read_page(store, name).rows]
