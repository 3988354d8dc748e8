"""V16: cost follows the change. Requests and bytes are counted at the server, for a small index and a large one."""

from __future__ import annotations

import hashlib

import pytest

from bayou.core.ids import ulid
from bayou.index.build import build
from bayou.index.entry import Entry
from bayou.index.head import create_head, first_head
from bayou.index.log import Tally
from bayou.index.node_store import StoreSink
from bayou_testing.proxy import HttpProxy
from tests.sync.conftest import Clone, Team

pytestmark = pytest.mark.s3


def synthetic(team: Team, entries: int) -> int:
    """Publish an index of so many entries, whose objects nobody will ask for; return its levels."""
    store, commit, push = team.store(), ulid(), ulid()
    rows = (
        Entry(
            f"data/t/model-{number // 2000:03}/item-{number:06}/1/raw",
            push,
            5_000,
            hashlib.sha256(number.to_bytes(4, "big")).digest(),
            f'"{number:032x}"',
            None,
            1_700_000_000_000 + number,
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
