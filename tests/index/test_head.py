"""The head and its log."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayou.core.clock import format_ms, parse_ms
from bayou.core.errors import (
    AlreadyExists,
    BadAnswer,
    HeadCorrupt,
    IndexDamaged,
    NoConditionalWrites,
    NotFound,
    PreconditionFailed,
    Unavailable,
    UnknownFormat,
)
from bayou.index.head import (
    Gc,
    Head,
    advance,
    create_head,
    encode_head,
    first_head,
    iter_log,
    parse_head,
    read_head,
    swap_head,
)
from bayou.index.log import Tally
from bayou.index.node import Root, name
from bayou.objectstore import keys
from bayou.objectstore.transport import Match
from tests.index.memory import MemoryStore

STORE = "6f1c9b0e-2f5e-4c4e-9a55-0d1c5a4c8b11"
AT = "2026-03-01T12:00:00.000Z"


def commit_id(number: int) -> str:
    """Return an id as long as the client's own."""
    return f"{number:026X}"


def root(number: int) -> Root:
    digest = number.to_bytes(32, "big")
    return Root(name(digest, commit_id(number)), digest, 2, 1_000_000 + number, 10**12)


def first() -> Head:
    return first_head(store=STORE, commit=commit_id(1), at=AT, by="ada@build-7", root=root(1), tally=Tally(added=3))


def following(head: Head, **fields):
    number = head.seq + 1
    return advance(
        head,
        **{
            "commit": commit_id(number),
            "at": format_ms(1_700_000_000_000 + number),
            "by": "ada@build-7",
            "root": root(number),
            "trash": None,
            "tally": Tally(added=1, changed=2, bytes=54_321),
            **fields,
        },
    )


def document(head: Head) -> dict:
    return json.loads(encode_head(head))


def parse(document: object) -> Head:
    return parse_head(json.dumps(document).encode(), "s3://bucket")


def test_a_head_has_the_fields_of_the_design():
    head, _ = following(first(), trash=root(9), gc=Gc(3, AT), kind="gc")

    assert document(head) == {
        "format": 2,
        "features": ["packs"],
        "store": STORE,
        "seq": 2,
        "commit": commit_id(2),
        "parent": commit_id(1),
        "at": "2023-11-14T22:13:20.002Z",
        "by": "ada@build-7",
        "gc": {"count": 3, "before": AT},
        "root": {
            "node": f"{2:064x}-{commit_id(2)}",
            "digest": f"{2:064x}",
            "level": 2,
            "entries": 1_000_002,
            "bytes": 10**12,
        },
        "trash": document(head)["trash"],
        "log": [
            {
                "seq": 1,
                "commit": commit_id(1),
                "at": AT,
                "by": "ada@build-7",
                "kind": "push",
                "root": f"2-{1:064x}",
                "added": 3,
                "changed": 0,
                "deleted": 0,
                "bytes": 0,
            },
            {
                "seq": 2,
                "commit": commit_id(2),
                "at": "2023-11-14T22:13:20.002Z",
                "by": "ada@build-7",
                "kind": "gc",
                "root": f"2-{2:064x}",
                "added": 1,
                "changed": 2,
                "deleted": 0,
                "bytes": 54_321,
            },
        ],
        "older": None,
    }
    assert document(head)["trash"]["node"] == f"{9:064x}-{commit_id(9)}"


def test_a_head_comes_back_as_it_was():
    head, _ = following(first(), trash=root(9), gc=Gc(3, AT), mass_delete=True)
    empty = first_head(store=STORE, commit="c1", at=AT, by="ä\u2028", root=None, tally=Tally())

    assert parse(document(head)) == head
    assert parse(document(empty)) == empty
    assert document(head)["log"][-1]["mass_delete"] is True


def test_a_commit_of_the_same_root_names_whose_node_it_is():
    """Collection commits a head with the root of an earlier commit."""
    head, _ = following(first(), root=root(1), gc=Gc(1, AT))

    assert document(head)["log"][-1]["root"] == f"2-{1:064x}-{commit_id(1)}"
    assert parse(document(head)).log[-1].root == root(1).pointer


def test_advancing_keeps_the_stores_id_and_the_chain():
    head, page = following(first())

    assert page is None
    assert (head.store, head.seq, head.parent) == (STORE, 2, first().commit)
    assert head.gc == first().gc
    assert [row.seq for row in head.log] == [1, 2]


def test_after_a_thousand_commits_the_head_is_small_and_the_log_complete():
    store = MemoryStore()
    create_head(store, first())
    sizes = []

    for _ in range(999):
        seen = read_head(store)
        head, page = following(seen.head)
        swap_head(store, head, seen.match, page)
        sizes.append(len(encode_head(head)))

    head = read_head(store).head
    assert [row.seq for row in iter_log(store, head)] == list(range(1000, 0, -1))
    assert [row.commit for row in iter_log(store, head)] == [commit_id(number) for number in range(1000, 0, -1)]
    assert max(sizes) < 25_000
    assert all(size > 10_000 for size in sizes[100:])
    assert max(sizes[100:200]) == pytest.approx(max(sizes[-100:]), rel=0.02), "constant"
    assert 50 <= len(head.log) < 100


