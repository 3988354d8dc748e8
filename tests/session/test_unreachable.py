"""The store cannot be had (V22): what each writing command saves, says and exits with, and how it goes on."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bayou.cli import run
from bayou.core.errors import CannotConnect, NotPushed
from bayou.core.ids import ulid
from bayou.leases import model_key, open_leases
from bayou.models import create_model
from bayou.objectstore import keys
from bayou.objectstore.retry import RetryingClient, RetryPolicy
from bayou.repo import init_repo
from bayou.session import write_session
from bayou.state.freshness import pending_inputs
from bayou.sync.plan.policy import ModelRef
from bayou_testing.faults import Fail, Reset, Rule, Silent
from bayou_testing.processes import free_ports
from bayou_testing.proxy import HttpProxy
from tests.session.commands import Ran, clones
from tests.sync.conftest import Clone, Team
from tests.trusting import trust

pytestmark = pytest.mark.s3

FLOW = """
id: 7f3c9a5e-2d1b-4c8f-9e60-5a4b3c2d1e0f
name: nightly
jobs:
  - name: main
    steps:
      - {name: first, model: maker, method: execute}
"""


@dataclass
class Person:
    """One clone, and commands in this process."""

    clone: Clone
    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch

    def run(self, *words: str, typed: str | None = None) -> Ran:
        self.monkeypatch.chdir(self.clone.repo.root)
        stdin = io.TextIOWrapper(io.BytesIO((typed or "").encode()))
        self.monkeypatch.setattr(sys, "stdin", stdin)
        self.capsys.readouterr()
        code = run([*words, "--json"])
        out, err = self.capsys.readouterr()
        return Ran(code, out, err)

    def does(self, *words: str, typed: str | None = None) -> Any:
        ran = self.run(*words, typed=typed)
        assert ran.code == 0, ran.err
        return ran.document

    def reach(self, endpoint: str) -> None:
        """Let this clone expect its store at another address."""
        text = self.clone.repo.file.read_text()
        old = self.clone.repo.config.datastore.options["endpoint"]
        self.clone.repo.file.write_text(text.replace(old, endpoint))
        trust(self.clone.repo.root)
        self.clone.reopen()

    def content(self, name: str) -> list[str]:
        """The content of every version of an item, the oldest first."""
        rows = self.does("data", "versions", "one", name)["versions"]
        numbers = sorted(row["version"] for row in rows if not row["deleted"])
        return [self.does("data", "get", "one", name, "--version", str(number))["content"] for number in numbers]


Persons = Callable[..., list[Person]]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries without pauses: how often, and of what, stays as it is."""
    monkeypatch.setattr(RetryPolicy, "backoff", lambda *_: 0.001)


@pytest.fixture
def persons(s3_team: Team, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, quick: None) -> Persons:
    def make(*names: str) -> list[Person]:
        made, _ = clones(s3_team, *names)
        for clone in made:
            create_model(clone.repo, "command/shell", "maker", {"run": "echo made"})
            (clone.repo.root / "workflows" / "nightly.yaml").write_text(FLOW)
        return [Person(clone, capsys, monkeypatch) for clone in made]

    return make


def closed_port() -> str:
    return f"http://127.0.0.1:{free_ports(1)[0]}"


REFUSED = [
    ("data", "rename", "one", "report", "other"),
    ("data", "delete", "one", "report", "-y"),
    ("data", "gc", "-y"),
    ("data", "prune", "-y"),
    ("model", "delete", "maker", "-y"),
    ("workflow", "evaluate", "nightly"),
    ("workflow", "delete", "nightly", "-y"),
]
RUNS = [("model", "run", "maker", "execute"), ("workflow", "run", "nightly")]


