"""`bayou data`: what scripts get back, field by field, and what people are told."""

from __future__ import annotations

import hashlib
import io
import json
import re
import sys

import pytest
from tests.cli.terminal import at_terminal

from bayou.models import create_model

UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


@pytest.fixture
def web(repo):
    """A model, in a repo whose datastore is its own directory."""
    return create_model(repo, "aws/ec2", "web")


@pytest.fixture
def typed(monkeypatch):
    """Give commands a standard input."""

    def type_(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    type_(b"")
    return type_


@pytest.fixture
def put(command, typed):
    """Put content, and return the document."""

    def call(content: bytes, *args: str, model: str = "web", name: str = "report"):
        typed(content)
        ran = command("data", "put", model, name, "-", "--always", *args, "--json")
        assert ran.code == 0, ran.err
        return ran.document

    return call


def test_a_put_is_told_exactly_as_documented(web, put):
    assert put(b"hello") == {
        "model": "web",
        "name": "report",
        "version": 1,
        "size": 5,
        "sha256": hashlib.sha256(b"hello").hexdigest(),
        "pushed": None,
    }
    assert put(b"again")["version"] == 2


def test_a_put_takes_a_file_or_what_is_typed_or_piped(web, command, typed, tmp_path):
    (tmp_path / "f").write_bytes(b"from a file")
    typed(b"from a pipe")

    assert command("data", "put", "web", "a", str(tmp_path / "f")).code == 0
    assert command("data", "put", "web", "b").code == 0
    typed(b"with a dash")
    assert command("data", "put", web.id, "c", "-").code == 0

    assert [command("data", "get", "web", name).out for name in "abc"] == ["from a file", "from a pipe", "with a dash"]


def test_a_put_tells_people_what_they_have_now(web, command, typed):
    typed(b'{"a": 1}')

    ran = command("data", "put", "web", "report", "-")

    assert (ran.code, ran.out, ran.err) == (0, "web report: version 1 (8 B, application/json)\n", "")


def test_an_append_is_told_exactly_as_documented(web, put, command, typed):
    put(b"one\n", "--streaming")
    typed(b"two\n")

    ran = command("data", "append", "web", "report", "--json")

    assert ran.document == {"model": "web", "name": "report", "version": 1, "size": 8, "pushed": None}
    assert command("data", "get", "web", "report").out == "one\ntwo\n"


def test_a_get_is_told_exactly_as_documented(web, put, command, repo):
    put(b'{"a": [1, null]}', "--tag", "env=prod", "--tag", "n=1", "--lifetime", "30d", "--keep", "5")

    document = command("data", "get", "web", "report", "--json").document

    path = repo.tree_root / "data/aws/ec2" / web.id / "report/1/raw"
    assert re.fullmatch(UUID, document.pop("id"))
    assert re.fullmatch(TIME, document.pop("created_at"))
    assert document == {
        "name": "report",
        "version": 1,
        "content_type": "application/json",
        "size": 16,
        "sha256": hashlib.sha256(b'{"a": [1, null]}').hexdigest(),
        "tags": {"env": "prod", "n": "1"},
        "owner": {"model": "web", "model_id": web.id, "type": "aws/ec2", "repo": repo.config.repo_id},
        "lifetime": "30d",
        "keep": "5",
        "streaming": False,
        "deleted": False,
        "renamed_to": None,
        "path": str(path),
        "content": {"a": [1, None]},
    }


@pytest.mark.parametrize(
    ("content", "kind", "shown"),
    [
        (b"[1, 2.5]", "application/json", [1, 2.5]),
        (b'{"@context": 1}', "application/ld+json", {"@context": 1}),
        (b"{broken", "application/json", "{broken"),
        (b"[NaN]", "application/json", "[NaN]"),
        (b"[1e999]", "application/json", "[1e999]"),
        (b"9" * 5000, "application/json", "9" * 5000),
        (b"\xc3\xa4 text", "text/plain; charset=utf-8", "ä text"),
        (b"\xff\xfe", "text/plain", None),
        (b"a: 1", "application/yaml", "a: 1"),
        (b"\x00\x01", "application/octet-stream", None),
        (b"plain", "image/png", None),
        (b"", "text/plain", ""),
    ],
)
def test_content_is_parsed_when_json_text_when_text_and_else_null(web, put, command, content, kind, shown):
    put(content, "--content-type", kind)

    ran = command("data", "get", "web", "report", "--json")

    assert json.loads(ran.out, parse_constant=pytest.fail)["content"] == shown


@pytest.mark.parametrize(
    ("name", "file", "args", "kind"),
    [
        ("report", "report.csv", (), "text/csv"),
        ("page.html", "report.csv", (), "text/html"),
        ("report", "report.csv", ("--content-type", "x/y"), "x/y"),
        ("report", "noend", (), "text/plain"),
    ],
)
def test_a_content_type_is_said_or_told_by_a_name_or_by_the_content(web, command, tmp_path, name, file, args, kind):
    (tmp_path / file).write_text("a,b\n")

    command("data", "put", "web", name, str(tmp_path / file), *args)

    assert command("data", "get", "web", name, "--json").document["content_type"] == kind


def test_a_catalog_that_was_mended_says_so_in_one_line(web, put, command, repo):
    """F115: on stderr for people, in the document for scripts, and once."""
    put(b"x")
    (repo.root / ".bayou" / "catalog.db").unlink()
    people = command("data", "list")
    (repo.root / ".bayou" / "catalog.db").unlink()
    script = command("data", "list", "--json")

    assert re.fullmatch(r"note: the catalog .*rebuilt.*\n", people.err)
    assert people.out.count("report") == 1
    (line,) = script.document["notes"]
    assert "rebuilt" in line
    assert "notes" not in command("data", "list", "--json").document


def test_an_earlier_version_is_got_by_its_number(web, put, command):
    put(b"one")
    put(b"two")

    assert command("data", "get", "web", "report").out == "two"
    assert command("data", "get", "web", "report", "--version", "1").out == "one"
    assert command("data", "get", "web", "report", "--version", "1", "--json").document["version"] == 1


def test_a_get_into_a_file_is_whole_and_prints_nothing(web, put, command, tmp_path):
    put(bytes(range(256)))
    target = tmp_path / "out.bin"
    target.write_bytes(b"before")

    ran = command("data", "get", "web", "report", "-o", str(target))

    assert (ran.code, ran.out) == (0, "")
    assert target.read_bytes() == bytes(range(256))
    assert command("data", "get", "web", "report", "-o", str(target), "--json").document["content"] is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.bin", "repo"]


def test_raw_bytes_pass_through_the_standard_streams_unchanged(web, processes, repo):
    """A real process: its streams are bytes, whatever they hold."""
    every = bytes(range(256)) * 3
    (processes.cwd / "in.bin").write_bytes(every)
    script = (
        "import subprocess, sys\n"
        "with open('in.bin', 'rb') as source:\n"
        "    bayou = [sys.executable, '-m', 'bayou', '--repo', sys.argv[1], 'data']\n"
        "    subprocess.run([*bayou, 'put', 'web', 'report', '-'], stdin=source, check=True, stdout=2)\n"
        "with open('out.bin', 'wb') as target:\n"
        "    subprocess.run([*bayou, 'get', 'web', 'report'], stdout=target, check=True)\n"
    )

    ran = processes.finish(processes.script(script, str(repo.root)))

    assert ran.code == 0, ran.err
    assert (processes.cwd / "out.bin").read_bytes() == every


def test_content_that_is_not_what_was_saved_is_an_error_and_reaches_no_file(web, put, command, repo, tmp_path):
    put(b"good bytes")
    (repo.tree_root / "data/aws/ec2" / web.id / "report/1/raw").write_bytes(b"evil bytes")
    target = tmp_path / "out"
    target.write_bytes(b"before")

    into = command("data", "get", "web", "report", "-o", str(target), "--json")
    shown = command("data", "get", "web", "report", "--json")
    printed = command("data", "get", "web", "report")

    assert [ran.code for ran in (into, shown, printed)] == [1, 1, 1]
    assert into.error["code"] == shown.error["code"] == "content_damaged"
    assert "SHA-256" in printed.err
    assert target.read_bytes() == b"before"


def test_a_list_is_told_exactly_as_documented(web, put, command):
    put(b"one", "--tag", "env=prod", "--lifetime", "30d")
    put(b"three", "--tag", "env=prod")

    document = command("data", "list", "--json").document

    (item,) = document.pop("items")
    assert re.fullmatch(TIME, item.pop("created_at"))
    assert document == {"total": 1}
    assert item == {
        "model": "web",
        "model_id": web.id,
        "type": "aws/ec2",
        "name": "report",
        "version": 2,
        "size": 5,
        "content_type": "text/plain",
        "tags": {"env": "prod"},
        "lifetime": None,
    }


def test_a_list_is_narrowed_by_model_type_and_tag(repo, web, put, command):
    create_model(repo, "net", "lan")
    put(b"1", "--tag", "env=prod", "--tag", "tier=1", name="a")
    put(b"2", "--tag", "env=test", name="b")
    put(b"3", "--tag", "env=prod", model="lan", name="c")

    def names(*args: str) -> list[str]:
        return [item["name"] for item in command("data", "list", *args, "--json").document["items"]]

    assert sorted(names()) == ["a", "b", "c"]
    assert sorted(names("web")) == sorted(names(web.id)) == sorted(names("--type", "aws/ec2")) == ["a", "b"]
    assert sorted(names("--tag", "env=prod")) == ["a", "c"]
    assert names("--tag", "env=prod", "--tag", "tier=1") == ["a"]
    assert names("web", "--type", "net") == []


def test_a_list_may_have_all_versions(web, put, command):
    put(b"1")
    put(b"2")

    document = command("data", "list", "--all-versions", "--json").document

    assert [item["version"] for item in document["items"]] == [1, 2]
    assert document["total"] == 2


def test_people_get_tables(web, put, command):
    put(b"x" * 1500, "--tag", "env=prod", "--lifetime", "4w")

    listed = command("data", "list").out.splitlines()
    versions = command("data", "versions", "web", "report").out.splitlines()

    assert listed[0].split() == ["model", "name", "version", "size", "content", "type", "created", "lifetime", "tags"]
    assert re.fullmatch(r"web +report +1 +1\.5 KB +text/plain +[\d-]+ [\d:]+ +4w +env=prod", listed[1])
    assert re.fullmatch(r" *1 +1\.5 KB +[\d-]+ [\d:]+ +[0-9a-f]{12} +latest", versions[1])
    assert command("data", "list", "--tag", "env=test").out == "no data\n"


def test_versions_are_told_exactly_as_documented(web, put, command):
    one, two = put(b"one"), put(b"two!")
    command("data", "delete", "web", "report", "--version", "2", "-y")

    versions = command("data", "versions", "web", "report", "--json").document["versions"]

    assert all(re.fullmatch(TIME, row.pop("created_at")) for row in versions)
    assert versions == [
        {"version": 1, "size": 3, "sha256": one["sha256"], "latest": True, "deleted": False},
        {"version": 2, "size": 0, "sha256": None, "latest": False, "deleted": True},
    ]
    assert two["version"] == 2


def test_a_query_is_told_exactly_as_documented(web, put, command):
    put(b'{"cost": 3}', "--tag", "env=prod", name="a")
    put(b'{"cost": 9}', "--tag", "env=test", name="b")

    selected = command("data", "query", 'tags.env == "prod"', "--select", "name", "--json")
    deep = command("data", "query", "attributes.cost > 5", "--select", "{'n': name, 'c': attributes.cost}", "--json")
    limited = command("data", "query", "true", "--limit", "1", "--json")

    assert selected.document == {"results": ["a"], "total": 1}
    assert deep.document == {"results": [{"n": "b", "c": 9}], "total": 1}
    assert (len(limited.document["results"]), limited.document["total"]) == (1, 2)


def test_a_query_for_people_is_one_result_on_a_line(web, put, command):
    put(b"x", name="größe")

    assert command("data", "query", "true", "--select", "name").out == '"größe"\n'
    assert command("data", "query", "false").out == "nothing matches\n"


def test_a_selection_is_shown_in_the_order_of_its_text_by_every_process(web, put, repo, processes):
    """The evaluator's maps are hash maps, and their order is another one each time."""
    put(b'{"z": 1, "y": {"d": 4, "c": 3, "b": 2, "a": 1}}', name="a")
    select = (
        '{"version": version, "name": name, "deep": attributes.y, '
        '"x": [name == "b" ? "deep" : "at", {"at": 1, "name": 2}]}'
    )
    told = '{"version": 1, "name": "a", "deep": {"a": 1, "b": 2, "c": 3, "d": 4}, "x": ["at", {"name": 2, "at": 1}]}'

    asked = ("data", "query", "true", "--select", select, "--repo", str(repo.root))
    shown = {processes.run(*asked).out for _ in range(3)}
    documents = {processes.run(*asked, "--json").out for _ in range(2)}

    assert shown == {f"{told}\n"}
    assert documents == {f'{{"results": [{told}], "total": 1}}\n'}


@pytest.mark.parametrize("predicate", ["nmae == 'x'", "name ==", "((("])
def test_a_query_that_cannot_be_is_an_error_before_anything_is_read(web, put, command, predicate):
    put(b"x")

    ran = command("data", "query", predicate, "--json")

    assert ran.code in (1, 2)
    assert ran.out == ""
    assert ran.error["message"]


def test_an_unknown_field_is_an_error_that_lists_the_known_ones(web, put, command):
    put(b"x")

    error = command("data", "query", "nmae == 'x'", "--json").error

    assert "nmae" in error["message"]
    assert all(name in f"{error['message']} {error['hint']}" for name in ("name", "version", "content", "workflow"))


def test_rows_that_cannot_be_evaluated_are_counted_and_named(web, put, command):
    put(b'{"cost": 3}', name="a")
    put(b"no json", name="b")

    ran = command("data", "query", "attributes.cost > 1", "--select", "name", "--json")

    people = command("data", "query", "attributes.cost > 1", "--select", "name")
    assert ran.code == people.code == 0
    assert (ran.document["results"], ran.document["total"], ran.document["failed"]) == (["a"], 1, 1)
    assert "b of web, version 1" in ran.document["warnings"][0]
    assert people.out == '"a"\n'
    assert people.err.startswith("warning: b of web, version 1: ")


def test_a_rename_is_told_exactly_as_documented(web, put, command):
    put(b"one")
    put(b"two")

    assert command("data", "rename", "web", "report", "summary", "--json").document == {
        "old": "report",
        "new": "summary",
        "version": 2,
        "pushed": None,
    }
    assert command("data", "get", "web", "summary", "--version", "1").out == "one"


def test_an_old_name_forwards_and_that_is_said_on_stderr(web, put, command):
    put(b"content")
    command("data", "rename", "web", "report", "summary")
    command("data", "rename", "web", "summary", "final")

    ran = command("data", "get", "web", "report")
    document = command("data", "get", "web", "report", "--json").document

    assert ran.out == "content"
    assert "report was renamed: this is final" in ran.err
    assert document["name"] == "final"
    assert document["forwarded"] == ["report", "summary"]


def test_a_delete_is_told_exactly_as_documented(web, put, command):
    for number in range(3):
        put(b"%d" % number)

    assert command("data", "delete", "web", "report", "--version", "1", "-y", "--json").document == {
        "versions_deleted": 1,
        "pushed": None,
    }
    assert command("data", "delete", "web", "report", "-y").out == (
        "deleted 2 versions of report (2 B); this cannot be undone\n"
    )
    assert put(b"after")["version"] == 4, "a number is never used twice"


@pytest.mark.parametrize(
    "args",
    [("data", "delete", "web", "report"), ("data", "gc"), ("data", "prune"), ("model", "delete", "web", "--data")],
)
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_nothing_is_deleted_where_nobody_can_be_asked(web, put, command, args, form):
    put(b"content", "--keep", "1")
    put(b"content", "--keep", "1")

    ran = command(*args, *form)

    assert ran.code == 2
    assert "-y" in ran.err
    assert "not_confirmed" in ran.err or not form
    assert len(command("data", "versions", "web", "report", "--json").document["versions"]) == 2


def test_a_gc_is_told_exactly_as_documented_and_its_dry_run_counts_the_same(web, put, command, repo):
    for number in range(4):
        put(b"x" * number, "--keep", "2")

    dry = command("data", "gc", "--dry-run", "--json").document
    before = size(repo)
    ran = command("data", "gc", "-y", "--json").document

    assert dry == {"expired": 0, "versions_deleted": 2, "bytes": before - size(repo)}
    assert ran == {**dry, "pushed": None}
    again = command("data", "gc", "-y", "--json").document
    assert again == {"expired": 0, "versions_deleted": 0, "bytes": 0, "pushed": None}


def test_a_gc_tells_people_what_goes_and_why(web, put, command):
    for _ in range(3):
        put(b"x", "--keep", "1")

    shown = command("data", "gc", "--dry-run").out.splitlines()
    ran = command("data", "gc", "-y").out

    assert [line.split()[-1] for line in shown[1:3]] == ["surplus", "surplus"]
    assert re.fullmatch(r"would delete 2 versions \(.*\): 0 expired, 2 surplus", shown[3])
    assert ran == shown[3].replace("would delete", "deleted") + "\n"
    assert command("data", "gc", "--dry-run").out == "nothing has expired, and no version is surplus\n"


def test_a_person_is_shown_what_a_gc_deletes_before_it_does(web, put, command):
    for _ in range(3):
        put(b"x", "--keep", "1")

    code, shown = at_terminal("n\n", "data", "gc")
    assert code == 2
    assert shown.count("surplus") >= 3
    assert len(command("data", "versions", "web", "report", "--json").document["versions"]) == 3

    code, shown = at_terminal("y\n", "data", "gc")
    assert code == 0
    assert "deleted 2 versions" in shown
    assert len(command("data", "versions", "web", "report", "--json").document["versions"]) == 1


def test_a_prune_is_told_exactly_as_documented(web, put, command, repo):
    put(b"content")
    (repo.root / web.path).unlink()

    spared = command("data", "prune", "-y", "--json").document
    before = size(repo)
    named = command("data", "prune", web.id, "-y", "--json").document

    assert {key: spared[key] for key in ("models", "versions_deleted", "bytes")} == dict.fromkeys(
        ("models", "versions_deleted", "bytes"), 0
    )
    assert web.id in spared["warnings"][0]
    assert named == {"models": 1, "versions_deleted": 1, "bytes": before - size(repo), "pushed": None}


def size(repo) -> int:
    """The bytes of all files in the tree."""
    return sum(file.stat().st_size for file in repo.tree_root.rglob("*") if file.is_file())


@pytest.mark.parametrize(
    ("args", "code", "error"),
    [
        (("get", "nobody", "report"), 2, "model_not_found"),
        (("put", "nobody", "report", "-"), 2, "model_not_found"),
        (("list", "nobody"), 2, "model_not_found"),
        (("get", "web", "nothing"), 1, "data_not_found"),
        (("versions", "web", "nothing"), 1, "data_not_found"),
        (("get", "web", "report", "--version", "9"), 1, "data_not_found"),
        (("delete", "web", "report", "--version", "9", "-y"), 1, "data_not_found"),
        (("delete", "web", "nothing", "-y"), 1, "data_not_found"),
        (("rename", "web", "nothing", "other"), 1, "data_not_found"),
        (("rename", "web", "report", "taken"), 1, "name_taken"),
        (("append", "web", "report", "-"), 1, "not_streaming"),
        (("append", "web", "nothing", "-"), 1, "data_not_found"),
        (("get", "web", "report", "--version", "0"), 2, "usage"),
        (("get", "web", "report", "--version", "x"), 2, "usage"),
        (("put", "web", "report", "no-such-file"), 2, "usage"),
        (("put", "web", "report", "."), 2, "usage"),
        (("get", "web", "report", "-o", "."), 2, "usage"),
        (("get", "web", "report", "-o", "no/such/place"), 1, "os_error"),
        (("put", "web", "report", "-", "--lifetime", "soon"), 2, "retention_invalid"),
        (("put", "web", "report", "-", "--keep", "0"), 2, "retention_invalid"),
        (("put", "web", "report", "-", "--tag", "novalue"), 2, "usage"),
        (("put", "web", "report", "-", "--tag", "a=1", "--tag", "a=2"), 2, "usage"),
        (("prune", "no-such-id", "-y"), 2, "model_not_found"),
    ],
)
def test_wrong_arguments_are_clear_errors_and_change_nothing(web, put, command, typed, repo, args, code, error):
    put(b"content")
    put(b"content", name="taken")
    before = {file: file.read_bytes() for file in repo.tree_root.rglob("*") if file.is_file()}
    typed(b"more")

    ran = command("data", *args, "--json")

    assert (ran.code, ran.error["code"]) == (code, error)
    assert ran.out == ""
    assert {file: file.read_bytes() for file in repo.tree_root.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize("name", ["a/b", "..", "../x", ".", "", "a\0b", "x" * 300, "a\\b", "a\nb"])
@pytest.mark.parametrize("verb", ["put", "append", "get", "versions", "delete", "rename"])
def test_a_name_that_has_no_safe_place_is_refused_by_every_command(web, command, typed, repo, verb, name):
    extra = {"put": ["-"], "append": ["-"], "delete": ["-y"], "rename": ["other"]}.get(verb, [])

    ran = command("data", verb, "web", name, *extra, "--json")

    assert (ran.code, ran.error["code"]) == (2, "name_refused")
    assert not (repo.tree_root / "data").exists()


@pytest.mark.parametrize("name", [".lock", "_index", "~x", ".locks", "_catalog.db", ".bayou", ".bayou-1.tmp"])
def test_f106_a_name_that_the_tree_keeps_for_itself_is_refused_at_once_with_the_reason(web, command, typed, name):
    typed(b"content")

    error = command("data", "put", "web", name, "-", "--json").error

    assert error["code"] == "name_refused"
    assert name in error["message"]


@pytest.mark.parametrize("name", ["a~b", "x.lock", "2024", "a.b.c", "with space", "größe", "-", "raw", "1"])
def test_f106_a_name_that_only_looks_odd_is_stored_like_any_other(web, put, command, name):
    put(b"content", name=name)

    assert command("data", "get", "web", "--", name).out == "content"
    assert [item["name"] for item in command("data", "list", "--json").document["items"]] == [name]


def test_metadata_that_does_not_parse_is_named_and_hides_nothing_else(web, put, command, repo):
    put(b"good")
    put(b"bad", name="broken")
    (repo.tree_root / "data/aws/ec2" / web.id / "broken/1/metadata.yaml").write_text("{ not yaml")

    listed = command("data", "list", "--json").document
    people = command("data", "list")

    assert [item["name"] for item in listed["items"]] == ["report"]
    assert any("broken/1/metadata.yaml" in text for text in listed["warnings"])
    assert "warning: " in people.err
    assert "broken/1/metadata.yaml" in people.err


def test_a_terminal_is_not_read_unless_somebody_says_so(web, command, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())

    ran = command("data", "put", "web", "report", "--json")

    assert (ran.code, ran.error["code"]) == (2, "usage")
    assert "FILE" in ran.error["message"]


def test_a_file_in_no_directory_is_refused_by_the_name_that_was_given(web, put, command):
    put(b"content")

    error = command("data", "get", "web", "report", "-o", "no/such/place", "--json").error

    assert error["message"] == "no/such: No such file or directory"


def test_a_dash_as_the_target_is_the_standard_output(web, put, command, repo):
    put(b"hello")

    ran = command("data", "get", "web", "report", "-o", "-")

    assert (ran.code, ran.out) == (0, "hello")
    assert not (repo.root / "-").exists()
    assert command("data", "get", "web", "report", "-o", "-", "--json").error["code"] == "usage"


@pytest.mark.parametrize("args", [("delete", "-y"), ("rename", "other"), ("delete", "-y", "--version", "1")])
def test_a_command_that_follows_no_rename_says_what_the_item_is_called_now(web, put, command, args):
    put(b"hello")
    assert command("data", "rename", "web", "report", "its report").code == 0

    error = command("data", args[0], "web", "report", *args[1:], "--json").error

    assert (error["code"], error["message"]) == ("data_not_found", "report of web was renamed: it is its report now")
    assert error["hint"] == "see its versions with `bayou data versions web 'its report'`"


def test_a_renamed_item_that_was_deleted_is_named_as_it_was_last_called(web, put, command):
    put(b"hello")
    for old, new in (("report", "second"), ("second", "third")):
        assert command("data", "rename", "web", old, new).code == 0
    assert command("data", "delete", "web", "third", "-y").code == 0

    error = command("data", "get", "web", "report", "--json").error

    assert (error["code"], error["message"]) == ("data_not_found", "third of web was deleted")


def test_an_append_to_nothing_says_how_to_begin(web, command, typed):
    typed(b"line\n")

    error = command("data", "append", "web", "the log", "--json").error

    assert error["code"] == "data_not_found"
    assert error["hint"].endswith("; begin it with `bayou data put web 'the log' --streaming`")


@pytest.mark.parametrize(
    "args", [("get", "web", "reprot"), ("get", "web", "reprot", "--version", "1"), ("versions", "web", "reprot")]
)
def test_a_name_that_is_almost_right_is_suggested(web, put, command, args):
    put(b"hello")

    error = command("data", *args, "--json").error

    assert (error["code"], error["hint"]) == ("data_not_found", "did you mean report?")


def test_a_version_that_is_not_there_is_not_taken_for_a_wrong_name(web, put, command):
    put(b"hello")
    put(b"hello", name="report2")

    error = command("data", "get", "web", "report", "--version", "9", "--json").error

    assert error["hint"] == "see its versions with `bayou data versions web report`"


@pytest.mark.parametrize(
    ("target", "why"), [("rows", "it has no ending"), ("rows.xls", "the ending .xls is unknown")], ids=str
)
def test_a_file_whose_name_says_no_format_is_refused_in_a_plain_sentence(repo, command, target, why):
    error = command("data", "sql", "SELECT 1", "-o", target, "--json").error

    assert error["message"] == f"the name {target} does not say which format to write: {why}"
    assert ".csv" in error["hint"]
