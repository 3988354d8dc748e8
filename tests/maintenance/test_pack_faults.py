"""Bad packs, and what each command does about them: one bad file is one bad row, and a missing pack is no delete (V25).

Each fault is made in one pack of several. Every command brings or judges all other files, names the bad ones, and
deletes nothing; the tree that has the files mends the store.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from bayou.core.errors import SyncError
from bayou.index.entry import Entry
from bayou.objectstore import Store, keys
from bayou.packs.archive import PackBuilder
from tests import api
from tests.maintenance.damages import verify
from tests.maintenance.pack_damages import bytes_of, overwrite, packs_of, paths, small_files, with_packs
from tests.maintenance.setups import newcomer, set_up
from tests.sync.conftest import Clone, Team
from tests.sync.indexes import commit_rows, entries_of

pytestmark = pytest.mark.usefixtures("quick_probe")

FILES = small_files(60)

Fault = Callable[[Store, list[Entry]], list[Entry]]
"""Damages a pack, whose entries are given; returns the entries whose bytes cannot be had any more."""


def missing(store: Store, entries: list[Entry]) -> list[Entry]:
    store.delete([entries[0].key])
    return entries


def truncated(store: Store, entries: list[Entry]) -> list[Entry]:
    """The pack ends in the middle of its fifth file: those before it can still be read."""
    end = (entries[4].offset or 0) + 1
    store.put(entries[0].key, bytes_of(store, entries[0].key)[:end])
    return entries[4:]


def of_other_bytes(store: Store, entries: list[Entry]) -> list[Entry]:
    store.put(entries[0].key, bytes(keys.pack_bytes(entries[0].pack or "") or 0))
    return entries


def with_one_bad_file(store: Store, entries: list[Entry]) -> list[Entry]:
    overwrite(store, entries[3])
    return [entries[3]]


def outside(store: Store, entries: list[Entry]) -> list[Entry]:
    bad = [replace(entries[0], offset=1 << 45), replace(entries[1], stored=1 << 45), replace(entries[2], offset=-5)]
    commit_rows(store, {entry.path: entry for entry in bad})
    return bad


def overlapping(store: Store, entries: list[Entry]) -> list[Entry]:
    """Two rows claim bytes of other files; only the hash can tell."""
    bad = [replace(entries[0], offset=(entries[0].offset or 0) + 1), replace(entries[5], offset=entries[1].offset)]
    commit_rows(store, {entry.path: entry for entry in bad})
    return bad


def of_a_wrong_method(store: Store, entries: list[Entry]) -> list[Entry]:
    plain = next(entry for entry in entries if entry.method == 0)
    deflated = next(entry for entry in entries if entry.method == 8)
    bad = [replace(plain, method=8), replace(deflated, method=0), replace(entries[-1], method=99)]
    commit_rows(store, {entry.path: entry for entry in bad})
    return bad


def a_bomb(store: Store, entries: list[Entry]) -> list[Entry]:
    """A few kilobytes that would inflate to sixteen megabytes."""
    entry, builder = entries[0], PackBuilder()
    assert entry.push is not None
    assert entry.sha256 is not None
    builder.add(entry.path, entry.push, bytes(16 << 20), entry.sha256, entry.modified)
    pack = builder.finish()
    store.put(keys.pack(pack.name), pack.data)
    (member,) = pack.members
    size = max(entry.size, member.stored)
    bad = replace(entry, size=size, pack=pack.name, offset=member.offset, stored=member.stored, method=8)
    commit_rows(store, {entry.path: bad})
    return [bad]


def with_other_names(store: Store, entries: list[Entry]) -> list[Entry]:
    """Names in the archive do not matter: the index decides."""
    data = bytearray(bytes_of(store, entries[0].key))
    for entry in entries:
        assert entry.offset is not None
        data[entry.offset - len(entry.path) : entry.offset] = b"x" * len(entry.path)
    store.put(entries[0].key, bytes(data))
    return []


FAULTS = [
    missing,
    truncated,
    of_other_bytes,
    with_one_bad_file,
    outside,
    overlapping,
    of_a_wrong_method,
    a_bomb,
    with_other_names,
]
faults = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
stores = pytest.mark.parametrize("kind", ["team", "s3_team"])


@pytest.fixture
def scene(kind: str, fault: Fault, request: pytest.FixtureRequest) -> tuple[Team, Clone, list[str]]:
    """A team whose store has the fault, the clone that has all files, and the paths that cannot be had."""
    team: Team = request.getfixturevalue(kind)
    a = with_packs(team, FILES)
    bad = fault(team.store(), list(packs_of(team.store()).values())[1])
    return team, a, paths(bad)


@stores
@faults
def test_a_pull_brings_the_good_files_names_the_bad_ones_and_deletes_nothing(
    scene: tuple[Team, Clone, list[str]], fault: Fault
) -> None:
    team, a, bad = scene
    fresh = team.clone("fresh")

    report = fresh.pull()

    named = {*report.missing, *(one.path for one in report.failed), *(one.path for one in report.refused)}
    assert sorted(named) == bad
    assert fresh.files.keys() == a.files.keys() - set(bad)
    assert all(fresh.files[path] == a.files[path] for path in fresh.files)
    assert report.pulled.deleted == 0
    if fault in (missing, truncated, of_other_bytes, with_one_bad_file):
        assert report.exit_code == 1


@stores
@faults
def test_a_peer_that_has_the_files_keeps_them(scene: tuple[Team, Clone, list[str]]) -> None:
    """K17: neither a pack that is gone nor a row that makes no sense is a delete."""
    team, a, _ = scene
    before, anew = a.files, team.clone("anew")
    for path, data in before.items():
        anew.lay(path, data)

    reports = [a.sync(), a.sync(), anew.pull()]

    assert [(report.pulled.deleted, report.pushed.deleted) for report in reports] == [(0, 0)] * 3
    assert a.files == anew.files == before
    assert entries_of(team.store()).keys() == before.keys()


@stores
@faults
def test_hydration_fetches_what_is_good_and_names_a_bad_file(scene: tuple[Team, Clone, list[str]]) -> None:
    team, a, bad = scene
    lazy = team.clone("lazy", hydrate="lazy")
    lazy.pull()
    good = next(path for path in sorted(FILES) if path not in bad)

    api.hydrate(lazy.repo, good)
    assert lazy.files[good] == a.files[good]
    if not bad:
        api.hydrate(lazy.repo, None)
        assert lazy.files == a.files
        return
    entries = entries_of(team.store())
    # A refused row is absent because it is refused, and not because the tree is lazy.
    fetched = [path for path in bad if entries[path].refusal() is None]
    for path in fetched[:1]:
        for target in (path, None):
            with pytest.raises(SyncError, match=path):
                api.hydrate(lazy.repo, target)
    if not fetched:
        api.hydrate(lazy.repo, None)
    assert a.files.keys() - set(bad) <= lazy.files.keys()
    assert all(lazy.files[path] == a.files[path] for path in lazy.files)


@stores
@faults
def test_verify_names_the_bad_files_and_repair_mends_them_from_a_tree_that_has_them(
    scene: tuple[Team, Clone, list[str]], fault: Fault
) -> None:
    team, a, bad = scene
    store = team.store()
    pushes = {path: entry.push for path, entry in entries_of(store).items()}

    shallow, deep = verify(a), verify(a, deep=True)

    named = {*deep.missing, *deep.changed, *(row.path for row in deep.unsafe)}
    if fault is truncated:
        assert named >= set(bad), "of a pack of another size, all files are suspects"
    else:
        assert sorted(named) == bad
    assert deep.ok == (not bad)
    if fault in (missing, truncated, outside):
        assert not shallow.ok
    assert (deep.checked + len(deep.unsafe), deep.damaged) == (len(a.files), [])

    mended = verify(a, deep=True, repair=True)

    if fault is a_bomb:  # the row claims another size, so that no tree has such a file
        assert (mended.changed, mended.repaired) == (bad, 0)
        verify(a, forget=bad)
        assert verify(a, deep=True).ok
        return
    assert (mended.ok, mended.repaired) == (True, len(named))
    assert {path: entry.push for path, entry in entries_of(store).items()} == pushes
    fresh = team.clone("fresh")
    assert fresh.pull().exit_code == 0
    assert fresh.files == a.files


@stores
@faults
def test_setup_takes_what_is_good_names_the_rest_and_fails(scene: tuple[Team, Clone, list[str]], fault: Fault) -> None:
    team, a, bad = scene
    fresh = newcomer(team, "fresh", {"files/own": "own"})

    report = set_up(fresh, team)

    assert fresh.files.keys() == (a.files.keys() - set(bad)) | {"files/own"}
    told = [*report.warnings, *(one.path for one in report.refused)]
    assert any(path in text for path in bad for text in told) == bool(bad)
    unreadable = {*report.missing, *(one.path for one in report.failed)}
    assert sorted(unreadable | {one.path for one in report.refused}) == bad
    assert report.exit_code == (1 if unreadable else 0)
    if fault in (missing, truncated, of_other_bytes, with_one_bad_file):
        assert report.exit_code == 1
    assert fresh.repo.config.datastore.url == team.url
