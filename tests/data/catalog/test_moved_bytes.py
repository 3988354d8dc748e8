"""P4: a file whose bytes only lie elsewhere in the store has not changed: no feed, catalog, plan or tree says so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from bayou.data.catalog import derive, follow_store
from bayou.state.change_feed import ChangeFeed, CursorRows
from bayou.state.connection import Connection
from tests import api
from tests.data.catalog.scene import REPORT, age, catalog_of, listed, metadata, write
from tests.packs.moving import drop_packs, entries_of, move
from tests.sync.conftest import Clone, Team, Wire, wire

__all__ = ["wire"]


def two_clones(team: Team, hydrate: str = "full", *, old: bool = False) -> tuple[Clone, Clone]:
    """Make two clones with the same five records, and list both; with `old`, the files are old when they are listed."""
    one, two = team.clone("one"), team.clone("two", hydrate=hydrate)
    write(one.repo, *(metadata(REPORT, f"n{at}", 1) for at in range(5)))
    one.sync()
    two.sync()
    for clone in (one, two):
        if old:
            age(clone.repo)
        assert len(listed(clone.repo)) == 5
    return one, two


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The records that a refresh of a catalog reads."""
    seen: list[str] = []

    def watched(root: Path, paths: Iterable[str]) -> Iterator[derive.RecordRead | derive.MissingFile]:
        wanted = list(paths)
        seen.extend(wanted)
        return derive.read_all(root, wanted)

    monkeypatch.setattr(follow_store, "read_all", watched)
    return seen


def test_p4_a_pull_of_moved_files_changes_base_and_nothing_else(team: Team, wire: Wire) -> None:
    _, two = two_clones(team)
    before = two.files
    moved = move(team.store())
    wire.seen.clear()

    assert two.sync(dry_run=True).actions == []
    report = two.sync()

    assert (report.pulled.files, report.pulled.bytes, report.pulled.deleted) == (0, 0, 0)
    assert wire.sent("get", "packs/") == []
    assert two.files == before
    again = two.sync()
    assert again.requests.total == 1, "base has the head's rows, and its ETag (P5)"
    drop_packs(team.store(), moved.values())
    assert two.sync().pulled.files == 0


def test_p4_the_feed_reports_no_moved_file(team: Team) -> None:
    _, two = two_clones(team)
    feed = ChangeFeed(Connection(two.repo))
    before, rows = feed.cursor, feed.cursor_rows()
    moved = move(team.store(), list(entries_of(team.store()))[:4])
    assert len(moved) == 4
    two.sync()

    feed = ChangeFeed(Connection(two.repo))
    changes = feed.changed_since(before, lambda: rows)

    assert feed.cursor.root != before.root, "base has other rows"
    assert changes is not None
    assert (changes.paths, changes.below) == (frozenset(), frozenset())


def test_p4_the_feed_reports_what_changed_beside_what_moved(team: Team) -> None:
    one, two = two_clones(team)
    feed = ChangeFeed(Connection(two.repo))
    before = feed.cursor
    move(team.store())
    new = metadata(REPORT, "n1", 2)
    one.sync()
    write(one.repo, new)
    one.sync()
    two.sync()

    feed = ChangeFeed(Connection(two.repo))
    changes = feed.changed_since(before, CursorRows)

    assert changes is not None
    assert changes.paths == {new.location.metadata, new.location.raw}


def test_p4_a_catalog_rereads_no_record_that_only_moved(team: Team, read: list[str]) -> None:
    # A record that was too young when it was read, so that its stat had not settled, is read once more in any case.
    _, two = two_clones(team, old=True)
    with catalog_of(two.repo) as catalog:
        assert catalog._file.read(follow_store._fresh) == set()
    before = ChangeFeed(Connection(two.repo)).cursor
    move(team.store())
    two.sync()
    assert ChangeFeed(Connection(two.repo)).cursor.root != before.root, "so a refresh has something to follow"

    with catalog_of(two.repo) as catalog:
        refreshed = catalog.refresh()

    assert (refreshed.rebuilt, refreshed.changed, read) == (None, 0, [])
    assert len(listed(two.repo)) == 5


def test_p4_lazy_content_that_moved_stays_in_the_store_and_can_be_read_there(team: Team, wire: Wire) -> None:
    _, two = two_clones(team, hydrate="lazy")
    lazy = {path for path in entries_of(team.store()) if path.endswith("/raw")}
    before = two.files
    assert not lazy & before.keys()
    drop_packs(team.store(), move(team.store()).values())
    wire.seen.clear()

    two.sync()

    assert two.files == before
    assert wire.sent("get", "packs/") == []
    two.sync()
    assert two.files == before, "a walk finds nothing missing"
    assert api.hydrate(two.repo, None).files == len(lazy)
    assert len(two.files) == len(before) + len(lazy)


def test_p4_a_journaled_change_of_a_file_that_moved_is_no_conflict(team: Team) -> None:
    one, two = two_clones(team)
    path = metadata(REPORT, "n3", 1).location.metadata
    two.write(path, metadata(REPORT, "n3", 1, tags={"a": "b"}).to_bytes())
    move(team.store())

    report = two.sync()

    assert (report.conflicts, report.pushed.files) == ([], 1)
    one.sync()
    assert one.files[path] == two.files[path]
