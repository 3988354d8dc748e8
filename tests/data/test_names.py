"""What an item may be called."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bayou.core import paths
from bayou.core.errors import NameRefused
from bayou.data.layout import ModelRef, check_id, check_item, check_name, check_tags
from bayou.data.records import Records
from bayou.sync.plan.policy import is_raw, version_dir
from tests.data.models import MODEL, leftovers
from tests.sync.conftest import Team

GOOD = [
    "1",
    "007",
    "42",
    "2024.01.02",
    "...",
    "a b",
    " edge ",
    "Größe",
    "данные",
    "日本語",
    "a~b",
    "x.lock",
    ".hidden",
    "raw",
    "metadata.yaml",
    "😀",
    "-",
    "x" * 255,
    "é" * 127,
]
BAD = {
    "": "it is empty",
    "a/b": "a slash",
    "/": "a slash",
    ".": "a segment .",
    "..": r"a segment \.\.",
    "a\x00b": "a control character",
    "a\nb": "a control character",
    "a\x7f": "a control character",
    "back\\slash": "a backslash",
    "x" * 300: "longer than 255 bytes",
    "é" * 128: "longer than 255 bytes",
    "e\u0301": "normal form C",
    "\ud800": "not valid Unicode",
    # F106: what the tree refuses
    ".lock": "a reserved name",
    ".LOCK": "a reserved name",
    "_index": "a reserved name",
    ".bayou": "a reserved name",
    "_catalog.db-wal": "another system",
    "~x": "belong to pushes",
    ".bayou-x.tmp": "a temporary file",
}


@pytest.mark.parametrize("name", GOOD)
def test_digits_dots_spaces_and_letters_of_any_script_are_fine(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(("name", "why"), BAD.items(), ids=ascii)
def test_f106_a_name_that_has_no_place_is_refused_at_once_with_the_reason(
    records: Records, name: str, why: str
) -> None:
    calls = [
        lambda: records.data.save(MODEL, name, b"x"),
        lambda: records.data.append(MODEL, name, b"x"),
        lambda: records.data.allocate(MODEL, name),
        lambda: records.data.stage().save(MODEL, name, b"x"),
        lambda: records.data.rename(MODEL, "good", name),
        lambda: records.data.rename(MODEL, name, "good"),
        lambda: records.data.delete(MODEL, name),
        lambda: records.data.get(MODEL, name),
        lambda: records.data.versions(MODEL, name),
    ]
    for call in calls:
        with pytest.raises(NameRefused, match=why) as raised:
            call()
        assert "\n" not in str(raised.value)
        assert raised.value.message.isprintable()
    assert not leftovers(records.tree.root)


@given(st.text(max_size=300))
def test_a_name_is_accepted_only_if_the_tree_takes_its_files(name: str) -> None:
    try:
        check_item(MODEL, name)
    except NameRefused:
        assert "/" in name or paths.refusal(f"data/t/m/{name}/1/raw") is not None
    else:
        assert paths.refusal(f"data/{MODEL.type}/{MODEL.id}/{name}/999999999/metadata.yaml") is None


_segments = st.text(min_size=1, max_size=20).filter(lambda text: "/" not in text)


@given(
    st.lists(st.from_regex("[a-z0-9]{1,4}", fullmatch=True), min_size=1, max_size=3),
    _segments | st.from_regex("[0-9]+", fullmatch=True),
    st.integers(1, 10**6),
)
def test_a_version_is_a_unit_of_sync_whatever_its_item_is_called(kind: list[str], name: str, number: int) -> None:
    directory = f"data/{'/'.join(kind)}/{MODEL.id}/{name}/{number}"
    for file in ("raw", "metadata.yaml"):
        assert version_dir(f"{directory}/{file}") == directory
    assert is_raw(f"{directory}/raw")


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(min_size=1, max_size=60))
def test_a_name_that_is_accepted_is_stored_found_and_listed(records: Records, name: str) -> None:
    name = unicodedata.normalize("NFC", name)
    try:
        check_name(name)
    except NameRefused:
        return
    saved = records.data.save(MODEL, name, name.encode())
    item = records.data.get(MODEL, name)
    assert (item.metadata, item.forwarded) == (saved, ())
    assert records.data.read(item) == name.encode()
    assert records.data.find(name=name, model=MODEL)[0].version == saved.version


def test_names_of_every_kind_reach_a_peer(team: Team) -> None:
    a, b = team.clone("a"), team.clone("b")
    with Records(a.repo) as records:
        for name in GOOD:
            records.data.save(MODEL, name, name.encode())
    report = a.push()
    assert report.pushed.files == 2 * len(GOOD)
    assert not report.refused
    b.pull()
    with Records(b.repo) as records:
        assert sorted(row.name for row in records.data.find()) == sorted(GOOD)
        for name in GOOD:
            assert records.data.read(records.data.get(MODEL, name)) == name.encode()


def test_a_name_that_makes_the_whole_path_too_long_is_refused(records: Records) -> None:
    model = ModelRef("/".join(["t" * 200] * 3), MODEL.id, "deep")
    with pytest.raises(NameRefused, match="800 bytes"):
        records.data.save(model, "x" * 200, b"")


@pytest.mark.parametrize("text", ["", "a/b", "..", "x" * 255, "\x00", "deleted", "evaluated"])
def test_an_id_that_cannot_name_a_file_is_refused(text: str) -> None:
    with pytest.raises(NameRefused, match="an output cannot have the id"):
        check_id(text, "an output")


@pytest.mark.parametrize("tags", [{"": "x"}, {"k" * 256: "x"}, {"k": 1}, {1: "v"}])
def test_tags_are_texts(tags: dict[str, str]) -> None:
    with pytest.raises(NameRefused):
        check_tags(tags)


def test_nothing_is_written_for_tags_that_are_refused(records: Records, tmp_path: Path) -> None:
    with pytest.raises(NameRefused):
        records.data.save(MODEL, "x", b"", tags={"": "x"})
    assert not (records.tree.root / "data").exists()