def test_the_log_in_the_head_has_fifty_to_ninety_nine_rows():
    head, lengths = first(), []
    for _ in range(300):
        head, page = following(head)
        lengths.append(len(head.log))
        assert page is None or [row.seq for row in page.rows] == list(range(head.seq - 99, head.seq - 49))

    assert set(lengths[60:]) == set(range(50, 100))


def full_page(store: MemoryStore) -> Head:
    """Return the first head that has a page, stored."""
    head = first()
    while head.older is None:
        head, page = following(head)
    store.put(keys.HEAD, b"old")
    swap_head(store, head, Match(store.objects[keys.HEAD].meta.etag), page)
    return head


def test_a_page_is_stored_before_the_head_that_names_it():
    store = MemoryStore()

    head = full_page(store)

    assert store.sent("put")[-2:] == [keys.log_page(head.older), keys.HEAD]
    assert json.loads(bytes(store.objects[keys.log_page(head.older)].data)).keys() == {"id", "older", "rows"}


@pytest.mark.parametrize(
    "change",
    [
        lambda data: b"",
        lambda data: data[:-3],
        lambda data: data.replace(b'"id":"', b'"id":"x'),
        lambda data: data.replace(b'"seq":50,', b'"seq":51,'),
        lambda data: json.dumps({**json.loads(data), "rows": []}).encode(),
        lambda data: json.dumps({**json.loads(data), "rows": json.loads(data)["rows"][:-1]}).encode(),
    ],
    ids=["empty", "truncated", "another's", "a gap inside", "no rows", "a gap at the end"],
)
def test_a_damaged_page_of_the_log_is_named_when_it_is_reached(change):
    store = MemoryStore()
    head = full_page(store)
    store.damage(keys.log_page(head.older), change)

    rows = iter_log(store, head)

    assert len([next(rows) for _ in range(50)]) == 50
    with pytest.raises(IndexDamaged, match=head.older):
        next(rows)


def test_a_missing_page_of_the_log_is_named():
    store = MemoryStore()
    head = full_page(store)
    del store.objects[keys.log_page(head.older)]

    with pytest.raises(IndexDamaged, match=head.older):
        list(iter_log(store, head))


def test_storing_a_page_again_is_no_error():
    """A swap whose answer was lost is made again, page and all."""
    store = MemoryStore()
    head = full_page(store)
    again, page = first(), None
    while page is None:
        again, page = following(again)

    swap_head(store, head, Match(store.objects[keys.HEAD].meta.etag), page)

    assert len(list(iter_log(store, head))) == 100


def test_only_the_version_that_was_read_is_replaced():
    """V1."""
    store = MemoryStore()
    create_head(store, first())
    seen = read_head(store)
    mine, page = following(seen.head)
    theirs, _ = following(seen.head, by="grace")
    swap_head(store, theirs, seen.match, None)

    with pytest.raises(PreconditionFailed):
        swap_head(store, mine, seen.match, page)
    with pytest.raises(AlreadyExists):
        create_head(store, mine)

    assert read_head(store).head == theirs


def test_a_head_without_a_fingerprint_is_never_replaced():
    """V1: a condition that says nothing would be none."""
    store = MemoryStore()
    create_head(store, first())

    with pytest.raises(NoConditionalWrites):
        swap_head(store, following(first())[0], Match(None, None), None)

    assert read_head(store).head == first()


def test_reading_gives_the_fingerprint_of_the_same_answer():
    """V2."""
    store = MemoryStore()
    stored = create_head(store, first())

    seen = read_head(store)

    assert (seen.head, seen.etag, seen.version) == (first(), stored.etag, stored.version)
    assert read_head(store, if_none_match=seen.etag) is None
    assert read_head(store, if_none_match='"other"') == seen
    assert store.sent("head") == []


def test_not_modified_without_a_condition_is_no_answer(monkeypatch):
    """V4."""
    store = MemoryStore()
    create_head(store, first())
    monkeypatch.setattr(store, "get", lambda key, **options: None)

    assert read_head(store, if_none_match='"seen"') is None
    with pytest.raises(BadAnswer, match="not modified, although the request did not ask"):
        read_head(store)


def test_no_head_and_no_answer_are_different_things():
    """V4."""
    store = MemoryStore()
    with pytest.raises(NotFound):
        read_head(store)

    store.failing["get", keys.HEAD] = Unavailable("503")

    with pytest.raises(Unavailable):
        read_head(store)


@pytest.mark.parametrize("number", [99, 0, -1, 3])
@pytest.mark.parametrize("rest", [{}, {"log": "elsewhere", "seq": None}, "as it is"])
def test_another_format_is_refused_by_name_before_anything_else_is_read(number, rest):
    """F006 (V10)."""
    store = MemoryStore()
    rest = document(first()) if rest == "as it is" else rest
    store.put(keys.HEAD, json.dumps({**rest, "format": number}).encode())
    before = dict(store.objects)

    with pytest.raises(UnknownFormat, match=rf"format {number}\b") as caught:
        read_head(store)

    assert "newer Bayou" in caught.value.hint
    assert store.objects == before


