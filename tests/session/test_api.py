"""The public API: every name that `docs/api.md` promises, and how long what it opens stays open."""

from __future__ import annotations

import gc
import io
import os
import pydoc
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import bayou
from bayou.core.errors import AlreadyInitialized, DataNotFound, LeaseTimeout, NotARepo, NotStreaming, QueryInvalid
from tests.sync.conftest import Clone, Team, Wire


@pytest.fixture
def clone(team: Team) -> Clone:
    return team.clone("a")


@pytest.fixture
def repo(clone: Clone) -> Iterator[bayou.Repo]:
    opened = bayou.open(clone.repo.root)
    opened.models.create("host/linux", "web1")
    yield opened
    opened.close()


def owners(clone: Clone) -> list[Path]:
    return list((clone.repo.state / "owners").iterdir())


def descriptors(name: str) -> int:
    """Return how many descriptors of this process are of a file of this name."""
    links = (Path("/proc/self/fd") / number for number in os.listdir("/proc/self/fd"))
    return sum(os.path.basename(os.readlink(link)) == name for link in links if link.is_symlink())


def test_the_package_has_five_names_and_shows_them() -> None:
    assert {"open", "init", "Repo", "errors", "__version__"} == set(bayou.__all__) <= set(dir(bayou))
    assert bayou.errors.LeaseTimeout is LeaseTimeout
    assert import_module("bayou.errors").LeaseTimeout is LeaseTimeout, "`import bayou.errors` works too"
    assert bayou.__version__[0].isdigit()
    shown = pydoc.plain(pydoc.render_doc(bayou))
    assert all(word in shown for word in ("class Repo", "open(path", "init(path", "repo.session", "query(self"))


def test_help_of_the_errors_shows_their_tree_and_their_classes() -> None:
    shown = pydoc.plain(pydoc.render_doc(bayou.errors))
    assert all(word in shown for word in ("│   ├── LeaseTimeout", "class LeaseTimeout", "Catch `BayouError`"))
    assert "ClassVar" not in shown.partition("class AccessDenied")[0]


def test_importing_the_package_imports_nothing_else_of_it() -> None:
    code = "import sys, bayou; dir(bayou); print([name for name in sys.modules if name.startswith('bayou.')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_init_makes_a_repo_and_opens_it(tmp_path: Path) -> None:
    with bayou.init(tmp_path / "new") as repo:
        assert isinstance(repo, bayou.Repo)
        assert (tmp_path / "new" / "bayou.toml").is_file()
    with pytest.raises(AlreadyInitialized):
        bayou.init(tmp_path / "new")
    with pytest.raises(NotARepo):
        bayou.open(tmp_path)


def test_an_item_knows_its_version_and_gives_its_content(repo: bayou.Repo) -> None:
    with repo.session("web1") as session:
        saved = session.data.save("usage", {"disk": 51}, tags={"env": "prod"})
        assert session.data.get("usage").sha256 == saved.sha256

    item = repo.data.get("web1", "usage")

    assert (item.model, item.name, item.version, item.tags) == ("web1", "usage", 1, {"env": "prod"})
    assert (item.sha256, item.created_at, item.size) == (saved.sha256, saved.created_at, 12)
    assert item.content_type == "application/json"
    assert (item.read(), item.text(), item.json()) == (b'{"disk": 51}', '{"disk": 51}', {"disk": 51})
    assert item.path().read_bytes() == item.open().read() == item.read()
    assert repr(item) == "<DataItem web1/usage version 1>"


@pytest.mark.parametrize(
    ("value", "content"),
    [
        (b"\x00", b"\x00"),
        (bytearray(b"\x01"), b"\x01"),
        ("grün", "grün".encode()),
        (io.BytesIO(b"file"), b"file"),
        (iter([b"a", b"b"]), b"ab"),
        ([1, None, "ü"], '[1, null, "ü"]'.encode()),
        (51, b"51"),
    ],
    ids=["bytes", "bytearray", "text", "file", "iterator", "list", "number"],
)
def test_save_takes_bytes_text_files_iterators_and_json_values(repo: bayou.Repo, value: object, content: bytes) -> None:
    assert repo.data.save("web1", "x", value).read() == content


