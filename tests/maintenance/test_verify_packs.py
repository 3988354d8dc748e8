"""Verify where small files lie in packs: each pack is listed once, read once, and judged file by file (P8)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from bayou.core.errors import AccessDenied
from bayou.core.ids import ulid
from bayou.index import check
from bayou.index.entry import Entry
from bayou.index.node_store import StoreNodes
from bayou.index.tree import IndexTree, names
from bayou.maintenance import verify_job, verify_rules
from bayou.objectstore import Store, keys
from bayou.packs.archive import PackBuilder
from bayou_testing.faulty import Fault
from bayou_testing.proxy import HttpProxy
from tests.maintenance.damages import verify
from tests.maintenance.pack_damages import (
    LARGE,
    bytes_of,
    overwrite,
    packs_of,
    paths,
    reading,
    small_files,
    with_packs,
)
from tests.packs.moving import drop_packs, move
from tests.sync.conftest import Clone, Team, Wire
from tests.sync.indexes import commit_rows, entries_of, head_of

FILES = small_files()

pytestmark = pytest.mark.usefixtures("quick_probe")


@pytest.fixture
def clone(team: Team) -> Clone:
    return with_packs(team, FILES)


@pytest.fixture
def store(team: Team) -> Store:
    return team.store()


def test_packs_are_listed_once_and_not_read(team: Team, wire: Wire) -> None:
    clone = with_packs(team, FILES)
    wire.seen.clear()

    report = verify(clone)

    assert (report.ok, report.checked, report.leftovers) == (True, len(FILES) + 1, 0)
    assert len(wire.sent("list", r"^\.bayou/packs")) == 1
    assert not wire.sent("get", "packs|~"), "nothing is read"
    assert not wire.sent("head"), "nor requested by name"


@pytest.mark.parametrize("batch", [20_000, 50])
def test_a_deep_verify_reads_each_byte_of_a_pack_once(
    team: Team, clone: Clone, store: Store, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    monkeypatch.setattr("bayou.maintenance.verify_compare.PACKED_BATCH", batch)
    packs = packs_of(store)
    assert len(packs) == 3

    with reading(monkeypatch) as spans:
        report = verify(clone, deep=True)

    assert report.ok
    assert len(spans) == (3 if batch > len(FILES) else 5), "one request for a pack, and one more at the end of a batch"
    for pack, entries in packs.items():
        read = sorted(span[1:] for span in spans if span[0] == keys.pack(pack))
        assert all(end <= start for (_, end), (start, _) in pairwise(read)), "no byte twice"
        assert sum(end - start for start, end in read) <= (keys.pack_bytes(pack) or 0)
        assert (read[0][0], read[-1][1]) == (entries[0].offset, (entries[-1].offset or 0) + (entries[-1].stored or 0))


def test_a_deep_verify_of_a_bucket_takes_one_request_for_each_pack(s3_team: Team, proxy: HttpProxy) -> None:
    clone = with_packs(s3_team, FILES)
    proxy.log.clear()

    assert verify(clone, deep=True).ok

    read = proxy.log.rows(method="GET", path=r"/packs/.*\.zip$")
    assert len(read) == 3
    assert sum(row.sent for row in read) <= sum(keys.pack_bytes(pack) or 0 for pack in packs_of(s3_team.store()))


def test_a_missing_pack_is_a_missing_object_for_each_of_its_files(clone: Clone, store: Store) -> None:
    pack, entries = next(iter(packs_of(store).items()))
    store.delete([keys.pack(pack)])

    for deep in (False, True):
        report = verify(clone, deep=deep)
        assert (report.missing, report.changed, report.ok) == (paths(entries), [], False)
        assert report.checked == len(FILES) + 1


def test_a_pack_that_the_listing_lacks_is_requested_by_name_once(
    team: Team, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V4: a listing may lag behind; only "no such key" means missing."""
    clone, store = with_packs(team, FILES), team.store()
    gone, *others = packs_of(store)
    store.delete([keys.pack(gone)])
    monkeypatch.setattr(verify_rules.PackListing, "of", lambda _: verify_rules.PackListing())
    wire.seen.clear()

    report = verify(clone)

    assert report.missing == paths(packs_of(store)[gone])
    assert sorted(wire.sent("head", "packs")) == sorted(keys.pack(pack) for pack in (gone, *others))

    wire.cut(Fault("head", "packs", error=lambda: AccessDenied("403")))
    with pytest.raises(AccessDenied):
        verify(clone)


@pytest.mark.parametrize("size", ["shorter", "longer", "empty"])
def test_a_pack_of_another_size_than_its_name_says_is_changed_with_all_its_files(
    clone: Clone, store: Store, size: str
) -> None:
    pack, entries = next(iter(packs_of(store).items()))
    data = bytes_of(store, keys.pack(pack))
    store.put(keys.pack(pack), {"shorter": data[:-1], "longer": data + b"x", "empty": b""}[size])

    for deep in (False, True):
        report = verify(clone, deep=deep)
        assert (report.missing, report.changed, report.leftovers) == ([], paths(entries), 0)


