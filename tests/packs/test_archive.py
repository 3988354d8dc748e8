"""The bytes of a pack: a ZIP file that any tool opens, in which each file lies where its member says."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import shutil
import subprocess
import zipfile
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayou.core import limits, paths
from bayou.index.entry import DEFLATED, STORED, Entry
from bayou.objectstore import keys
from bayou.packs.archive import (
    COMMENT_BYTES,
    END_BYTES,
    LIST_FIELDS,
    LIST_FORMAT,
    LIST_NAME,
    MOST_MEMBERS,
    Pack,
    PackBuilder,
    count_members,
    member_bytes,
)
from bayou.packs.read import extract

PUSH = "01J8XG4Q6V5T3N2M1K0H9G8F7E"
NOW = 1_700_000_000_123
FILES = {
    "data/t/m/n/1/raw": b"a line of text\n" * 200,
    "data/t/m/n/1/metadata.yaml": b"a: 1\n",
    "files/empty": b"",
    "files/dense": random.Random(1).randbytes(5000),
    "files/Zoë/日本語 \U0001f600.txt": "grüße\n".encode() * 40,
}


def packed(files: dict[str, bytes], modified: int = NOW) -> Pack:
    builder = PackBuilder()
    for path, data in files.items():
        builder.add(path, PUSH, data, hashlib.sha256(data).digest(), modified)
    return builder.finish()


def contents(pack: Pack) -> dict[str, bytes]:
    """Read each file as a reader does: by the location of its member, and by nothing of the archive."""
    found: dict[str, bytes] = {}
    for row in pack.members:
        place = (pack.name, row.offset, row.stored, row.method)
        entry = Entry(row.path, row.push, row.size, row.sha256, None, None, row.modified, None, *place)
        assert entry.location_refusal() is None
        data = extract(entry, pack.data[row.offset : row.offset + row.stored])
        assert data is not None, row
        found[row.path] = data
    return found


def unzipped(pack: Pack) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(pack.data)) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def test_any_zip_tool_finds_the_files_and_last_of_all_the_list():
    pack = packed(FILES)

    found = unzipped(pack)

    assert list(found) == [*FILES, LIST_NAME]
    assert {name: data for name, data in found.items() if name != LIST_NAME} == FILES
    assert keys.pack_bytes(pack.name) == len(pack.data)


@pytest.mark.skipif(shutil.which("unzip") is None, reason="unzip is not installed")
def test_unzip_tests_and_extracts_a_pack_as_plain_files(tmp_path: Path):
    (tmp_path / "x.zip").write_bytes(packed(FILES).data)
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}

    tested = subprocess.run(
        ["unzip", "-t", "x.zip"], cwd=tmp_path, capture_output=True, text=True, check=False, env=environment
    )
    subprocess.run(["unzip", "-q", "x.zip", "-d", "out"], cwd=tmp_path, check=True, env=environment)

    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "No errors detected" in tested.stdout
    files = {file.relative_to(tmp_path / "out").as_posix(): file for file in (tmp_path / "out").rglob("*")}
    assert {name: file.read_bytes() for name, file in files.items() if file.is_file() and name != LIST_NAME} == FILES
    assert files["data/t/m/n/1/raw"].stat().st_mode & 0o777 == 0o644


def test_every_file_lies_where_its_member_says():
    pack = packed(FILES)

    assert contents(pack) == FILES
    ends = [row.offset + row.stored for row in pack.members]
    assert [row.offset for row in pack.members] == sorted(row.offset for row in pack.members)
    assert all(end < row.offset for end, row in zip(ends, pack.members[1:], strict=False)), "no two files overlap"


def test_what_shrinks_is_deflated_and_what_does_not_is_stored_as_it_is():
    methods = {row.path: (row.method, row.stored == row.size) for row in packed(FILES).members}

    assert methods["data/t/m/n/1/raw"] == (DEFLATED, False)
    assert methods["files/Zoë/日本語 \U0001f600.txt"] == (DEFLATED, False)
    assert methods["data/t/m/n/1/metadata.yaml"] == (STORED, True), "too small to shrink"
    assert methods["files/empty"] == (STORED, True)
    assert methods["files/dense"] == (STORED, True)


def test_files_that_do_not_shrink_are_soon_no_longer_tried_and_the_next_that_does_is_found():
    chance = random.Random(2)
    dense = {f"files/{number:03}": chance.randbytes(2000) for number in range(100)}
    text = {f"text/{number:03}": b"some text, again " * 100 for number in range(40)}

    rows = packed(dense | text).members

    assert {row.method for row in rows[:100]} == {STORED}
    deflated = [row.method == DEFLATED for row in rows[100:]]
    assert all(deflated[16:]), "at most every sixteenth file is tried before one shrinks again"
    assert contents(packed(dense | text)) == dense | text


def test_the_list_says_of_each_file_what_its_member_says_and_the_comment_where_the_list_is():
    pack = packed(FILES)
    end = pack.data[-END_BYTES:]
    name, offset, stored, method = end[-COMMENT_BYTES:].decode().split(" ")

    data = zlib.decompress(pack.data[int(offset) : int(offset) + int(stored)], -zlib.MAX_WBITS)
    document = json.loads(data)

    assert (name, int(method)) == ("bayou-pack-2", DEFLATED)
    assert data == unzipped(pack)[LIST_NAME]
    assert (document["format"], tuple(document["fields"])) == (LIST_FORMAT, LIST_FIELDS)
    assert document["members"] == [
        [row.path, row.push, row.offset, row.stored, row.method, row.size, row.sha256.hex(), row.modified]
        for row in pack.members
    ]
    assert count_members(end) == len(FILES)


def test_no_payload_path_is_called_like_the_list():
    assert paths.refusal(LIST_NAME) is not None


def test_what_is_not_the_end_of_a_pack_counts_no_files():
    pack = packed(FILES)

    assert count_members(pack.data[-END_BYTES - 1 : -1]) is None
    assert count_members(pack.data[-END_BYTES + 1 :]) is None
    assert count_members(b"") is None


def test_every_attempt_has_a_name_of_its_own():
    """P1: also with the same files, at the same moment."""
    names = {packed(FILES).name for _ in range(100)}

    assert len(names) == 100


def test_the_size_so_far_is_what_members_add():
    builder = PackBuilder()
    expected = 0
    for path, data in FILES.items():
        builder.add(path, PUSH, data, hashlib.sha256(data).digest(), NOW)
        expected += member_bytes(path, builder._members[-1].stored)

    assert (builder.size, len(builder)) == (expected, len(FILES))


@pytest.mark.parametrize(
    ("modified", "shown"),
    [
        (NOW, (2023, 11, 14, 22, 13, 20)),
        (0, (1980, 1, 1, 0, 0, 0)),
        (-(10**12), (1980, 1, 1, 0, 0, 0)),
        (limits.TIME_MS.stop - 1, (2107, 12, 31, 23, 59, 58)),
    ],
)
def test_a_time_that_zip_cannot_tell_is_the_nearest_that_it_can(modified: int, shown: tuple[int, ...]):
    pack = packed({"files/x": b"x"}, modified)

    with zipfile.ZipFile(io.BytesIO(pack.data)) as archive:
        assert archive.getinfo("files/x").date_time == shown
    assert pack.members[0].modified == modified, "the list has it as it is"


def test_a_pack_holds_as_many_files_as_it_may():
    files = {f"data/t/m/item-{number:05}/1/raw": b"%d" % number for number in range(MOST_MEMBERS)}

    pack = packed(files)

    found = unzipped(pack)
    assert len(found) == MOST_MEMBERS + 1
    assert {name: data for name, data in found.items() if name != LIST_NAME} == files
    assert contents(pack) == files
    assert count_members(pack.data[-END_BYTES:]) == MOST_MEMBERS


def test_a_file_of_the_largest_size_is_packed_as_any_other():
    files = {"files/most": b"x" * limits.PACKED_BYTES, "files/next": b"y"}

    pack = packed(files)

    assert contents(pack) == {name: data for name, data in unzipped(pack).items() if name != LIST_NAME} == files


names = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/\\"), min_size=1, max_size=12)
files_of_any_kind = st.dictionaries(
    st.lists(names, min_size=1, max_size=3).map("/".join),
    st.binary(max_size=300) | st.binary(min_size=1, max_size=20).map(lambda piece: piece * 100),
    max_size=12,
)


@given(files_of_any_kind, st.integers(0, limits.TIME_MS.stop - 1))
def test_whatever_goes_in_comes_out(files: dict[str, bytes], modified: int):
    pack = packed(files, modified)

    assert contents(pack) == files
    with zipfile.ZipFile(io.BytesIO(pack.data)) as archive:
        infos = archive.infolist()
        assert [archive.read(info) for info in infos[:-1]] == list(files.values())
        assert archive.testzip() is None
    assert [row.path for row in pack.members] == list(files)
    assert all((row.modified, row.push) == (modified, PUSH) for row in pack.members)
