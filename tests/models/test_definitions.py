"""Definitions: making, reading, finding them."""

from __future__ import annotations

import uuid

import pytest
import yaml

from bayou.core.errors import ModelAmbiguous, ModelExists, ModelInvalid, ModelNotFound
from bayou.models import create_model, defined, find_model, list_models, load_definition
from bayou.repo import Repo, init_repo


@pytest.fixture
def repo(tmp_path) -> Repo:
    return init_repo(tmp_path / "repo")


def write(repo: Repo, path: str, text: str) -> str:
    file = repo.root / "models" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return f"models/{path}"


ID = "0f0e0d0c-0b0a-4908-8706-050403020100"


@pytest.mark.parametrize("kind", ["net", "aws/ec2/vpc", "@team/report", "a-b_c.d/E9", "x"])
@pytest.mark.parametrize("name", ["web", "web server", "x.y", "2024", "größe", "東京", "a" * 250])
def test_what_was_created_can_be_read_back(repo, kind, name):
    made = create_model(repo, kind, name, {"region": "eu", "note": "a: b # c"})

    assert load_definition(repo, made.path) == made
    assert find_model(repo, name) == find_model(repo, made.id) == made
    assert defined(repo, name) == defined(repo, made.id) == made.ref
    assert uuid.UUID(made.id).version == 4


def test_a_definition_is_plain_yaml_for_people(repo):
    made = create_model(repo, "aws/ec2", "web", {"count": "3"})

    text = (repo.root / "models/aws/ec2/web.yaml").read_text()

    assert text == f"id: {made.id}\nname: web\ntype: aws/ec2\narguments:\n  count: '3'\n"
    assert yaml.safe_load(text)["arguments"] == {"count": "3"}


@pytest.mark.parametrize(
    "kind",
    ["", "/", "a/", "/a", "a//b", "..", "a/../b", "a b", "a\\b", "@", "@/a", "a/@b", "é", "a\n", "-a", "x" * 201],
)
def test_a_type_that_is_none_is_refused(repo, kind):
    with pytest.raises(ModelInvalid):
        create_model(repo, kind, "web")

    assert list((repo.root / "models").iterdir()) == []


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "../x", "a\0b", "a\nb", "a\\b", " a", "a ", ".hidden", "~x", "_index", "a" * 251]
)
def test_a_name_that_is_none_is_refused(repo, name):
    with pytest.raises(ModelInvalid):
        create_model(repo, "net", name)

    assert list((repo.root / "models").iterdir()) == []


def test_a_name_is_taken_once_in_a_type(repo):
    made = create_model(repo, "net", "web")

    with pytest.raises(ModelExists, match=r"models/net/web\.yaml"):
        create_model(repo, "net", "web", {"other": "1"})

    assert load_definition(repo, made.path) == made


def test_a_name_that_two_types_have_needs_the_id(repo):
    one = create_model(repo, "net", "web")
    with pytest.raises(ModelExists, match=r"the name web is taken by another model: models/net/web\.yaml"):
        create_model(repo, "aws/ec2", "web")
    created = repo.root / create_model(repo, "aws/ec2", "other").path
    created.with_name("web.yaml").write_text(created.read_text().replace("name: other", "name: web"))  # by hand, or Git
    created.unlink()
    two = load_definition(repo, "models/aws/ec2/web.yaml")

    for find in (find_model, defined):
        with pytest.raises(ModelAmbiguous) as caught:
            find(repo, "web")
        assert all(text in caught.value.message for text in (one.id, two.id, "net", "aws/ec2"))
    assert find_model(repo, two.id) == two


