"""Putting an index together again, from versions that can be read in parts and from what a store lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bayou.core.ids import ulid
from bayou.index.build import ChunkParams, build
from bayou.index.entry import Entry
from bayou.index.tree import IndexTree, names
from bayou.maintenance.damaged_index import Recovered, Version, Written, recover
from bayou.objectstore.transport import ObjectMeta
from tests.index.memory import MemoryNodes

PAIRS = ChunkParams(leaf_mod=1 << 60, leaf_max=2, branch_mod=1 << 60, branch_max=4)


def entry(name: str, size: int = 1) -> Entry:
    return Entry(f"files/{name}", ulid(), size, bytes([size]) * 32, f'"{size}"', None, 1)


def listed(row: Entry, at: int) -> ObjectMeta:
    return ObjectMeta(row.key, row.size, row.etag, row.version, at)


def version(rows: Iterable[Entry], at: int = 0, *, without: Sequence[int] = ()) -> Version:
    """A version of these rows, two to a leaf; some of its leaves are missing."""
    nodes = MemoryNodes()
    root = build(sorted(rows, key=lambda row: row.path), nodes, PAIRS)
    leaves = [name for name in names(IndexTree(nodes, root)) if nodes.nodes[name].level == 0]
    for number in without:
        del nodes.nodes[leaves[number]]
    return Version(nodes, root, at)


def recovered(
    newest: Sequence[Version],
    older: Sequence[Version] = (),
    *,
    mine: Iterable[Entry] = (),
    objects: Iterable[ObjectMeta] = (),
    trash: Iterable[str] = (),
    leaves: Sequence[Written] = (),
) -> Recovered:
    known = {row.path: row for row in mine}
    return recover(newest, older, known, list(objects), set(trash), lambda at: [one for one in leaves if one.at >= at])


A, B, C, D = (entry(name) for name in "abcd")
ALL = [A, B, C, D]


def rows(made: Recovered) -> list[Entry]:
    return sorted(made.rows.values(), key=lambda row: row.path)


def test_what_the_newest_version_shows_needs_no_other_witness() -> None:
    made = recovered([version(ALL)])

    assert rows(made) == ALL
    assert (made.older, made.found, made.gone, made.damage) == (set(), set(), [], [])


def test_a_copy_of_the_newest_version_fills_its_gaps_without_a_doubt() -> None:
    made = recovered([version(ALL, without=[0]), version(ALL, without=[1])], objects=[listed(entry("a", 9), 99)])

    assert rows(made) == ALL
    assert not made.older


def test_an_earlier_version_decides_only_what_is_out_of_sight() -> None:
    newer = entry("a", 2)

    made = recovered(
        [version([newer, B, C, D], without=[1])], [version(ALL, 5)], objects=[listed(row, 1) for row in ALL]
    )

    assert rows(made) == [newer, B, C, D]
    assert made.older == {"files/c", "files/d"}


def test_what_an_earlier_version_lacks_was_deleted_though_its_object_is_there() -> None:
    """Even if nobody knows when the versions were written: an object that an earlier one names is no news."""
    objects = [listed(row, 1) for row in ALL]

    made = recovered([], [version([A, B, C]), version(ALL)], objects=objects)

    assert rows(made) == [A, B, C]
    assert not made.gone


def test_an_object_that_came_after_the_version_that_is_left_gets_its_path() -> None:
    changed, new, before = entry("a", 2), entry("e"), entry("f")
    objects = [*(listed(row, 1) for row in ALL), listed(changed, 9), listed(new, 9), listed(before, 3)]

    made = recovered([], [version(ALL, 5)], objects=objects)

    assert [(row.path, row.push, row.sha256) for row in rows(made)] == [
        (changed.path, changed.push, None),
        *((row.path, row.push, row.sha256) for row in (B, C, D)),
        (new.path, new.push, None),
    ], "and what was left there before it is a leftover"
    assert made.found == {"files/a", "files/e"}


def test_a_slow_upload_is_told_by_a_leaf_that_came_later() -> None:
    slow, never = entry("e"), entry("f")
    objects = [*(listed(row, 1) for row in ALL), listed(slow, 3), listed(never, 3)]

    made = recovered([], [version(ALL, 5)], objects=objects, leaves=[Written([slow], 7), Written([never], 4)])

    assert rows(made) == [*ALL, slow], "with its hash, which the leaf knows"


def test_the_newest_of_several_objects_gets_the_path_and_a_plain_one_only_if_alone() -> None:
    first, second = entry("a", 2), entry("a", 3)
    plain = ObjectMeta("files/a", 7, '"7"', None, 99)
    lonely = ObjectMeta("files/z", 7, '"7"', None, 1)

    made = recovered([], objects=[listed(second, 9), listed(first, 8), plain, lonely], mine=[first, second])

    assert rows(made) == [second, Entry("files/z", None, 7, None, '"7"', None, 1)]


def test_what_is_in_the_trash_stays_out() -> None:
    plain = ObjectMeta("files/a", 7, '"7"', None, 99)

    assert rows(recovered([], objects=[plain], trash=["files/a"])) == []


def test_a_discovered_object_that_had_left_the_index_is_trash_again() -> None:
    found, kept = (Entry(f"files/{name}", None, 7, None, '"7"', None, 1) for name in ("found", "kept"))
    objects = [listed(row, 1) for row in (A, found, kept)]

    made = recovered([], [version([A, kept]), version([A, found, kept])], objects=objects)

    assert rows(made) == [A, kept]
    assert made.wasted == [found]


def test_what_should_be_there_and_has_no_object_is_told() -> None:
    other = entry("e")

    made = recovered([], [version([A, B], 5)], objects=[listed(A, 1)], mine=[A, B, other])

    assert rows(made) == [A]
    assert made.gone == [B, other]


def test_an_object_in_place_of_a_directory_is_told() -> None:
    plain, below = ObjectMeta("files/a", 1, '"1"', None, 1), entry("a/b")

    made = recovered([], objects=[plain, listed(below, 1)])

    assert list(made.rows) == ["files/a/b"]
    assert made.blocked == ["files/a"]