def test_with_a_closed_port_each_command_saves_or_refuses_and_all_goes_up_when_the_store_is_back(
    persons: Persons, s3_team: Team
) -> None:
    ann, bob = persons("ann", "bob")
    ann.does("data", "put", "one", "report", typed="r1")
    ann.does("data", "put", "one", "log", "--streaming", typed="a\n")
    bob.does("datastore", "sync")
    there = ann.clone.repo.config.datastore.options["endpoint"]
    ann.reach(closed_port())

    saved = ann.run("data", "put", "one", "report", typed="r2 of ann")
    assert (saved.code, saved.error["code"]) == (5, "not_pushed")
    assert {key: saved.document[key] for key in ("version", "pushed", "waiting")} == {
        "version": 2,
        "pushed": False,
        "waiting": 2,
    }
    assert "cannot connect" in saved.error["message"]
    assert "bayou datastore sync" in saved.error["hint"]
    for number, line in enumerate(("b\n", "c\n"), 3):
        kept = ann.run("data", "append", "one", "log", typed=line)
        assert (kept.code, kept.error["code"]) == (5, "not_pushed")
        assert (kept.document["version"], kept.document["kept"]["size"]) == (None, 2)
        assert (kept.document["pushed"], kept.document["waiting"]) == (False, number)
    before = ann.clone.files
    for words in (*REFUSED, *RUNS):
        refused = ann.run(*words)
        assert (refused.code, refused.error["code"], refused.out) == (1, "cannot_connect", ""), words
        assert ("--offline" in refused.error["hint"]) == (words in RUNS), refused.error
        assert ann.clone.files == before, words
    assert (ann.clone.repo.root / "workflows" / "nightly.yaml").exists()

    status = ann.run("datastore", "status")
    assert (status.code, status.document["healthy"], status.document["waiting"]) == (1, False, 4)
    assert status.document["freshness"]["age_s"] >= 0
    assert ann.does("data", "list")["notes"] == ["4 changes not pushed"]
    synced = ann.run("datastore", "sync")
    assert (synced.code, "4 changes not pushed yet, and kept here" in synced.error["hint"]) == (1, True)
    for words in RUNS:
        assert ann.does(*words, "--offline")["pushed"] is False
    for command in ("put", "delete"):
        rest = ["-y"] if command == "delete" else []
        document = ann.does("data", command, "one", "scratch", *rest, "--offline", typed="x")
        assert document["pushed"] is False
        assert document["waiting"] > 4

    bob.does("data", "put", "one", "report", typed="r2 of bob")
    bob.does("data", "append", "one", "log", typed="of bob\n")
    ann.reach(there)
    synced = ann.does("datastore", "sync")
    assert synced["pushed"]["renumbered"] == 1
    assert (pending_inputs(ann.clone.repo), ann.clone.status().waiting) == ([], 0)
    bob.does("datastore", "sync")
    for person in (ann, bob):
        assert person.content("report") == ["r1", "r2 of bob", "r2 of ann"]
        assert person.content("log") == ["a\nof bob\nb\nc\n"], "each append once, in order"
        assert "notes" not in person.does("data", "list")
    assert bob.clone.files == ann.clone.files


