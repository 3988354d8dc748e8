"""The rules of names (V8, V18, V21)."""

from __future__ import annotations

import os
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayou.core import paths
from bayou.core.errors import PathRefused
from tests.worktree.names import any_paths, segments


@pytest.mark.parametrize(
    "path",
    [
        "data/t/m/n/1/raw",
        "data/x",
        "files/a b/c",
        "data/.gitkeep",
        "data/.hidden/x",
        "data/a~b",
        "data/x~",
        "data/x.lock",
        "data/lock",
        "data/locks/x",
        "data/index",
        "data/catalog.db",
        "data/x.tmp",
        "data/x.tmp.gz",
        "data/.env",
        "data/...",
        "data/a:b",
        "data/naïve/日本語/😀",
        "data/" + "x" * 255,
        "data/" + "é" * 127,
        "data/" + "/".join(["d" * 7] * 99),
    ],
)
def test_ordinary_and_merely_unusual_names_are_payload(path: str) -> None:
    assert paths.refusal(path) is None
    assert paths.check(path) == path


@pytest.mark.parametrize("root", sorted(paths.PAYLOAD_ROOTS))
def test_a_payload_root_holds_payload_and_is_none_itself(root: str) -> None:
    assert paths.refusal(f"{root}/x") is None
    for path in (root, f"{root}/", f"{root.title()}/x", f"/{root}/x", f"./{root}/x", f"x/{root}/x"):
        assert paths.refusal(path) is not None


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("", "not below a payload root"),
        ("/", "not below a payload root"),
        ("/etc/passwd", "not below a payload root"),
        ("../data/x", "not below a payload root"),
        ("secrets/x", "not below a payload root"),
        (".bayou/head.json", "not below a payload root"),
        ("data/..", "a segment .."),
        ("data/a/../../../x", "a segment .."),
        ("data/./x", "a segment ."),
        ("data//x", "an empty segment"),
        ("data/x/", "an empty segment"),
        ("data/a\\b", "a backslash"),
        ("data/..\\..\\x", "a backslash"),
        ("data/a\0", "a control character"),
        ("data/a\nb", "a control character"),
        ("data/\x1b[31m", "a control character"),
        ("data/a\x7f", "a control character"),
        ("data/a\x85", "a control character"),
        ("data/cafe\u0301", "not in Unicode normal form C"),
        ("data/\u212bngstrom", "not in Unicode normal form C"),
        ("data/\udc80", "not valid Unicode"),
        ("data/" + "x" * 256, "a name longer than 255 bytes"),
        ("data/" + "é" * 128, "a name longer than 255 bytes"),
        ("data/" + "/".join(["d" * 7] * 100), "longer than 800 bytes"),
        ("data/~", "belong to pushes"),
        ("data/~01HZZZZZZZZZZZZZZZZZZZZZZZ/raw", "belong to pushes"),
        ("data/a/.bayou-01HZZZZZZZZZZZZZZZZZZZZZZZ.tmp", "a temporary file"),
        ("data/.6f2b1c1e-0000-4000-8000-000000000000.tmp", "a temporary file"),
        ("data/raw.tmp.99.6f2b1c1e-0000-4000-8000-000000000000", "a temporary file"),
        ("data/a/_catalog.db", "a database of another system"),
        ("data/a/_catalog.db-wal", "a database of another system"),
    ],
)
def test_a_refused_name_has_its_reason(path: str, reason: str) -> None:
    said = paths.refusal(path)
    assert said is not None
    assert reason in said
    with pytest.raises(PathRefused) as caught:
        paths.check(path)
    assert said in caught.value.message
    assert caught.value.hint is not None
    assert caught.value.code == "path_refused"
    caught.value.message.encode()  # can be printed, whatever the name was


@pytest.mark.parametrize(
    "name",
    [
        ".bayou",
        ".lock",
        ".locks",
        ".datastore.lock",
        ".datastore-index.json",
        ".datastore-sync-state.json",
        ".push-queue.json",
        ".namespace.json",
        ".catalog-export.json",
        "_index",
        "_catalog.db",
        "_catalog.db-shm",
        ".bayou-x.tmp",
    ],
)
def test_reserved_names_are_refused_at_every_depth_and_in_every_case(name: str) -> None:
    # F106, F044
    for spelt in (name, name.upper(), name.title(), name.swapcase()):
        assert paths.reserved_name(spelt) is not None
        for path in (f"data/{spelt}", f"data/a/b/{spelt}", f"data/{spelt}/x", f"logs/a/{spelt}/b/c"):
            assert paths.refusal(path) is not None, path


def test_letters_that_only_fold_to_a_reserved_name_are_refused_too() -> None:
    assert paths.refusal("data/.loc\u212a") is not None  # the Kelvin sign
    assert paths.refusal("data/_catalog.db-\u017fhm") is not None  # the long s


@given(path=any_paths)
def test_an_accepted_path_is_one_place_below_any_directory(path: str) -> None:
    if paths.refusal(path) is not None:
        return
    assert path.partition("/")[0] in paths.PAYLOAD_ROOTS
    assert os.path.normpath(f"/root/{path}") == f"/root/{path}"
    assert not os.path.isabs(path)
    assert path.isprintable() or not any(unicodedata.category(char) == "Cc" for char in path)
    assert len(path.encode()) <= paths.MAX_PATH_BYTES
    assert unicodedata.normalize("NFC", path) == path
    assert all(len(segment.encode()) <= paths.MAX_SEGMENT_BYTES for segment in path.split("/"))
    assert os.fsdecode(os.fsencode(path)) == path


@given(path=any_paths)
def test_check_and_refusal_say_the_same(path: str) -> None:
    reason = paths.refusal(path)
    if reason is None:
        assert paths.check(path) == path
    else:
        with pytest.raises(PathRefused, match="refused path"):
            paths.check(path)


@given(
    below=st.lists(segments, min_size=1, max_size=4), odd=st.sampled_from(["..", ".", "", "a\\b", "\0", "\udcff", "~x"])
)
def test_one_odd_segment_refuses_the_whole_path_wherever_it_stands(below: list[str], odd: str) -> None:
    for position in range(len(below) + 1):
        path = "/".join(["data", *below[:position], odd, *below[position:]])
        assert paths.refusal(path) is not None