def test_save_takes_the_file_of_a_path_with_the_type_of_its_name(repo: bayou.Repo, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("a,b\n")

    item = repo.data.save("web1", "table", tmp_path / "table.csv")

    assert (item.text(), item.content_type) == ("a,b\n", "text/csv")


def test_what_has_no_json_form_is_refused_and_nothing_is_saved(repo: bayou.Repo) -> None:
    for value in (object(), {"x": float("nan")}):
        with pytest.raises((TypeError, ValueError)):
            repo.data.save("web1", "x", value)
    with pytest.raises(DataNotFound):
        repo.data.get("web1", "x")


def test_versions_are_those_that_are_not_deleted_the_oldest_first(repo: bayou.Repo) -> None:
    for number in range(1, 4):
        repo.data.save("web1", "x", number)
    repo.data.delete("web1", "x", 2)

    assert [(item.version, item.json()) for item in repo.data.versions("web1", "x")] == [(1, 1), (3, 3)]
    assert repo.data.get("web1", "x", version=1).json() == 1
    with pytest.raises(DataNotFound):
        repo.data.versions("web1", "y")


def test_a_session_appends_renames_and_deletes(repo: bayou.Repo) -> None:
    with repo.session("web1") as session:
        session.data.save("log", "one\n", streaming=True)
        assert session.data.append("log", "two\n").text() == "one\ntwo\n"
        session.data.save("old", 1)
        session.data.rename("old", "new")
        session.data.save("gone", 1)
        assert session.data.delete("gone") == 1
        with pytest.raises(NotStreaming):
            session.data.append("new", b"2")
        assert [item.version for item in session.data.versions("log")] == [1]

    assert repo.data.get("web1", "old").name == "new"
    assert session.pushed is not None
    assert session.pushed.failed == []


def test_reports_of_push_and_pull_count_files(repo: bayou.Repo, team: Team) -> None:
    repo.data.save("web1", "x", 1)
    assert repo.push().pushed.files == 2
    assert repo.push().pushed.files == 0

    with bayou.open(team.clone("b").repo.root) as other:
        assert other.pull().pulled.files == 2
        assert other.data.get("web1", "x").json() == 1, "a model that only another clone defines"
        assert other.pull("web1").pulled.files == 0


def test_content_that_is_absent_is_fetched_when_it_is_read(repo: bayou.Repo, team: Team) -> None:
    repo.data.save("web1", "x", "far away")
    repo.push()

    with bayou.open(team.clone("b", hydrate="lazy").repo.root) as other:
        other.pull()
        item = other.data.get("web1", "x")
        assert not other.tree.exists(item.metadata.location.raw)
        assert item.text() == "far away"
        assert item.path().read_text() == "far away"


def test_find_and_query_return_items(repo: bayou.Repo) -> None:
    repo.data.save("web1", "x", 1, tags={"env": "prod"})
    repo.data.save("web1", "x", 2, tags={"env": "prod"})
    repo.data.save("web1", "y", 3, tags={"env": "test"})

    assert [(item.name, item.json()) for item in repo.data.find("web1", tags={"env": "prod"})] == [("x", 2)]
    assert sorted(item.json() for item in repo.query('tags.env == "prod"')) == [1, 2]
    assert [item.json() for item in repo.query('latest && tags.env == "test"', limit=1)] == [3]
    with pytest.raises(QueryInvalid):
        repo.query("tags.env ==")
    with pytest.raises(QueryInvalid, match=r"^1 version cannot be evaluated: "):
        repo.query('name == "y" && attributes.x > 1')


def test_a_chain_works_and_leaves_nothing_open(clone: Clone) -> None:
    assert bayou.open(clone.repo.root).sync.status().healthy
    bayou.open(clone.repo.root).models.create("host/linux", "web1")
    assert bayou.open(clone.repo.root).data.save("web1", "x", "kept").text() == "kept"
    item = bayou.open(clone.repo.root).data.get("web1", "x")
    gc.collect()

    assert (item.text(), item.path().read_text()) == ("kept", "kept")
    del item
    gc.collect()
    assert owners(clone) == []
    assert (descriptors("sync.db"), descriptors("catalog.db"), descriptors("catalog.db.lock")) == (0, 0, 0)


def test_a_closed_repo_has_closed_its_database_also_after_an_error(repo: bayou.Repo, clone: Clone) -> None:
    def work() -> None:
        with repo, repo.session("web1") as session:
            session.data.save("x", 1)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        work()

    assert descriptors("sync.db") == 0
    assert owners(clone) == []
    assert repo.data.get("web1", "x").json() == 1, "used again, it opens again"


def test_all_that_a_repo_does_opens_one_database_and_one_store(
    repo: bayou.Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bayou.repo import Repo
    from bayou.state.database import Database

    opens: list[str] = []
    really_open, really_store = Database._open, Repo.store
    monkeypatch.setattr(Database, "_open", lambda self: opens.append("database") or really_open(self))
    monkeypatch.setattr(Repo, "store", lambda self: opens.append("store") or really_store(self))

    with repo.session("web1") as session:
        session.data.save("x", 1)
    repo.data.save("web1", "x", 2)
    repo.push()
    repo.pull()
    repo.query("true")
    repo.sync.status()

    assert sorted(opens) == ["database", "store"]


def test_threads_share_a_repo(repo: bayou.Repo) -> None:
    def work(name: str) -> None:
        for number in range(5):
            repo.data.save("web1", name, number)
            assert repo.data.get("web1", name).json() == number

    threads = [threading.Thread(target=work, args=(f"x{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [len(repo.data.versions("web1", f"x{number}")) for number in range(4)] == [5] * 4
    assert repo.push().pushed.files == 40


def test_a_forked_child_has_a_database_and_a_presence_of_its_own(repo: bayou.Repo, clone: Clone) -> None:
    repo.data.save("web1", "x", "parent")
    (before,) = owners(clone)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            repo.data.save("web1", "x", "child")
            status = 0 if len(owners(clone)) == 2 else 2
            repo.close()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    assert owners(clone) == [before], "the parent is still present"
    assert [item.text() for item in repo.data.versions("web1", "x")] == ["parent", "child"]
    assert repo.push().pushed.files == 4


def test_reading_sends_no_request(repo: bayou.Repo, wire: Wire) -> None:
    repo.data.save("web1", "x", 1)

    assert repo.data.get("web1", "x").json() == 1
    assert [item.name for item in repo.query("true")] == ["x"]
    assert wire.seen == []