@pytest.mark.parametrize(("text", "hint"), [("wbe", "did you mean web?"), ("zzz", "`bayou model list`"), (ID, "list")])
def test_a_model_that_nobody_knows_is_said_to_be_unknown(repo, text, hint):
    create_model(repo, "net", "web")

    with pytest.raises(ModelNotFound, match=f"there is no model {text}") as caught:
        find_model(repo, text)

    assert hint in caught.value.hint
    assert defined(repo, text) is None


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("id: {id}\nname: web\ntype: net\n\nargumets: {{}}\n", "line 5: unknown key argumets", "mean arguments?"),
        ("id: {id}\nname: web\ntype: net\nxyzzy: 1\n", "line 4: unknown key xyzzy", "known keys: id, name, type"),
        ("id: {id}\nname: web\nname: web\ntype: net\n", "line 3: name stands there twice", "keep one"),
        ("id: {id}\nname: web\n", "it has no type", "id, name, type"),
        ("id: 7\nname: web\ntype: net\n", "line 1: id must be a text", "quotes"),
        ("id: seven\nname: web\ntype: net\n", "line 1: id is not a UUID", "committed"),
        ("id: {id}\nname: wob\ntype: net\n", "line 2: name is wob, but the file's place says web", "move"),
        ("id: {id}\nname: web\ntype: nut\n", "line 3: type is nut, but the file's place says net", "move"),
        ("id: {id}\nname: web\ntype: net\narguments: [1]\n", "line 4: arguments must be a mapping", "leave out"),
        ("id: {id}\nname: web\ntype: net\nmethods:\n  1: x\n", "line 5: the name 1 is not a text", "quotes"),
        ("id: {id}\nname: web\ntype: net\ntags:\n  cost: 12\n", "line 5: tags must be texts", "quotes"),
        ("id: {id}\nname: 'web\n", "line 3, found unexpected end of stream", "correct"),
        ("- a\n- b\n", "not a mapping", "known keys"),
        ("", "not a mapping", "known keys"),
        ("id: !!python/object:os.system {id}\nname: web\ntype: net\n", "line 1, could not", "correct"),
        ("id: {id}\nname: web\ntype: net\n---\nid: {id}\n", "line 4", "correct"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_said_with_its_line(repo, text, message, hint):
    path = write(repo, "net/web.yaml", text.format(id=ID))

    with pytest.raises(ModelInvalid) as caught:
        load_definition(repo, path)

    assert caught.value.message.startswith("models/net/web.yaml")
    assert message in caught.value.message
    assert "\n" not in caught.value.message
    assert hint in caught.value.hint


def test_bytes_that_are_no_text_are_an_error_of_that_file(repo):
    path = write(repo, "net/web.yaml", "")
    (repo.root / path).write_bytes(b"id: \xff\xfe\n")

    with pytest.raises(ModelInvalid, match=r"models/net/web\.yaml"):
        load_definition(repo, path)


def test_one_damaged_definition_hides_no_other(repo):
    good = create_model(repo, "net", "web")
    write(repo, "net/bad.yaml", "nope: 1\n")

    found = list_models(repo)

    assert found.models == (good,)
    assert [error.message for error in found.bad] == ["models/net/bad.yaml, line 1: unknown key nope"]
    assert find_model(repo, "web") == good


@pytest.mark.parametrize("place", ["web.yaml", "a b/web.yaml", "net/ web.yaml", "net/é/web.yaml"])
def test_a_definition_in_a_place_that_is_no_type_is_refused(repo, place):
    path = write(repo, place, f"id: {ID}\nname: web\ntype: net\n")

    for find in (lambda: load_definition(repo, path), lambda: find_model(repo, place.rpartition("/")[2][:-5])):
        with pytest.raises(ModelInvalid, match=path):
            find()


def test_a_damaged_definition_does_not_hide_an_id(repo):
    good = create_model(repo, "net", "web")
    write(repo, "net/bad.yaml", "nope: 1\n")

    assert find_model(repo, good.id) == good
    with pytest.raises(ModelInvalid, match="unknown key nope"):
        defined(repo, "bad")


def test_a_definition_with_all_that_people_may_write(repo):
    write(
        repo,
        "net/web.yaml",
        f'# ours\n"id": "{ID}"\nname: web\ntype: net\narguments: {{cidr: 10.0.0.0/8, ports: [80, 443]}}\n'
        "methods:\n  plan:\n    arguments: {dry: true}\ntags: {team: infra}\n",
    )

    found = find_model(repo, "web")

    assert found.arguments == {"cidr": "10.0.0.0/8", "ports": [80, 443]}
    assert found.methods == {"plan": {"arguments": {"dry": True}}}
    assert found.method_arguments("plan") == {"dry": True}
    assert found.method_arguments("other") == {}
    assert found.where(("methods", "plan", "arguments", "dry")) == "models/net/web.yaml, line 8"
    assert found.tags == {"team": "infra"}
    assert defined(repo, ID) == found.ref, "a quoted key is for the parser, not for the quick look"


@pytest.mark.parametrize("quote", ["", '"', "'"])
def test_an_id_is_found_without_a_parser_where_it_stands_plainly(repo, monkeypatch, quote):
    write(repo, "net/web.yaml", f"name: web\nid: {quote}{ID}{quote}\ntype: net\n")
    monkeypatch.setitem(__import__("sys").modules, "yaml", None)

    assert defined(repo, "web").id == defined(repo, ID).id == ID


def test_an_id_inside_another_value_is_not_the_models(repo):
    other = str(uuid.uuid4())
    write(
        repo,
        "net/web.yaml",
        f"arguments:\n  text: |\n    x\n\n    id: {other}\n  id: {other}\nid: {ID}\nname: web\ntype: net\n",
    )

    assert defined(repo, "web").id == find_model(repo, "web").id == ID
    assert defined(repo, other) is None


def test_what_editors_leave_behind_is_no_definition(repo):
    good = create_model(repo, "net", "web")
    for name in (".web.yaml", "web.yaml~", "web.yaml.swp", "README.md"):
        write(repo, f"net/{name}", "nope")
    write(repo, ".git/x.yaml", "nope")

    assert list_models(repo).models == (good,)
    assert list_models(repo).bad == ()


def test_a_repo_without_the_folder_has_no_models(repo):
    (repo.root / "models").rmdir()

    assert list_models(repo).models == ()
    assert defined(repo, "web") is None