def test_the_format_before_packs_is_refused_with_the_way_out():
    """V10: no version with it was released, so there is no newer Bayou to install."""
    with pytest.raises(UnknownFormat, match="format 1, which was never released") as caught:
        parse({**document(first()), "format": 1})

    assert "bayou datastore setup" in caught.value.hint


@pytest.mark.parametrize("rest", [{}, {"log": "elsewhere", "seq": None}, "as it is"])
def test_an_unknown_feature_is_refused_by_name_before_anything_else_is_read(rest):
    """V10: what a newer client writes may look corrupt here, and must not be rebuilt."""
    rest = document(first()) if rest == "as it is" else rest

    with pytest.raises(UnknownFormat, match="uses mirrors, which") as caught:
        parse({**rest, "format": 2, "features": ["packs", "mirrors"]})

    assert "newer Bayou" in caught.value.hint


def test_the_next_head_names_what_this_client_needs():
    """A store whose first client knew no packs names them with the first commit of a client that may write some."""
    old = parse({**document(first()), "features": []})

    assert (old.features, following(old)[0].features) == ((), ("packs",))


GOOD = document(following(first(), trash=root(9), gc=Gc(1, AT))[0])


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"null", b"[]", b"1", b"\xff\xfe", b"<html>", b"[" * 100_000, b'{"format": NaN}', b'{"format": true}'],
)
def test_what_is_no_head_is_corrupt(data):
    with pytest.raises(HeadCorrupt, match="s3://bucket") as caught:
        parse_head(data, "s3://bucket")

    assert "bayou datastore verify --repair" in caught.value.hint
    assert caught.value.exit_code == 4


@given(st.integers(0, len(encode_head(first())) - 1))
def test_a_truncated_head_is_corrupt(length):
    with pytest.raises(HeadCorrupt):
        parse_head(encode_head(first())[:length], "s3://bucket")


@pytest.mark.parametrize("field", sorted(GOOD))
def test_a_missing_field_is_named(field):
    with pytest.raises(HeadCorrupt, match=field):
        parse({name: value for name, value in GOOD.items() if name != field})


WRONG: dict[str, list[Any]] = {
    "features": [None, "packs", {}, [1], [None]],
    "store": [None, 1, "", "a/b", "x" * 65],
    "seq": [None, "2", 2.0, True, -1, 2**63, 3],
    "commit": [None, "../x", commit_id(1)],
    "parent": [1, "a b"],
    "at": [None, 5, "yesterday", "2026-03-01T12:00:00Z", "2026-13-01T12:00:00.000Z", "2026-03-01T12:00:00.000+01:00"],
    "by": [None, 7],
    "gc": [None, [], {"count": 1}, {"count": "1", "before": None}, {"count": 1, "before": "now"}],
    "root": [
        "x",
        {},
        {**GOOD["root"], "level": -1},
        {**GOOD["root"], "level": 64},
        {**GOOD["root"], "entries": None},
        {**GOOD["root"], "digest": f"{3:064x}"},
        {**GOOD["root"], "node": "../../head"},
        None,
        {**GOOD["root"], "level": 1},
    ],
    "trash": [0, {}, {**GOOD["root"], "node": "x"}],
    "log": [None, {}, [], [1], GOOD["log"][:1], GOOD["log"][::-1], [{**GOOD["log"][0], "root": 5}, GOOD["log"][1]]],
    "older": [0, "a/b"],
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in WRONG.items() for value in values])
def test_a_field_of_another_type_is_corrupt(field, value):
    parse(GOOD)

    with pytest.raises(HeadCorrupt):
        parse({**GOOD, field: value})


@pytest.mark.parametrize("field", sorted(GOOD["log"][0]))
def test_a_row_of_the_log_must_be_whole(field):
    row = GOOD["log"][0]
    rest = GOOD["log"][1:]

    with pytest.raises(HeadCorrupt, match=rf"log\[0\]\.{field}"):
        parse({**GOOD, "log": [{name: value for name, value in row.items() if name != field}, *rest]})
    with pytest.raises(HeadCorrupt):
        parse({**GOOD, "log": [{**row, field: {}}, *rest]})


def test_fields_that_a_newer_peer_added_are_carried_along():
    head = parse({**GOOD, "later": {"a": [1]}, "log": [GOOD["log"][0], {**GOOD["log"][1], "why": "x"}]})

    advanced, _ = following(head)

    assert document(advanced)["later"] == {"a": [1]}
    assert document(advanced)["log"][1]["why"] == "x"
    assert parse(document(advanced)) == advanced


@given(st.integers(0, 253_402_300_799_999))
def test_times_have_milliseconds_and_come_back(ms):
    assert parse_ms(format_ms(ms)) == ms
    assert len(format_ms(ms)) == len(AT)
