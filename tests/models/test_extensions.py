"""Types that a repo brings along: plain classes in extensions/models/*.py."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bayou.core.errors import TypeNotFound
from bayou.data.records import Records
from bayou.models.types import find_type, load_types
from bayou.repo import Repo
from tests.trusting import trust

DOCS = Path(__file__).resolve().parents[2] / "docs" / "models.md"


@pytest.fixture
def extension(repo: Repo):
    """Write a file of extensions."""

    def write(name: str, text: str) -> None:
        folder = repo.root / "extensions" / "models"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        trust(repo.root)

    return write


GREET = '''\
import helpers.words


class Greeter:
    """Greets people.

    More about it.
    """

    type = "@team/greet"
    outputs = {"many": [{"name": "card", "content_type": "text/plain", "lifetime": "7d", "keep": "3"}]}

    def __init__(self):
        self.word = helpers.words.WORD

    def one(self, name: str, times: int = 1) -> dict[str, str]:
        """Greet somebody."""
        print("greeting", name)
        return {"text": f"{self.word} {name} " * times}

    def many(self, names: list[str], work) -> None:
        for name in names:
            work.save("card", f"{self.word} {name}", tags={"to": name})
        work.save("root", str(work.root))
        if "nobody" in names:
            raise LookupError("nobody is here")

    def _helper(self): ...
'''


@pytest.fixture
def greeter(repo, extension):
    (repo.root / "helpers").mkdir()
    (repo.root / "helpers" / "words.py").write_text("WORD = 'hello'\n")
    extension("greet.py", GREET)


@pytest.mark.usefixtures("greeter")
def test_a_plain_class_is_a_type(repo):
    kind = load_types(repo)["@team/greet"]

    assert kind.description == "Greets people."
    assert list(kind.methods) == ["many", "one"]
    assert kind.methods["one"].description == "Greet somebody."
    assert kind.methods["one"].arguments["properties"] == {
        "name": {"type": "string"},
        "times": {"type": "integer", "default": 1},
    }
    assert kind.methods["many"].arguments["required"] == ["names"], "work is no argument"
    assert [output.name for output in kind.methods["one"].outputs] == ["result"]
    assert [(output.name, output.lifetime) for output in kind.methods["many"].outputs] == [("card", "7d")]


@pytest.mark.usefixtures("greeter")
def test_what_a_method_returns_and_prints_is_kept(define, go, read):
    model = define("@team/greet", "g", {"times": 2, "name": "Ann"})

    output = go(model, "one")

    assert (output.status, output.error) == ("succeeded", None)
    assert json.loads(read(model, "result")) == {"text": "hello Ann hello Ann "}
    assert read(model, "log") == b"greeting Ann\n"


@pytest.mark.usefixtures("greeter")
def test_what_a_method_saves_is_kept_as_declared(repo, define, go, read, names):
    model = define("@team/greet", "g", {"name": "unused by this method", "names": ["Ann", "Bob"]})

    output = go(model, "many")

    assert (output.status, output.error) == ("succeeded", None)
    assert names(model) == [("card", 1), ("card", 2), ("root", 1)], "None is no result"
    assert read(model, "card", 1) == b"hello Ann"
    assert read(model, "root") == str(repo.root).encode()
    with Records(repo) as records:
        card = records.data.get(model.ref, "card").metadata
    assert (card.lifetime, card.keep, card.tags, card.owner.output) == ("7d", "3", {"to": "Bob"}, output.id)


@pytest.mark.usefixtures("greeter")
def test_only_the_log_of_a_method_that_failed_stays(repo, define, go, names):
    model = define("@team/greet", "g", {"names": ["Ann", "nobody"]})

    output = go(model, "many")

    assert output.status == "failed"
    where = "extensions/models/greet.py, line 26, in many"
    assert output.error.startswith(f"LookupError: nobody is here ({where})\nTraceback")
    assert names(model) == [("log", 1)]
    with Records(repo) as records:
        kept = records.data.read(records.data.get(model.ref, "log")).decode()
    assert kept == output.error.partition("\n")[2]
    assert "python_child" not in kept


BROKEN = [
    ("syntax.py", "class A:\n  type = 'a'\n  def x(self:\n", "line 3: SyntaxError"),
    ("raises.py", "x = 1\n\nraise RuntimeError('no\\n good')\n", "line 3: RuntimeError: no good"),
    ("imports.py", "import nonesuch_module\n", "line 1: ModuleNotFoundError: No module named 'nonesuch_module'"),
    ("leaves.py", "import sys\nsys.exit(3)\n", "line 2: SystemExit: 3"),
    ("name.py", "class A:\n  type = '../x'\n  def f(self): ...\n", "A: '../x' is no type of models"),
    ("number.py", "class A:\n  type = 5\n  def f(self): ...\n", "A: '' is no type of models"),
    ("empty.py", "class A:\n  type = 'a/b'\n", "A has no methods"),
    ("typed.py", "class A:\n  type = 'a/b'\n  def f(self, x: set[int]): ...\n", "A.f: parameter x: set is not a type"),
    (
        "output.py",
        "class A:\n  type = 'a/b'\n  outputs = {'f': [{'name': 'x', 'lifetme': '7d'}]}\n  def f(self): ...\n",
        "outputs: unknown key lifetme",
    ),
    (
        "lifetime.py",
        "class A:\n  type = 'a/b'\n  outputs = {'f': [{'name': 'x', 'lifetime': '7 days'}]}\n  def f(self): ...\n",
        "outputs: '7 days' is no lifetime",
    ),
    (
        "method.py",
        "class A:\n  type = 'a/b'\n  outputs = {'g': []}\n  def f(self): ...\n",
        "outputs names g, which is no method",
    ),
    ("misnamed.py", "class A:\n  name = '@team/a'\n  def f(self): ...\n", "A has `name`, but no `type`"),
    ("kind.py", "class A:\n  kind = 'aws/ec2'\n  def f(self): ...\n", "A has `kind`, but no `type`"),
    ("mistyped.py", "class A:\n  typ = 'words'\n  def f(self): ...\n", "A has `typ`, but no `type`"),
    ("taken.py", "class A:\n  type = 'command/shell'\n  def f(self): ...\n", "there is a type command/shell already"),
]


@pytest.mark.usefixtures("greeter")
@pytest.mark.parametrize(("name", "text", "said"), BROKEN, ids=[name for name, _, _ in BROKEN])
def test_a_broken_file_is_named_and_the_others_work(repo, extension, name, text, said, capfd):
    extension(name, text)

    types = load_types(repo)

    (error,) = types.bad
    assert error.message.startswith(f"extensions/models/{name}")
    assert said in error.message
    assert "\n" not in error.message
    assert "@team/greet" in types
    assert capfd.readouterr().out == ""


def test_a_type_that_could_not_be_loaded_says_why_when_it_is_wanted(repo, extension):
    extension("mine.py", "import nonesuch_module\n")

    with pytest.raises(TypeNotFound) as caught:
        find_type(repo, "@team/mine")

    assert "extensions/models/mine.py, line 1: ModuleNotFoundError" in caught.value.message
    assert find_type(repo, "command/shell").name == "command/shell", "what is built in needs no extension"


def test_what_a_file_prints_when_it_is_loaded_is_no_result(repo, extension, capfd):
    extension("loud.py", "print('loaded')\nclass A:\n  type = 'a/b'\n  def f(self): ...\n")

    assert "a/b" in load_types(repo)
    assert capfd.readouterr() == ("", "loaded\n")


def test_a_file_that_has_changed_is_loaded_again(repo, extension):
    extension("a.py", "class A:\n  type = 'a/b'\n  def f(self): ...\n")
    assert list(load_types(repo)["a/b"].methods) == ["f"]

    extension("a.py", "class A:\n  type = 'a/b'\n  def f(self): ...\n  def g(self): ...\n")

    assert list(load_types(repo)["a/b"].methods) == ["f", "g"]


@pytest.mark.parametrize(
    "text",
    [
        "class Row:\n  name = 'words'\n  def f(self): ...\n",
        "class Row:\n  content = 'text/plain'\n  def f(self): ...\n",
        "class Row:\n  name = '@team/a'\n",
        "class _Base:\n  name = '@team/a'\n  def f(self): ...\n",
    ],
    ids=["a word", "another attribute", "no methods", "underscore"],
)
def test_a_class_that_only_helps_is_no_problem(repo, extension, text):
    extension("mine.py", text)

    assert load_types(repo).bad == ()


def test_files_that_begin_with_an_underscore_are_helpers(repo, extension):
    extension("_shared.py", "raise RuntimeError\n")

    assert load_types(repo).bad == ()


def test_the_example_of_the_documentation_works(repo, define, go, read):
    (example,) = re.findall(r"```python\n# (extensions/models/\S+)\n(.*?)```", DOCS.read_text(), re.DOTALL)
    path, text = example
    (repo.root / path).parent.mkdir(parents=True)
    (repo.root / path).write_text(text)
    trust(repo.root)
    (repo.root / "notes").mkdir()
    (repo.root / "notes" / "a.txt").write_text("one two two\nthree three three\n")

    (name,) = set(load_types(repo)) - {"command/shell", "python/call", "spark/sql"}
    model = define(name, "notes", {"folder": "notes"})
    output = go(model, "count", inputs={"most": 2})

    assert len(text.splitlines()) <= 20
    assert (output.status, output.error) == ("succeeded", None)
    assert json.loads(read(model, "result")) == {"three": 3, "two": 2}
    assert read(model, "a.txt") == b"6 words\n"