def test_only_a_deep_verify_finds_other_bytes_and_only_in_the_files_that_have_them(clone: Clone, store: Store) -> None:
    first, second, *_ = packs_of(store).values()
    bad = [first[0], first[7], second[-1]]
    for entry in bad:
        overwrite(store, entry)

    assert verify(clone).ok
    report = verify(clone, deep=True)
    assert (report.changed, report.missing) == (paths(bad), [])


def test_a_pack_that_no_entry_names_is_a_leftover(clone: Clone, store: Store) -> None:
    store.put(keys.pack(f"{ulid()}-3"), b"123")
    store.put(keys.pack(f"{ulid()}-4"), b"of another size")
    store.put(keys.as_listed(".bayou/packs/notes.txt"), b"no pack at all")
    entries = entries_of(store)
    packs = packs_of(store)
    commit_rows(store, {path: None for path, entry in entries.items() if entry.pack == next(iter(packs))})

    report = verify(clone)

    assert (report.ok, report.leftovers) == (True, 3), "two that were never named, and one that is not named any more"


def test_a_pack_that_a_damaged_node_may_name_is_no_leftover(
    team: Team, clone: Clone, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(keys.pack(f"{ulid()}-3"), b"123")
    (name, *_) = names(IndexTree(StoreNodes(store), head_of(store).head.root))
    assert verify(clone).leftovers == 1
    store.delete([keys.node(name)])

    report = verify(clone)

    assert (report.leftovers, len(report.damaged)) == (0, 1)


def test_p7_files_that_were_moved_while_verify_ran_are_not_damage(
    clone: Clone, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction, the grace, and a collection fall between the reading of the head and the listing."""
    kept = next(iter(packs_of(store)))

    def outlined(*arguments: Any) -> Any:
        done = real_outline(*arguments)
        if not moved:
            moved.append(True)
            old = move(store, [path for path, entry in entries_of(store).items() if entry.pack not in (None, kept)])
            drop_packs(store, old.values())
        return done

    real_outline = check.outline
    moved: list[object] = []
    monkeypatch.setattr(verify_job, "outline", outlined)

    for deep in (True, False):
        moved.clear()
        report = verify(clone, deep=deep)
        assert (report.ok, report.missing, report.totals) == (True, [], {})
    store.delete([keys.pack(kept)])
    moved.clear()
    report = verify(clone)
    assert report.missing == paths([entry for entry in entries_of(store).values() if entry.pack == kept]), "damage"


def test_a_location_that_no_client_writes_is_unsafe_and_is_not_read(team: Team, wire: Wire) -> None:
    clone, store = with_packs(team, FILES), team.store()
    entries = [entry for entry in entries_of(store).values() if entry.pack is not None]
    size = keys.pack_bytes(entries[0].pack or "") or 0
    odd: list[Entry] = [
        replace(entries[0], offset=size),
        replace(entries[1], offset=-1),
        replace(entries[2], stored=1 << 40),
        replace(entries[3], method=12),
        replace(entries[4], pack="../../etc/passwd"),
        replace(entries[5], pack=None),
        replace(entries[6], at="elsewhere"),
        replace(entries[7], size=1 << 40),
    ]
    commit_rows(store, {entry.path: entry for entry in odd})
    wire.seen.clear()

    report = verify(clone, deep=True)

    assert [row.path for row in report.unsafe] == sorted(entry.path for entry in odd)
    assert (report.missing, report.changed, report.ok) == ([], [], False)
    assert not [one for one in wire.seen if "passwd" in one.key or "elsewhere" in one.key]


def test_names_and_directory_of_the_archive_do_not_matter(clone: Clone, store: Store) -> None:
    """The index decides: a pack with other names, or none, and overlapping entries is well if the bytes are."""
    pack, entries = next(iter(packs_of(store).items()))
    data = bytearray(bytes_of(store, keys.pack(pack)))
    for entry in entries:
        assert entry.offset is not None
        name = entry.path.encode()
        data[entry.offset - len(name) : entry.offset] = bytes(reversed(name))
    end = (entries[-1].offset or 0) + (entries[-1].stored or 0)
    data[end:] = bytes(len(data) - end)
    store.put(keys.pack(pack), bytes(data))
    inside = replace(entries[1], path="files/inside")
    commit_rows(store, {"files/inside": inside})

    assert verify(clone, deep=True).ok


def test_a_bomb_is_one_changed_file(clone: Clone, store: Store) -> None:
    builder = PackBuilder()
    builder.add("files/bomb", ulid(), b"\0" * (8 << 20), b"\0" * 32, 1)
    pack = builder.finish()
    (member,) = pack.members
    store.put(keys.pack(pack.name), pack.data)
    bomb = Entry(
        "files/bomb", member.push, 70_000, b"\1" * 32, None, None, 1, None, pack.name, member.offset, member.stored, 8
    )
    commit_rows(store, {bomb.path: bomb})

    assert verify(clone, deep=True).changed == ["files/bomb"]


def test_a_changed_object_is_found_beside_packs(clone: Clone, store: Store) -> None:
    overwrite(store, entries_of(store)[LARGE])

    assert verify(clone).changed == [LARGE]
