"""How much of a pack is in use, told from entries alone: compared with packs of which files are left out."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from bayou.core.ids import ulid
from bayou.index.entry import Entry
from bayou.packs.archive import END_BYTES, Pack, PackBuilder, count_members
from bayou.packs.usage import NamedMember, PackUse, is_small, named_member, pack_uses

names = st.text("abcdefgh-0123456789é", min_size=1, max_size=60)
sizes = st.integers(0, 3000)
files = st.dictionaries(names, sizes, min_size=1, max_size=60)


def packed(wanted: dict[str, int]) -> Pack:
    """A pack of files with noise in them: nothing about them is shorter than it looks."""
    builder = PackBuilder()
    for name, size in sorted(wanted.items()):
        data = random.Random(name).randbytes(size)
        builder.add(f"files/{name}", ulid(), data, hashlib.sha256(data).digest(), random.Random(size).randrange(2**40))
    return builder.finish()


def members_of(pack: Pack, *, live: bool = True) -> list[NamedMember]:
    rows = [
        Entry(
            one.path, one.push, one.size, one.sha256, None, None, one.modified,
            None, pack.name, one.offset, one.stored, one.method,
        )
        for one in pack.members
    ]  # fmt: skip
    found = [named_member(row, live=live) for row in rows]
    return [member for member in found if member is not None]


def use_of(members: Sequence[NamedMember]) -> PackUse:
    (use,) = pack_uses(members)
    return use


@given(files)
def test_a_pack_all_of_whose_files_are_named_has_no_dead_bytes(wanted):
    pack = packed(wanted)

    use = use_of(members_of(pack))

    assert (use.name, use.size, use.files, use.named) == (pack.name, len(pack.data), len(wanted), len(wanted))
    assert use.stored == sum(member.stored for member in pack.members)
    assert use.dead == 0
    assert not use.sparse


@given(files, st.data())
def test_files_that_are_not_named_are_dead_bytes_unless_they_are_the_last(wanted, data):
    pack = packed(wanted)
    members = members_of(pack)
    kept = data.draw(st.lists(st.sampled_from(members), min_size=1, unique=True))
    kept.sort(key=lambda member: member.offset)
    gone = [member for member in members if member not in kept]

    use = use_of(kept)

    inner = [member for member in gone if member.offset < kept[-1].offset]
    assert use.dead >= sum(30 + member.name + member.stored for member in inner)
    assert use.dead <= sum(200 + 3 * member.name + member.stored for member in gone)
    assert use.files == use.named == len(kept)


@given(files)
def test_what_only_an_earlier_root_names_is_neither_live_nor_dead(wanted):
    pack = packed(wanted)
    live, earlier = members_of(pack), members_of(pack, live=False)
    half = len(live) // 2
    rows = sorted([*live[:half], *earlier], key=lambda member: (member.offset, not member.live))

    use = use_of(rows)

    assert (use.files, use.named, use.dead) == (half, len(live), 0)


def test_half_of_a_pack_is_not_sparse_and_less_is():
    pack = packed({f"{number:03}": 1000 for number in range(100)})
    members = members_of(pack)

    assert not use_of(members[:52]).sparse
    assert use_of(members[:47]).sparse


def test_a_pack_of_one_tiny_file_is_small_and_not_sparse():
    use = use_of(members_of(packed({"a": 1})))

    assert not use.sparse
    assert is_small(use.size, 8 << 20)
    assert not is_small(2 << 20, 8 << 20)


@given(files)
def test_a_pack_says_how_many_files_it_has(wanted):
    data = packed(wanted).data

    assert count_members(data[-END_BYTES:]) == len(wanted)
    assert count_members(data[-END_BYTES:-1]) is None
    assert count_members(bytes(END_BYTES)) is None


def test_v25_a_row_that_lies_outside_of_its_pack_is_not_counted():
    good = Entry("files/a", ulid(), 10, bytes(32), None, None, 1, None, f"{ulid()}-500", 40, 10, 0)

    assert named_member(good) is not None
    for bad in ({"offset": 491}, {"offset": -1}, {"pack": "x"}, {"method": 7}, {"stored": None}, {"pack": None}):
        fields = {name: getattr(good, name) for name in Entry.__struct_fields__} | bad
        assert named_member(Entry(**fields)) is None, bad
