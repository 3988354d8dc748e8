"""Nodes as Parquet: what is written can be read, by us and by others, and what is not a node is never believed."""

from __future__ import annotations

import io
from functools import cache

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayou.core.errors import NodeDamaged
from bayou.index.node import Child, Node, Pointer, branch, child_of, leaf, name
from bayou.index.node_store import decode, encode
from tests.index.reference import PACK, digest, entries, entry, packed, some


def ref(node: Node) -> Child:
    return child_of(node, name(node.digest, "c1"))


def children(count: int = 3) -> list[Child]:
    return [ref(leaf([entry(f"data/{number}"), entry(f"data/{number}x")])) for number in range(count)]


def written_elsewhere(table: pa.Table, **options) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()


def leaf_table(rows, **columns) -> pa.Table:
    """Return the rows of a leaf as another engine might have them, with some columns replaced."""
    plain = {
        "path": pa.array([row.path for row in rows]),
        "push": pa.array([row.push for row in rows], pa.string()),
        "size": pa.array([row.size for row in rows]),
        "sha256": pa.array([row.sha256 for row in rows], pa.binary()),
        "etag": pa.array([row.etag for row in rows], pa.string()),
        "version": pa.array([row.version for row in rows], pa.string()),
        "modified": pa.array([row.modified * 1000 for row in rows], pa.timestamp("us", "UTC")),
        "at": pa.array([row.at for row in rows], pa.string()),
        "pack": pa.array([row.pack for row in rows], pa.string()),
        "offset": pa.array([row.offset for row in rows], pa.int64()),
        "stored": pa.array([row.stored for row in rows], pa.int64()),
        "method": pa.array([row.method for row in rows], pa.int32()),
    }
    return pa.table({**plain, **columns})


def branch_table(rows, **columns) -> pa.Table:
    plain = {field: [getattr(row, field) for row in rows] for field in Child.__struct_fields__}
    return pa.table({**plain, **columns})


full = st.builds(
    entry,
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
    st.integers(0, 2**63 - 1),
    push=st.none() | st.just("01J8XG4Q6V5T3N2M1K0H9G8F7E"),
    sha256=st.none() | st.binary(min_size=32, max_size=32),
    etag=st.none() | st.text(st.characters(exclude_categories=["Cs"])),
    version=st.none() | st.text("0123456789"),
    modified=st.integers(-(2**53), 2**53),
    at=st.none() | st.just("01J8XG4Q6V5T3N2M1K0H9G8F7E"),
    pack=st.none() | st.just(PACK),
    offset=st.none() | st.integers(0, 2**63 - 1),
    stored=st.none() | st.integers(0, 2**63 - 1),
    method=st.none() | st.integers(-128, 127),
)


@given(st.lists(full, min_size=1, unique_by=lambda entry: entry.path))
def test_a_leaf_comes_back_as_it_was(rows):
    node = leaf(sorted(rows, key=lambda entry: entry.path))

    assert decode(encode(node), 0, ref(node)) == node


@given(st.lists(entries, min_size=2, unique_by=lambda entry: entry.path), st.integers(1, 255))
def test_a_branch_comes_back_as_it_was(rows, level):
    node = branch(level, [ref(leaf([row])) for row in sorted(rows, key=lambda entry: entry.path)])

    assert decode(encode(node), level, ref(node)) == node


def test_another_engine_reads_the_types_of_the_design():
    rows = [entry("data/a", 1), entry("data/b", 2, push=None, sha256=None, etag=None)]

    table = pq.read_table(io.BytesIO(encode(leaf(rows))))
    above = pq.read_table(io.BytesIO(encode(branch(1, children()))))

    text, number = pa.string(), pa.int64()
    assert dict(zip(table.schema.names, table.schema.types, strict=True)) == {
        "path": text,
        "push": text,
        "size": number,
        "sha256": pa.binary(32),
        "etag": text,
        "version": text,
        "modified": pa.timestamp("ms", "UTC"),
        "at": text,
        "pack": text,
        "offset": number,
        "stored": number,
        "method": pa.int8(),
    }
    assert table.column("sha256").to_pylist() == [rows[0].sha256, None]
    assert above.schema.names == ["first", "last", "node", "digest", "entries", "bytes"]
    assert above.schema.field("digest").type == pa.binary(32)


