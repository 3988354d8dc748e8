"""Keys: every one that Bayou makes can be read back, and none can lead anywhere else."""

from __future__ import annotations

import os
import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bayou.core import paths
from bayou.core.ids import ulid
from bayou.objectstore import keys
from bayou.objectstore.keys import KeyScope, PayloadKey

SCOPE = KeyScope.of("p", None)
CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
PUSH, NEXT = "01J9ZQ3V7M5K8Y2W4X6C0B1D2E", "01J9ZQ3V7M5K8Y2W4X6C0B1D2F"

segments = st.text(min_size=1, max_size=20).filter(lambda text: paths.unsafe(text) is None)
safe_paths = st.builds(
    lambda root, rest: "/".join([root, *rest]),
    st.sampled_from(sorted(paths.PAYLOAD_ROOTS)),
    st.lists(segments, min_size=1, max_size=5),
).filter(lambda path: paths.refusal(path) is None)
push_ids = st.builds(ulid, st.integers(0, 2**48 - 1))


@given(path=safe_paths, push=push_ids)
def test_a_payload_key_is_read_back(path: str, push: str) -> None:
    key = keys.payload(path, push)
    assert keys.parse_payload(key) == PayloadKey(path, push)
    assert keys.parse_payload(keys.payload(path, None)) == PayloadKey(path, None)


@given(path=safe_paths, push=push_ids)
def test_the_objects_of_a_push_keep_their_names_and_lie_in_a_directory_of_its_own(path: str, push: str) -> None:
    directory, _, name = path.rpartition("/")
    assert keys.payload(path, push) == f"{directory}/~{push}/{name}"
    assert paths.refusal(keys.payload(path, push)) is not None, "no path can look like the key of a push"
    assert SCOPE.full(keys.payload(path, push)).startswith("p/")


@given(one=st.tuples(safe_paths, st.none() | push_ids), two=st.tuples(safe_paths, st.none() | push_ids))
def test_v11_two_entries_have_two_keys(one: tuple[str, str | None], two: tuple[str, str | None]) -> None:
    assert (keys.payload(*one) == keys.payload(*two)) == (one == two)


@given(key=st.text(max_size=60))
@example(f"~{PUSH}/x")
@example(f"/~{PUSH}/x")
@example(f"data/~{PUSH}")
@example(f"data/~{PUSH}/")
@example(f"data/~{PUSH}/~{NEXT}/x")
def test_any_key_of_a_listing_can_be_read_and_names_itself(key: str) -> None:
    found = keys.parse_payload(key)
    assert keys.payload(found.path, found.push) == key


@given(at=st.integers(0, 2**48 - 1))
def test_a_new_ulid_is_a_push_id(at: int) -> None:
    assert keys.is_push_id(ulid(at))
    assert keys.is_push_segment(f"~{ulid(at)}")


def test_ulids_sort_by_time() -> None:
    made = [ulid(at) for at in (0, 1, 31, 32, 2**20, 2**47, 2**48 - 1)]
    assert made == sorted(made)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        PUSH[:-1],
        PUSH + "0",
        PUSH.lower().replace("0", "o"),
        "8" + PUSH[1:],
        "I" * 26,
        "0" * 25 + "U",
        " " + PUSH[1:],
        PUSH + "\n",
        "0" * 25 + "\u0660",
    ],
)
def test_what_is_not_a_push_id(text: str) -> None:
    assert not keys.is_push_id(text)
    assert not keys.is_push_segment(text)
    assert not keys.is_push_segment(f"~{text}")


@given(st.text(alphabet=CROCKFORD + string.ascii_lowercase, min_size=24, max_size=28))
def test_a_push_id_is_26_characters_of_base_32_below_2_to_128(text: str) -> None:
    expected = len(text) == 26 and set(text) <= set(CROCKFORD) and text[0] in "01234567"
    assert keys.is_push_id(text) == expected


@given(name=st.text())
@example("")
@example(".")
@example("..")
@example("../../head.json")
@example("@org/name/part")
@example("a/b\\c\x00d\n")
@example("%2F")
@example("x.json")
@example(os.fsdecode(b"caf\xe9"))
def test_a_lease_is_one_segment_whatever_its_name_and_is_read_back(name: str) -> None:
    key = keys.lease(name)
    assert key.startswith(f"{keys.LEASES}/")
    assert "/" not in key.removeprefix(f"{keys.LEASES}/")
    assert key.isascii()
    assert key.isprintable()
    assert keys.parse_lease(key) == name
    assert SCOPE.full(key) == f"p/{key}"


@given(one=st.text(), two=st.text())
def test_two_leases_have_two_keys(one: str, two: str) -> None:
    assert (keys.lease(one) == keys.lease(two)) == (one == two)


@pytest.mark.parametrize(
    "key",
    ["", ".bayou/leases", ".bayou/leases/x", ".bayou/leases/a/b.json", ".bayou/log/x.json", "x/.bayou/leases/a.json"],
)
def test_what_is_not_a_lease(key: str) -> None:
    assert keys.parse_lease(key) is None


def test_a_lease_that_somebody_else_named_badly_is_read_without_an_error() -> None:
    assert keys.parse_lease(".bayou/leases/%ff%zz.json") is not None


@given(digest=st.binary(min_size=32, max_size=32).map(bytes.hex), commit=push_ids | st.uuids().map(str))
def test_a_node_is_read_back(digest: str, commit: str) -> None:
    name = f"{digest}-{commit}"
    assert keys.parse_node(keys.node(name)) == name
    assert SCOPE.full(keys.node(name)) == f"p/.bayou/nodes/{name}.parquet"


@pytest.mark.parametrize(
    "key",
    [
        "",
        "x.parquet",
        ".bayou/nodes/x.parquet",
        f".bayou/nodes/{'0' * 64}.parquet",
        f".bayou/nodes/{'0' * 64}-.parquet",
        f".bayou/nodes/{'A' * 64}-x.parquet",
        f".bayou/nodes/{'0' * 63}-x.parquet",
        f".bayou/nodes/{'0' * 64}-{'x' * 65}.parquet",
        f".bayou/nodes/{'0' * 64}-a/b.parquet",
        f".bayou/nodes/a/{'0' * 64}-x.parquet",
        f"other/.bayou/nodes/{'0' * 64}-x.parquet",
        f".bayou/nodes/{'0' * 64}-x.json",
        f".bayou/nodes/{'0' * 64}-x.parquet\n",
    ],
)
def test_what_is_not_a_node(key: str) -> None:
    assert keys.parse_node(key) is None


@given(page=push_ids)
def test_a_page_of_the_log_is_read_back(page: str) -> None:
    assert keys.parse_log_page(keys.log_page(page)) == page
    for key in (f".bayou/log/{page}", f".bayou/nodes/{page}.json", f".bayou/log/a/{page}.json", f"log/{page}.json"):
        assert keys.parse_log_page(key) is None


def test_internal_keys_are_no_payload() -> None:
    for key in (keys.HEAD, keys.node("x"), keys.log_page("x"), keys.lease("x"), keys.probe("x")):
        assert key.startswith(f"{keys.INTERNAL}/")
        assert paths.refusal(key) is not None
