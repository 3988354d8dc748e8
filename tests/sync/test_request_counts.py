"""V16: cost follows the change. Requests and bytes are counted at the server, for a small index and a large one."""

from __future__ import annotations

import hashlib
import os

import pytest

from bayou.core.ids import ulid
from bayou.index.build import build
from bayou.index.entry import Entry
from bayou.index.head import create_head, first_head
from bayou.index.log import Tally
from bayou.index.node_store import StoreSink
from bayou_testing.proxy import HttpProxy
from tests import api
from tests.sync.conftest import Clone, Team

pytestmark = [pytest.mark.s3, pytest.mark.timeout(600)]


def synthetic(team: Team, entries: int) -> int:
    """Publish an index of so many entries, in packs that are not there; return its levels."""
    store, commit, push = team.store(), ulid(), ulid()
    packs = [f"{ulid()}-8400000" for _ in range(entries // 1600 + 1)]
    rows = (
        Entry(
            f"data/t/model-{number // 2000:03}/item-{number:06}/1/raw",
            push,
            5_000,
            hashlib.sha256(number.to_bytes(4, "big")).digest(),
            None,
            None,
            1_700_000_000_000 + number,
            None,
            packs[number // 1600],
            (number % 1600) * 5_100 + 80,
            5_000,
            0,
        )
        for number in range(entries)
    )
    root = build(rows, StoreSink(store, commit))
    assert root is not None
    head = first_head(
        store="7b0c7c1e-3f43-4f0e-9c60-0a4b8f8b2b11",
        commit=commit,
        at="2031-05-04T08:00:00.000Z",
        by="test@host",
        root=root,
        tally=Tally(added=entries, bytes=root.bytes),
    )
    create_head(store, head)
    return root.level + 1


def lazy(team: Team, name: str) -> Clone:
    """A clone that knows the whole index and has none of its content."""
    clone = team.clone(name, hydrate="lazy")
    clone.pull(engine="point")
    return clone


@pytest.mark.parametrize("entries", [1_000, 100_000])
def test_f122_f123_one_change_costs_the_same_in_a_small_and_in_a_large_store(
    s3_team: Team, proxy: HttpProxy, entries: int
) -> None:
    levels = synthetic(s3_team, entries)
    beyond = max(0, levels - 2)
    a, b = lazy(s3_team, "a"), lazy(s3_team, "b")
    a.write("files/x", "one")
    a.sync()
    b.sync()

    for clone in (a, b):
        proxy.log.clear()
        report = clone.sync()
        assert report.engine == "fast"
        assert [row.method for row in proxy.log.rows()] == ["GET"], "a no-op is one request, and no node is read"
        assert report.requests.total == 1

    a.write("files/x", "two" * 500)
    proxy.log.clear()
    assert a.push(walk=False).pushed.files == 1
    assert proxy.log.count() <= 6 + beyond
    written = proxy.log.rows(method="PUT", path=r"/nodes/")
    assert len(written) <= levels + 1, "about one node for each level"
    sent = sum(row.received for row in proxy.log.rows(method="PUT"))
    received = sum(row.sent for row in proxy.log.rows())
    assert sent + received - 1_500 <= 300_000

    proxy.log.clear()
    assert b.pull(walk=False).pulled.files == 1
    assert proxy.log.count() <= 5 + beyond
    assert not proxy.log.writes(), "V15: a pull writes nothing to the store"
    assert b.files == a.files == {"files/x": b"two" * 500}


def tree_of(clone: Clone, files: int) -> None:
    """Put files of 5 KB into the tree by hand, two to a version, as records are."""
    block = os.urandom(10_000)
    for number in range(files):
        item = number // 2
        path = clone.repo.tree_root / f"data/bench/m{item % 50}/n{item}/1/{('raw', 'metadata.yaml')[number % 2]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(number.to_bytes(8, "big") + block[number % 5000 : number % 5000 + 4992])


@pytest.mark.parametrize("entries", [1_000, 100_000])
def test_ten_thousand_new_files_are_pushed_and_pulled_with_forty_requests_each(
    s3_team: Team, proxy: HttpProxy, entries: int
) -> None:
    synthetic(s3_team, entries)
    a, b = lazy(s3_team, "a"), lazy(s3_team, "b")
    tree_of(a, 10_000)
    proxy.log.clear()

    report = a.push(adopt=True)

    assert report.pushed.files == 10_000
    assert len(proxy.log.rows(method="PUT")) <= 40
    assert len(proxy.log.rows(method="PUT", path=r"/packs/")) <= 7
    assert not proxy.log.rows(method="PUT", path=r"/data/"), "no file is an object of its own"

    proxy.log.clear()
    pulled = b.pull()
    api.hydrate(b.repo, "data/bench")
    assert pulled.pulled.files + len(list((b.repo.tree_root / "data/bench").rglob("raw"))) >= 10_000
    assert len(proxy.log.rows(method="GET")) <= 40
    assert not proxy.log.writes(), "V15"
    wanted = {path: data for path, data in a.files.items() if path.startswith("data/bench/")}
    assert {path: data for path, data in b.files.items() if path.startswith("data/bench/")} == wanted


def test_a_new_clone_gets_ten_thousand_files_with_forty_requests(s3_team: Team, proxy: HttpProxy) -> None:
    """The clone knows nothing yet: it reads the head, every node and every file."""
    a = s3_team.clone("a")
    tree_of(a, 10_000)
    assert a.push(adopt=True).pushed.files == 10_000
    fresh = s3_team.clone("fresh")
    assert fresh.files == {}
    proxy.log.clear()

    report = fresh.pull()

    assert (report.pulled.files, report.exit_code) == (10_000, 0)
    assert proxy.log.rows(method="GET", path=r"/nodes/"), "no node was in a cache"
    assert len(proxy.log.rows(method="GET")) <= 40
    assert {row.method for row in proxy.log.rows()} <= {"GET", "HEAD"}, "V15"
    assert fresh.files == a.files


@pytest.mark.parametrize("entries", [1_000, 100_000])
def test_one_changed_file_is_pushed_with_five_requests_and_pulled_with_four(
    s3_team: Team, proxy: HttpProxy, entries: int
) -> None:
    synthetic(s3_team, entries)
    a, b = lazy(s3_team, "a"), lazy(s3_team, "b")
    a.write("files/x", "one")
    a.sync()
    b.sync()
    a.write("files/x", "two")
    proxy.log.clear()
    assert a.push(walk=False).pushed.files == 1
    assert proxy.log.count() <= 5
    proxy.log.clear()
    assert b.pull(walk=False).pulled.files == 1
    assert proxy.log.count() <= 4
