"""Heads that are none any more, and what can still be read of them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayou.core.errors import HeadCorrupt, UnknownFormat
from bayou.index.check import Salvage, salvage
from bayou.index.head import Head, advance, encode_head, first_head, parse_head
from bayou.index.log import Tally
from bayou.index.node import Root, name

AT = "2026-03-01T12:00:00.000Z"


def root(number: int) -> Root:
    digest = bytes([number]) * 32
    return Root(name(digest, f"c{number}"), digest, 1, 10 * number, 100)


def some_head() -> Head:
    head = first_head(store="the-store", commit="c1", at=AT, by="ada", root=root(1), tally=Tally())
    for number in range(2, 6):
        head, _ = advance(
            head, commit=f"c{number}", at=AT, by="ada", root=root(number), trash=root(9), tally=Tally(added=1)
        )
    return head


HEAD = some_head()
DATA = encode_head(HEAD)


def read(data: bytes) -> Salvage:
    return salvage(data, "memory://test")


def test_a_whole_head_says_everything():
    assert read(DATA) == Salvage("the-store", 5, root(5).pointer, root(9).pointer, HEAD.log)


@given(st.integers(0, len(DATA)))
def test_a_head_that_was_cut_says_what_is_left_and_nothing_wrong(keep):
    parts = read(DATA[:keep])

    assert parts.store in (None, "the-store")
    assert parts.root in (None, root(5).pointer)
    assert parts.trash in (None, root(9).pointer)
    assert parts.rows == HEAD.log[: len(parts.rows)]
    assert (parts.root is not None) == (b'"root":{' in DATA[:keep] and b"}" in DATA[:keep].partition(b'"root":{')[2])


def test_one_wrong_field_hides_no_other():
    data = DATA.replace(b'"by":"ada"', b'"by":7', 1)
    with pytest.raises(HeadCorrupt):
        parse_head(data, "memory://test")

    assert read(data) == read(DATA)


@given(st.binary(max_size=300), st.integers(len(b'{"format":2,"features":["packs"],'), len(DATA)), st.integers(0, 40))
def test_no_damage_is_too_much(noise, at, length):
    parts = read(DATA[:at] + noise.replace(b"format", b"") + DATA[at + length :])

    assert parts.root is None or parts.root.level <= 63


@pytest.mark.parametrize("node", ["../../x", "short", "0" * 64, f"{'0' * 64}-../x"])
def test_a_root_that_could_lead_elsewhere_is_none(node):
    document = json.loads(DATA)
    document["root"]["node"] = node

    assert read(json.dumps(document).encode()).root is None


@pytest.mark.parametrize("keep", [20, 200, None])
def test_another_format_is_refused_however_little_is_left(keep):
    with pytest.raises(UnknownFormat, match="99"):
        read(DATA.replace(b'"format":2', b'"format":99')[:keep])


@pytest.mark.parametrize("keep", [50, 200, None])
def test_an_unknown_feature_is_refused_however_little_is_left(keep):
    """V10: what such a store holds cannot be rebuilt by a client that does not know the feature."""
    with pytest.raises(UnknownFormat, match="mirrors"):
        read(DATA.replace(b'"features":["packs"', b'"features":["packs","mirrors"')[:keep])
