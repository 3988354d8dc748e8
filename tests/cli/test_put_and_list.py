"""What people expect of put, list, get and sql: no needless versions, right types, an order, no binary on a screen."""

from __future__ import annotations

import pytest
from tests.cli.terminal import at_terminal


@pytest.fixture
def put(repo, command):
    assert command("model", "create", "host", "web").code == 0

    def save(name: str, content: bytes, *more: str, file: str = "input") -> dict:
        (repo.root / file).write_bytes(content)
        ran = command("data", "put", "web", name, file, *more, "--json")
        assert ran.code == 0, ran.err
        return ran.document

    return save


def test_equal_bytes_and_metadata_make_no_new_version_unless_always(put, command):
    first = put("report", b"same", "--tag", "env=prod")

    assert put("report", b"same", "--tag", "env=prod") == {**first, "unchanged": True}
    assert "unchanged, version 1" in command("data", "put", "web", "report", "input", "--tag", "env=prod").out
    assert put("report", b"same", "--tag", "env=prod", "--always")["version"] == 2
    assert put("report", b"same", "--tag", "env=test")["version"] == 3
    assert put("report", b"same", "--tag", "env=test", "--keep", "3")["version"] == 4
    assert put("report", b"other", "--tag", "env=test", "--keep", "3")["version"] == 5


@pytest.mark.parametrize("more", [["--lifetime", "7d"], ["--streaming"]])
def test_a_version_with_a_time_of_its_own_is_always_new(put, more):
    assert [put("report", b"same", *more)["version"] for _ in range(2)] == [1, 2]


def test_an_infinite_lifetime_is_the_same_as_none_and_a_deleted_version_is_nothing_to_equal(put, command):
    put("report", b"same")
    assert put("report", b"same", "--lifetime", "infinite")["unchanged"] is True
    command("data", "delete", "web", "report", "-y")

    assert put("report", b"same")["version"] == 2


def test_an_equal_directory_makes_no_new_version(put, repo, command):
    (repo.root / "dir").mkdir()
    (repo.root / "dir" / "a").write_text("a")
    saved = [command("data", "put", "web", "orders", "dir", "--json").document for _ in range(2)]

    assert saved[1] == {**saved[0], "unchanged": True}
    assert command("data", "put", "web", "orders", "dir", "--always", "--json").document["version"] == 2


def test_a_list_is_sorted_limited_and_chosen_by_name(put, command):
    for name, length in (("report-b", 5), ("report-a", 9), ("usage", 7)):
        put(name, b"x" * length)

    def names(*args: str) -> list[str]:
        return [item["name"] for item in command("data", "list", *args, "--json").document["items"]]

    assert names("--sort", "size") == ["report-a", "usage", "report-b"]
    assert names("--sort", "created") == ["usage", "report-a", "report-b"]
    assert names("--sort", "name", "--limit", "2") == ["report-a", "report-b"]
    assert names("--name", "report-*") == ["report-a", "report-b"]
    assert names("--name", "REPORT-?") == []
    limited = command("data", "list", "--limit", "1", "--json").document
    assert (len(limited["items"]), limited["total"]) == (1, 3)
    assert "1 of 3" in command("data", "list", "--limit", "1").err
    assert command("data", "list", "--sort", "colour", "--json").code == 2


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("table.parquet", b"PAR1\0", "application/vnd.apache.parquet"),
        ("table", b"PAR1\x15\0\xff", "application/vnd.apache.parquet"),
        ("rows.jsonl", b"{}\n{}\n", "application/x-ndjson"),
        ("flow.yaml", b"a: 1\n", "application/yaml"),
        ("notes.md", b"# a\n", "text/markdown"),
        ("picture", b"\x89PNG\r\n\x1a\n\0", "image/png"),
        ("archive", b"PK\x03\x04\0\xff", "application/zip"),
        ("orc-like words", b"ORCHESTRA", "text/plain"),
        ("other", b"\0\x01\xff", "application/octet-stream"),
    ],
)
def test_content_types_are_right_by_name_and_by_first_bytes(put, command, name, content, kind):
    put(name, content)

    assert command("data", "list", "--json").document["items"][0]["content_type"] == kind


def test_a_file_that_sql_cannot_write_is_an_error_before_spark_starts(repo, command):
    ran = command("data", "sql", "SELECT 1", "-o", "q.xlsx", "--json")

    assert (ran.code, ran.error["code"]) == (2, "usage")
    assert ".xlsx" in ran.error["message"]
    assert "--format" in ran.error["hint"]


def test_binary_content_is_not_printed_on_a_terminal(put):
    put("picture", b"\x89PNG\r\n\x1a\n\0\0\0")
    put("noise", bytes(range(128, 256)))  # without a NUL
    put("text", b"words\n")
    put("old", "gr\u00fcn und wei\u00df\n".encode("latin-1"))

    assert "-o FILE" in at_terminal("", "data", "get", "web", "noise")[1]
    assert "gr\\xfcn" in at_terminal("", "data", "get", "web", "old")[1]
    code, shown = at_terminal("", "data", "get", "web", "picture")
    assert (code, "PNG" in shown, "-o FILE" in shown) == (2, False, True)
    assert "words" in at_terminal("", "data", "get", "web", "text")[1]