@pytest.mark.parametrize("fault", [Reset(), Fail(503)], ids=["reset", "503"])
@pytest.mark.parametrize(
    "words",
    [
        ("data", "put", "one", "report"),
        ("data", "append", "one", "log"),
        ("data", "rename", "one", "log", "other"),
        *RUNS,
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_store_that_dies_before_the_push_leaves_the_work_saved_and_the_next_write_pushes_it(
    persons: Persons, proxy: HttpProxy, words: tuple[str, ...], fault: Fail | Reset
) -> None:
    ann, bob = persons("ann", "bob")
    ann.does("data", "put", "one", "log", "--streaming", typed="a\n")
    proxy.faults.add(Rule(fault, method="PUT", path=r"\.bayou/(packs|nodes|head)|~"))

    ran = ann.run(*words, typed="b\n")

    assert (ran.code, ran.error["code"]) == (5, "not_pushed"), ran
    assert ran.document["pushed"] is False
    assert ran.document["waiting"] > 0
    proxy.faults.clear()
    assert ann.does("data", "put", "one", "next", typed="n")["pushed"] is True
    assert ann.clone.status().waiting == 0
    bob.does("datastore", "sync")
    assert bob.clone.files == ann.clone.files


def test_a_failed_method_exits_1_also_if_the_store_dies(persons: Persons, proxy: HttpProxy) -> None:
    (ann,) = persons("ann")
    proxy.faults.add(Rule(Fail(503), method="PUT", path=r"\.bayou/(packs|nodes|head)|~"))

    ran = ann.run("model", "run", "maker", "execute", "--input", "run=exit 4")

    assert (ran.code, ran.document["status"], ran.document["pushed"]) == (1, "failed", False)


def test_while_another_process_has_the_lease_a_put_is_saved_an_append_kept_and_the_rest_exits_75(
    persons: Persons, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann, bob = persons("ann", "bob")
    ann.does("data", "put", "one", "log", "--streaming", typed="a\n")
    monkeypatch.setenv("BAYOU_LOCK_TIMEOUT", "0")
    ids = {name: ann.does("model", "get", name) for name in ("one", "maker")}
    with open_leases(bob.clone.repo).acquire_all(model_key(one["type"], one["id"]) for one in ids.values()):
        saved = ann.run("data", "put", "one", "report", typed="r")
        kept = ann.run("data", "append", "one", "log", typed="b\n")
        for words in (*REFUSED[:1], RUNS[0]):
            refused = ann.run(*words)
            assert (refused.code, refused.error["code"]) == (75, "lease_timeout"), (words, refused.error)
        flow = ann.run("workflow", "run", "nightly")
    assert (saved.code, saved.document["version"], "held by" in saved.error["message"]) == (5, 1, True)
    assert (kept.code, kept.document["version"]) == (5, None)
    assert (flow.code, flow.document["status"]) == (1, "failed"), "its step has started no method"
    assert ann.does("model", "outputs", "maker")["outputs"] == []

    noted = ann.does("data", "put", "one", "other", typed="o")
    assert (noted["pushed"], pending_inputs(ann.clone.repo)) == (True, [])
    assert any("appended to version 1" in note for note in noted["notes"])
    assert ann.content("log") == ["a\nb\n"]


def test_inputs_of_another_model_go_with_the_next_write_too(persons: Persons) -> None:
    (ann,) = persons("ann")
    ann.does("model", "create", "@org/shell", "two")
    ann.does("data", "put", "one", "log", "--streaming", typed="a\n")
    there = ann.clone.repo.config.datastore.options["endpoint"]
    ann.reach(closed_port())
    assert ann.run("data", "append", "one", "log", typed="b\n").code == 5
    ann.reach(there)

    assert ann.does("data", "put", "two", "x", typed="x")["pushed"] is True

    assert pending_inputs(ann.clone.repo) == []
    assert ann.content("log") == ["a\nb\n"]


def test_an_input_that_can_never_be_used_is_kept_aside_and_named(persons: Persons) -> None:
    (ann,) = persons("ann")
    there = ann.clone.repo.config.datastore.options["endpoint"]
    ann.reach(closed_port())
    assert ann.run("data", "append", "one", "nothing", typed="lost?").code == 5
    ann.reach(there)

    synced = ann.does("datastore", "sync")

    (warning,) = synced["warnings"]
    assert "cannot be used: one has no data named nothing" in warning
    refused = ann.clone.repo.state / "spool" / "refused"
    assert [file.read_text() for file in refused.glob("*.raw")] == ["lost?"]
    assert ann.does("datastore", "sync")["warnings"] == []


def test_a_program_is_refused_or_works_alone_and_is_told_that_nothing_was_pushed(persons: Persons) -> None:
    (ann,) = persons("ann")
    ann.reach(closed_port())
    repo = ann.clone.repo
    model = ModelRef(**{key: ann.does("model", "get", "one")[key] for key in ("type", "id", "name")})

    with pytest.raises(CannotConnect), write_session(repo, models=[model]):
        pytest.fail("the block runs without a lease")
    with pytest.raises(NotPushed) as told, write_session(repo, models=[model], alone=True) as session:
        session.records.data.save(model, "report", b"saved")

    assert isinstance(told.value.cause, CannotConnect)
    assert ann.clone.status().waiting == 2
    assert ann.content("report") == ["saved"]


def test_an_append_offline_comes_after_those_that_were_kept_before(persons: Persons) -> None:
    (ann,) = persons("ann")
    ann.does("data", "put", "one", "log", "--streaming", typed="a\n")
    ann.reach(closed_port())
    assert ann.run("data", "append", "one", "log", typed="b\n").code == 5

    assert ann.does("data", "append", "one", "log", "--offline", typed="c\n")["size"] == 6

    assert ann.content("log") == ["a\nb\nc\n"]


def test_a_store_that_has_lost_its_head_loses_no_append(persons: Persons) -> None:
    (ann,) = persons("ann")
    ann.does("data", "put", "one", "log", "--streaming", typed="a\n")
    store = ann.clone.repo.store()
    head = store.get(keys.HEAD)
    assert head is not None
    store.delete([keys.HEAD])

    ran = ann.run("data", "append", "one", "log", typed="b\n")

    assert (ran.code, ran.error["code"]) == (1, "store_emptied")
    assert "the input is kept here, so do not repeat it" in ran.error["hint"]
    store.put(keys.HEAD, bytes(head.data))
    ann.does("datastore", "sync")
    assert ann.content("log") == ["a\nb\n"]
    assert pending_inputs(ann.clone.repo) == []


@pytest.mark.parametrize("command", ["put", "append"])
def test_an_error_that_is_not_the_commands_own_keeps_its_input(persons: Persons, command: str) -> None:
    (ann,) = persons("ann")
    ann.does("data", "put", "one", "log", "--streaming", typed="a\n")
    damaged = ann.clone.repo.state / "spool" / f"{ulid()}.json"
    damaged.write_text("{")
    damaged.with_suffix(".raw").write_text("of another command")

    ran = ann.run("data", command, "one", "log", typed="b\n")

    assert ran.code == 1
    assert "the input is kept here, so do not repeat it" in ran.error["hint"]
    damaged.unlink()
    ann.does("datastore", "sync")
    assert ann.content("log") == (["a\n", "b\n"] if command == "put" else ["a\nb\n"])


def test_an_error_of_the_command_itself_leaves_nothing(persons: Persons) -> None:
    (ann,) = persons("ann")
    ann.does("data", "put", "one", "report", typed="a\n")
    assert ann.run("data", "append", "one", "report", typed="b\n").error["code"] == "not_streaming"
    assert pending_inputs(ann.clone.repo) == []


def test_a_put_without_the_store_comes_after_what_another_machine_has_put_meanwhile(persons: Persons) -> None:
    ann, bob = persons("ann", "bob")
    there = ann.clone.repo.config.datastore.options["endpoint"]
    ann.does("data", "put", "one", "report", typed="x")
    bob.does("data", "put", "one", "report", typed="y")
    ann.reach(closed_port())

    for _ in range(2):  # the second one equals what is not pushed yet
        ran = ann.run("data", "put", "one", "report", typed="x")
        assert (ran.code, ran.document["version"]) == (5, 2)

    ann.reach(there)
    ann.does("datastore", "sync")
    assert ann.content("report") == ["x", "y", "x"]


def test_a_sync_pushes_the_rest_while_an_input_waits_for_a_lease_and_says_so(
    persons: Persons, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann, bob = persons("ann", "bob")
    ann.does("model", "create", "@org/shell", "two")
    for model in ("one", "two"):
        ann.does("data", "put", model, "log", "--streaming", typed="a\n")
    there = ann.clone.repo.config.datastore.options["endpoint"]
    ann.reach(closed_port())
    for words in (("append", "one", "log"), ("append", "two", "log"), ("put", "maker", "report")):
        assert ann.run("data", *words, typed="b\n").code == 5
    ann.reach(there)
    monkeypatch.setenv("BAYOU_LOCK_TIMEOUT", "0")
    one = ann.does("model", "get", "one")
    with open_leases(bob.clone.repo).acquire_all([model_key(one["type"], one["id"])]):
        synced = ann.run("datastore", "sync")

    assert (synced.code, synced.error["code"], "held by" in synced.error["message"]) == (5, "not_pushed", True)
    assert "do not repeat them" in synced.error["hint"]
    status = ann.clone.status()
    assert (synced.document["pushed"]["files"], status.waiting) == (4, 1)
    assert status.message == "in sync but for 1 kept input"
    bob.does("datastore", "sync")
    assert bob.clone.files == ann.clone.files
    assert sum(data == b"a\nb\n" for data in bob.clone.files.values()) == 1
    assert ann.does("datastore", "sync")["commit"] is not None
    assert ann.content("log") == ["a\nb\n"]


def test_an_input_does_not_keep_a_sync_from_what_its_user_allows(persons: Persons) -> None:
    (ann,) = persons("ann")
    ann.does("data", "put", "one", "log", "--streaming", typed="a\n")
    ann.clone.write_all({f"files/{number:03}": b"x" for number in range(210)})
    ann.does("datastore", "sync")
    there = ann.clone.repo.config.datastore.options["endpoint"]
    ann.reach(closed_port())
    assert ann.run("data", "append", "one", "log", typed="b\n").code == 5
    ann.reach(there)
    ann.clone.delete(*(f"files/{number:03}" for number in range(210)))
    assert ann.does("datastore", "sync", "--allow-mass-delete")["pushed"]["deleted"] == 210

    assert ann.content("log") == ["a\nb\n"]


def test_offline_an_input_whose_data_is_not_here_waits_on(persons: Persons) -> None:
    ann, bob = persons("ann", "bob")
    bob.does("data", "put", "one", "log", "--streaming", typed="a\n")
    there = ann.clone.repo.config.datastore.options["endpoint"]
    ann.reach(closed_port())
    assert ann.run("data", "append", "one", "log", typed="b\n").code == 5

    assert ann.run("data", "append", "one", "log", "--offline", typed="c\n").error["code"] == "data_not_found"

    ann.reach(there)
    ann.does("datastore", "sync")
    assert ann.content("log") == ["a\nb\n"]


def test_what_is_saved_is_not_to_be_tried_again(
    persons: Persons, proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ann,) = persons("ann")
    ann.does("data", "put", "one", "log", "--streaming", typed="a\n")
    monkeypatch.setenv("BAYOU_LOCK_TIMEOUT", "0")
    proxy.faults.add(Rule(Fail(503)))
    for command in ("put", "append"):
        ran = ann.run("data", command, "one", "log", typed="b\n")
        assert ran.code == 5
        assert "do not repeat it" in ran.error["hint"]
        assert "try again" not in ran.error["hint"]
    assert "try again" in ann.run("data", "delete", "one", "log", "-y").error["hint"]


def test_a_silent_store_is_named_and_no_holder_of_a_lease_is(
    persons: Persons, proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ann,) = persons("ann")
    ann.does("data", "put", "one", "report", typed="a")
    monkeypatch.setenv("BAYOU_LOCK_TIMEOUT", "1")
    proxy.faults.add(Rule(Silent()))
    for words, code in ((("put", "one", "report"), 5), (("delete", "one", "report", "-y"), 1)):
        ran = ann.run("data", *words, typed="b")
        assert ran.code == code
        assert "no answer in time to " in ran.error["message"]
        assert "lock status" not in ran.error["hint"]


def test_v12_a_command_without_a_lease_waits_a_minute_for_a_store_that_never_answers(
    persons: Persons, proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What counts is how long the client would wait for each request: none gets that time here."""
    (ann,) = persons("ann")
    ann.does("workflow", "run", "nightly")
    limits: list[float] = []
    real = RetryingClient.request_timeout

    def shortened(client: RetryingClient, *given: Any, **more: Any) -> float:
        limits.append(real(client, *given, **more))
        return 0.05

    monkeypatch.setattr(RetryingClient, "request_timeout", shortened)
    proxy.faults.add(Rule(Silent()))
    for words in (("workflow", "run", "nightly"), ("workflow", "resume", "latest"), ("datastore", "sync")):
        limits.clear()
        ran = ann.run(*words)
        assert (ran.code, "no answer in time to " in ran.error["message"]) == (1, True)
        assert limits == [30, 30]


def test_nothing_is_written_where_the_directory_of_a_datastore_is_not_mounted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ann = Person(Clone(init_repo(tmp_path / "ann")), capsys, monkeypatch)
    mounted = tmp_path / "mount" / "shared"
    mounted.parent.mkdir()
    ann.does("datastore", "setup", str(mounted))
    ann.does("model", "create", "@org/shell", "one")
    ann.does("data", "put", "one", "log", "--streaming", typed="a\n")
    away = mounted.rename(tmp_path / "away")

    source = tmp_path / "source"
    source.mkdir()
    (source / "a.csv").write_text("a,b\n")
    for words in (("put", "one", "report"), ("append", "one", "log"), ("put", "one", "orders", str(source))):
        ran = ann.run("data", *words, typed="b\n")
        assert (ran.code, ran.error["code"], ran.document["version"]) == (5, "not_pushed", None)
        assert "there is no directory" in ran.error["message"]
    assert ann.run("datastore", "status").document["healthy"] is False
    assert not mounted.exists()

    (source / "a.csv").write_text("changed meanwhile")
    away.rename(mounted)
    ann.does("datastore", "sync")
    assert (ann.content("report"), ann.content("log")) == (["b\n"], ["a\nb\n"])
    ann.does("data", "get", "one", "orders", "-o", str(tmp_path / "back"))
    assert (tmp_path / "back" / "a.csv").read_text() == "a,b\n"
