"""Putting an index together again, from versions that can be read in parts and from what a store lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from bayou.core.ids import ulid
from bayou.index.build import ChunkParams, build
from bayou.index.entry import Entry
from bayou.index.tree import IndexTree, names
from bayou.maintenance.pack_witness import NO_PACKS, PackWitness
from bayou.maintenance.recover import DatedLeaf, Recovered, Version, recover
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
    leaves: Sequence[DatedLeaf] = (),
    packs: PackWitness = NO_PACKS,
) -> Recovered:
    known = {row.path: row for row in mine}

    def leaves_since(at: int) -> list[DatedLeaf]:
        return [one for one in leaves if one.at >= at]

    return recover(newest, older, known, list(objects), set(trash), leaves_since, packs)


PUSHES = [f"01J8XG4Q6V5T3N2M1K0H9G8F7{letter}" for letter in "ABCDEF"]
"""In the order of time."""


def in_pack(name: str, push: int, pack: str, *, good: bool = True) -> Entry:
    """A file in a pack; a bad one has other bytes than its list says."""
    sha256 = bytes([push]) * 31 + bytes([good])
    return Entry(f"files/{name}", PUSHES[push], 5, sha256, None, None, 1, None, f"{PUSHES[0][:-1]}{pack}-100", 0, 5, 0)


def witness(*lists: tuple[int, Sequence[Entry]], asked: list[Entry] | None = None, silent: bool = False) -> PackWitness:
    """Packs, each with its time and its files; `silent` ones exist, and their lists cannot be read."""
    times = {row.key: at for at, rows in lists for row in rows}

    def prove(entries: Sequence[Entry]) -> list[Entry]:
        (asked if asked is not None else []).extend(entries)
        return [entry for entry in entries if entry.sha256 is not None and entry.sha256[-1]]

    def members_since(since: int) -> list[Entry]:
        return [row for at, rows in lists if at >= since and not silent for row in rows]

    return PackWitness({str(name): at for name, at in times.items()}, members_since, prove)


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

    made = recovered([], [version(ALL, 5)], objects=objects, leaves=[DatedLeaf([slow], 7), DatedLeaf([never], 4)])

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


def test_a_file_in_a_pack_that_an_earlier_version_lacks_was_deleted_though_its_pack_is_there() -> None:
    """Also if a compaction has written it again since: an older version names its push."""
    kept, deleted = in_pack("a", 1, "P"), in_pack("b", 1, "P")
    again = in_pack("b", 1, "Q")

    made = recovered([], [version([kept]), version([kept, deleted])], packs=witness((1, [kept, deleted]), (9, [again])))

    assert (rows(made), made.attested, made.gone) == ([kept], set(), [])


def test_a_list_fills_what_no_node_names_if_the_bytes_prove_it() -> None:
    asked: list[Entry] = []
    good, bad = in_pack("a", 1, "P"), in_pack("b", 1, "P", good=False)

    made = recovered([], packs=witness((1, [good, bad]), asked=asked))

    assert (rows(made), made.attested, made.found) == ([good], {"files/a"}, {"files/a"})
    assert asked == [good, bad]


def test_the_greatest_push_gets_the_path_whatever_the_packs_times_and_a_bad_one_gives_way() -> None:
    old, new, bad = in_pack("a", 1, "P"), in_pack("a", 2, "Q"), in_pack("a", 3, "R", good=False)

    made = recovered([], packs=witness((9, [old]), (1, [new]), (5, [bad])))

    assert rows(made) == [new]


def test_what_a_leaf_names_needs_no_proof_and_is_no_testimony_of_a_pack_alone() -> None:
    asked: list[Entry] = []
    one, two = in_pack("a", 1, "P"), in_pack("b", 1, "P")

    made = recovered([], leaves=[DatedLeaf([one], 2)], mine=[two], packs=witness((1, [one, two]), asked=asked))

    assert (rows(made), made.attested, asked) == ([one, two], set(), [])


def test_only_what_came_after_the_version_that_is_left_is_taken_from_packs() -> None:
    shown = in_pack("a", 1, "P")
    leftover, changed, new = in_pack("b", 2, "Q"), in_pack("a", 3, "R"), in_pack("c", 3, "R")
    stale = in_pack("a", 0, "R")

    made = recovered(
        [], [version([shown], 5)], packs=witness((1, [shown]), (3, [leftover]), (9, [changed, new, stale]))
    )

    assert rows(made) == [changed, new]
    assert made.attested == {"files/a", "files/c"}


def test_an_older_push_in_a_newer_pack_does_not_replace_what_a_version_shows() -> None:
    shown, older = in_pack("a", 2, "P"), in_pack("a", 1, "Q")

    made = recovered([], [version([shown], 5)], packs=witness((1, [shown]), (9, [older])))
    without = recovered([], [version([shown], 5)], packs=witness((9, [older])))

    assert rows(made) == [shown]
    assert (rows(without), without.gone) == ([], [shown]), "the lost one is named, and a tree may have it"


def test_a_row_whose_pack_is_gone_is_found_where_a_compaction_has_put_it() -> None:
    alone = Entry("files/b", PUSHES[1], 5, bytes([1]) * 31 + b"\1", '"e"', None, 1)
    row, copy = in_pack("a", 1, "P"), in_pack("a", 1, "R")
    other = replace(in_pack("a", 1, "Q"), sha256=b"\2" * 32)

    made = recovered([], [version([row, alone], 5)], packs=witness((7, [other]), (9, [copy, in_pack("b", 1, "R")])))

    assert rows(made) == [copy, in_pack("b", 1, "R")]
    assert (made.older, made.found) == ({"files/a", "files/b"}, set())


def test_files_alone_and_files_in_packs_are_ranked_by_their_pushes() -> None:
    alone = [Entry(f"files/{name}", PUSHES[2], 1, None, '"1"', None, 9) for name in "ab"]
    newer, older = in_pack("a", 3, "P"), in_pack("b", 1, "P")

    made = recovered([], objects=[listed(row, 9) for row in alone], packs=witness((1, [newer, older])))

    assert rows(made) == [newer, alone[1]]


def test_what_a_leaf_names_in_a_pack_that_is_gone_is_told() -> None:
    here, gone = in_pack("a", 1, "P"), in_pack("b", 1, "Q")

    made = recovered([], leaves=[DatedLeaf([here, gone], 2)], packs=witness((1, [here])))

    assert (rows(made), made.gone) == ([here], [gone])


def test_a_pack_without_a_list_still_has_what_nodes_name_in_it() -> None:
    row = in_pack("a", 1, "P")

    made = recovered([], [version([row], 5)], packs=witness((1, [row]), silent=True))

    assert (rows(made), made.older) == ([row], {"files/a"})