VARIANTS = {
    "as pyarrow writes it": {},
    "as Spark writes it": {"use_deprecated_int96_timestamps": True, "compression": "snappy"},
    "with dictionaries": {"use_dictionary": True, "data_page_version": "2.0", "compression": "gzip"},
    "in small row groups": {"row_group_size": 7, "write_statistics": False, "store_schema": False},
}


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_the_same_rows_from_another_writer_are_the_same_node(options):
    rows = [*some(40), packed("data/u", 3), entry("files/x", 0, push=None, sha256=None, etag=None, modified=0)]
    node = leaf(rows)

    assert decode(written_elsewhere(leaf_table(rows), **options), 0, ref(node)) == node


def test_other_widths_orders_and_encodings_of_columns_are_the_same_node():
    rows = [entry(row.path, row.size, push=None, etag=None) for row in some(5)]
    node = leaf(rows)
    table = leaf_table(
        rows,
        path=pa.array([row.path for row in rows], pa.large_string()),
        push=pa.nulls(5),
        size=pa.array([row.size for row in rows], pa.uint16()),
        sha256=pa.array([row.sha256 for row in rows], pa.large_binary()),
        etag=pa.array([None] * 5, pa.string_view()),
        version=pa.array([None] * 5, pa.string()).dictionary_encode(),
        modified=pa.array([row.modified * 1_000_000 for row in rows], pa.timestamp("ns")),
        at=pa.nulls(5),
        pack=pa.array([None] * 5, pa.large_string()),
        offset=pa.nulls(5, pa.uint32()),
        method=pa.nulls(5, pa.uint8()),
    )
    views = leaf_table(rows, sha256=pa.array([row.sha256 for row in rows], pa.binary_view()))

    assert decode(written_elsewhere(table.select(reversed(table.column_names))), 0, ref(node)) == node
    assert decode(written_elsewhere(views), 0, ref(node)) == node


def test_a_branch_from_another_writer_is_the_same_node():
    node = branch(2, children())

    assert decode(written_elsewhere(branch_table(node.rows)), 2, ref(node)) == node


def decoded(data: bytes, known: Child) -> Node | None:
    """Return the leaf, or None if the error says that it is damaged, and which."""
    try:
        return decode(data, 0, known)
    except NodeDamaged as error:
        if known.node not in error.message:
            raise
        return None


@cache
def good(sealed: bool) -> tuple[Child, bytes]:
    rows = some(60)
    node = leaf(rows)
    return ref(node), encode(node) if sealed else written_elsewhere(leaf_table(rows))


@pytest.mark.parametrize("sealed", [True, False])
@given(st.data())
def test_a_flipped_bit_is_found_or_does_no_harm(sealed, data):
    """F107. In a file of ours every bit is covered; in another writer's, every row."""
    known, whole = good(sealed)
    # Most of a footer's bits steer the parser.
    place = data.draw(st.integers(0, len(whole) - 1) | st.integers(len(whole) - 1200, len(whole) - 1))
    changed = bytearray(whole)
    changed[place] ^= 1 << data.draw(st.integers(0, 7))

    assert decoded(bytes(changed), known) in (None, leaf(some(60)))


@pytest.mark.parametrize("sealed", [True, False])
@given(st.data())
def test_a_truncated_file_is_damaged(sealed, data):
    known, whole = good(sealed)

    with pytest.raises(NodeDamaged, match=known.node):
        decode(whole[: data.draw(st.integers(0, len(whole) - 1))], 0, known)


@given(st.binary(max_size=200), st.booleans())
def test_garbage_is_damaged(noise, dressed):
    known, _ = good(True)

    with pytest.raises(NodeDamaged, match=known.node):
        decode(b"PAR1" + noise + len(noise).to_bytes(4, "little") + b"PAR1" if dressed else noise, 0, known)


def test_no_byte_of_a_footer_can_end_the_process():
    """Some offsets, when they become negative, make the parser abort, and this very process with it."""
    node = leaf(some(3))
    whole = encode(node)
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")

    outcomes = [
        decoded(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :], ref(node))
        for place in range(footer, len(whole))
        for bit in (1, 128)
    ]

    # What hides the seal makes a file that anybody could have written: read with care, and proven by its rows.
    assert all(outcome in (None, node) for outcome in outcomes)
    assert outcomes.count(None) > 0.95 * len(outcomes)


def test_a_seal_does_not_excuse_other_rows():
    node, other = leaf(some(3)), leaf(some(4))

    with pytest.raises(NodeDamaged, match="digest"):
        decode(encode(other), 0, ref(node))


def test_a_branch_is_no_leaf_and_belongs_to_its_level():
    node = branch(1, children())

    with pytest.raises(NodeDamaged, match="columns"):
        decode(encode(node), 0, ref(node))
    with pytest.raises(NodeDamaged, match="columns"):
        decode(encode(leaf(some(3))), 1, ref(leaf(some(3))))
    with pytest.raises(NodeDamaged, match="digest"):
        decode(encode(node), 2, ref(node))


def swapped(rows):
    return [rows[1], rows[0], *rows[2:]]


TWO = [entry("data/a"), entry("data/b")]
BAD_LEAVES = {
    "unsorted": leaf_table(TWO[::-1]),
    "double": leaf_table([TWO[0], TWO[0]]),
    "empty": leaf_table(TWO).slice(0, 0),
    "short hash": leaf_table(TWO, sha256=[b"x" * 31, None]),
    "no path": leaf_table(TWO, path=["data/a", None]),
    "no size": leaf_table(TWO, size=[1, None]),
    "huge size": leaf_table(TWO, size=pa.array([1, 2**64 - 1], pa.uint64())),
    "no time": leaf_table(TWO, modified=pa.nulls(2)),
    "size is text": leaf_table(TWO, size=["1", "1"]),
    "time is a number": leaf_table(TWO, modified=[1, 2]),
    "path is bytes": leaf_table(TWO, path=[b"data/a", b"data/b"]),
    "hash is text": leaf_table(TWO, sha256=["x" * 32, "y" * 32]),
    "offset is text": leaf_table(TWO, offset=["1", "1"]),
    "pack is a number": leaf_table(TWO, pack=[1, 2]),
    "a column too many": leaf_table(TWO, more=[1, 2]),
    "a column too few": leaf_table(TWO).drop_columns(["etag"]),
}


@pytest.mark.parametrize("table", BAD_LEAVES.values(), ids=BAD_LEAVES)
def test_a_leaf_with_bad_rows_is_damaged_and_named(table):
    """F107. Each has the digest of its own rows where it can, so that nothing but its shape speaks against it."""
    rows = [
        tuple(int(value.timestamp() * 1000) if hasattr(value, "timestamp") else value for value in row)
        for row in zip(*(column.to_pylist() for column in table.columns), strict=True)
    ]
    try:
        digested = digest(0, rows)
    except OverflowError:
        digested = bytes(32)
    known = Pointer(0, name(digested, "c1"))

    with pytest.raises(NodeDamaged, match=known.node):
        decode(written_elsewhere(table), 0, known)


KIDS = children()
BAD_BRANCHES = {
    "unsorted": branch_table(swapped(KIDS)),
    "overlapping": branch_table(KIDS, last=["data/1", "data/1x", "data/2x"]),
    "backwards": branch_table(KIDS, first=["data/0y", "data/1", "data/2"]),
    "one child": branch_table(KIDS[:1]),
    "no child": branch_table(KIDS).slice(0, 0),
    "a name that leads elsewhere": branch_table(KIDS, node=["../head", KIDS[1].node, KIDS[2].node]),
    "a name with another digest": branch_table(KIDS, node=[KIDS[1].node, KIDS[1].node, KIDS[2].node]),
    "no entries": branch_table(KIDS, entries=[2, 0, 2]),
    "negative bytes": branch_table(KIDS, bytes=[2, -1, 2]),
}


@pytest.mark.parametrize("table", BAD_BRANCHES.values(), ids=BAD_BRANCHES)
def test_a_branch_with_bad_rows_is_damaged_and_named(table):
    """F107."""
    rows = [tuple(row[field] for field in ("first", "last", "digest", "entries", "bytes")) for row in table.to_pylist()]
    known = Pointer(1, name(digest(1, rows), "c1"))

    with pytest.raises(NodeDamaged, match=known.node):
        decode(written_elsewhere(table), 1, known)
