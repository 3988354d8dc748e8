"""Running a method: what is kept of it, what comes of it, and what stays at home."""

from __future__ import annotations

import json
import threading
from datetime import date
from typing import Any

import pytest
import yaml

import bayou
from bayou.core.errors import ArgumentsInvalid, BayouError, LeaseLost, MethodFailed
from bayou.data.records import Records
from bayou.models import find_model
from bayou.models.prepare import PreparedRun
from bayou.models.run import RunRequest, prepare, run_method
from bayou.models.types import Method, OutputSpec
from bayou.session import write_session
from bayou.state.connection import Connection
from tests.models.conftest import define_in, files


def evaluated(repo, output) -> dict:
    path = f"definitions-evaluated/{output.type}/{output.model_id}/{output.id}.yaml"
    return yaml.safe_load((repo.tree_root / path).read_text())


def test_a_command_leaves_a_result_a_log_and_a_record(repo, define, go, read):
    model = define("command/shell", "m", {"run": "echo out; echo err >&2"}, tags={"team": "infra"})

    output = go(model, "execute", tags={"why": "test"})

    assert (output.status, output.error, output.method) == ("succeeded", None, "execute")
    assert {(made.name, made.version) for made in output.data} == {("result", 1), ("log", 1)}
    result = json.loads(read(model, "result"))
    assert {key: result[key] for key in ("exit_code", "stdout", "stderr", "command")} == {
        "exit_code": 0,
        "stdout": "out\n",
        "stderr": "err\n",
        "command": "echo out; echo err >&2",
    }
    assert set(result) == {"exit_code", "stdout", "stderr", "command", "duration_s"}
    assert sorted(read(model, "log").splitlines()) == [b"err", b"out"]
    with Records(repo) as records:
        kept = records.outputs.get(output.id)
        assert kept == output
        item = records.data.get(model.ref, "result").metadata
        assert (item.content_type, item.owner.output, item.tags) == (
            "application/json",
            output.id,
            {"team": "infra", "why": "test"},
        )
        assert records.data.get(model.ref, "log").metadata.streaming
        assert [row.id for row in records.outputs.list(model.ref)] == [output.id]


def test_what_was_evaluated_is_kept_before_it_runs(repo, define, go, read):
    model = define("command/shell", "m", {"run": "ls .bayou/tree/definitions-evaluated/command/shell/*"})

    output = go(model, "execute")

    assert read(model, "log").decode().split() == [f"{output.id}.yaml"]
    assert evaluated(repo, output) == {
        "id": model.id,
        "name": "m",
        "type": "command/shell",
        "method": "execute",
        "arguments": {"run": "ls .bayou/tree/definitions-evaluated/command/shell/*"},
        "inputs": {},
        "tags": {},
    }


def test_what_came_from_the_environment_is_nowhere(repo, define, go, read, monkeypatch):
    monkeypatch.setenv("TOKEN", "s3cr3t-value")
    model = define(
        "command/shell",
        "m",
        {
            "run": "test $T = ${{ env.TOKEN }} || exit 9; echo ${{ env.TOKEN }} >&2; exit 3",
            "env": {"T": "${{ env.TOKEN }}"},
        },
    )

    output = go(model, "execute")

    assert output.error == "the command ended with exit code 3: ***"
    assert "s3cr3t" not in json.loads(read(model, "result"))["command"]
    with_it = {path for path in files(repo) if b"s3cr3t" in (repo.tree_root / path).read_bytes()}
    assert with_it == set(), "not even where it printed it itself (17.11)"
    assert read(model, "log") == b"***\n"


def test_secrets_of_the_caller_are_redacted_in_inputs(repo, define, go):
    model = define("command/shell", "m", {"run": "true"})

    output = go(model, "execute", inputs={"env": {"T": "xyz-1"}}, secrets=frozenset({"xyz-1"}))

    assert output.inputs == {"env": {"T": "***"}}
    assert evaluated(repo, output)["arguments"]["env"] == {"T": "***"}


@pytest.mark.parametrize(
    ("run", "arguments", "status", "exit_code", "error"),
    [
        ("exit 3", {}, "failed", 3, "the command ended with exit code 3"),
        ("echo why it is >&2; exit 3", {}, "failed", 3, "the command ended with exit code 3: why it is"),
        ("exit 3", {"ignore_exit_code": True}, "succeeded", 3, None),
        ("kill -9 $$", {}, "failed", 137, "the command was killed by SIGKILL"),
        ("kill -9 $$", {"ignore_exit_code": True}, "failed", 137, "the command was killed by SIGKILL"),
        ("nonesuch-command", {}, "failed", 127, None),
    ],
)
def test_how_a_command_ends_is_what_its_output_says(define, go, read, run, arguments, status, exit_code, error):
    model = define("command/shell", "m", {"run": run, **arguments})

    output = go(model, "execute")

    assert output.status == status
    if error is not None or status == "succeeded":
        assert output.error == error
    assert json.loads(read(model, "result"))["exit_code"] == exit_code, "kept also when it failed"


def test_a_command_gets_its_variables_and_its_directory(repo, define, go, read):
    (repo.root / "sub dir").mkdir()
    model = define(
        "command/shell",
        "m",
        {"run": 'echo "$A $N $B"; pwd; cat', "workdir": "sub dir", "env": {"A": "x y", "N": 1.5, "B": True}},
    )

    go(model, "execute")

    assert read(model, "log").decode().splitlines() == ["x y 1.5 true", str(repo.root / "sub dir")]


@pytest.mark.parametrize("arguments", [{"run": "true", "workdir": "nowhere"}, {"run": "tr\0ue"}])
def test_a_command_that_cannot_be_started_is_a_failure(define, go, arguments):
    output = go(define("command/shell", "m", arguments), "execute")

    assert output.status == "failed"
    assert output.error.startswith("the command cannot be started: ")


PYTHON = """\
import os, sys

def add(a, b=2):
    print("adding")
    return {"sum": a + b}

def text(): return "grüße"
def raw(): return b"\\xff\\x00"
def nothing(): return None
def where(): return [os.getcwd(), __name__]
def bad(): return {1, 2}
def nan(): return float("nan")
def crash(token): raise ValueError(f"no good:\\n {token}")
def leave(): sys.exit(3)
def vanish(): os._exit(0)
def killed(): os.kill(os.getpid(), 9)

class Nested:
    @staticmethod
    def call(): return 1
"""


@pytest.fixture
def python(repo, define):
    """Return a model that calls a function of a module in the repo."""
    (repo.root / "jobs").mkdir()
    (repo.root / "jobs" / "calls.py").write_text(PYTHON)

    def model(function: str, **arguments):
        return define(
            "python/call", function.replace(".", "-"), {"target": f"jobs.calls:{function}", "arguments": arguments}
        )

    return model


@pytest.mark.parametrize(
    ("function", "arguments", "content", "content_type"),
    [
        ("add", {"a": 1}, b'{"sum": 3}', "application/json"),
        ("text", {}, "grüße".encode(), "text/plain"),
        ("raw", {}, b"\xff\x00", "application/octet-stream"),
        ("nothing", {}, b"null", "application/json"),
        ("Nested.call", {}, b"1", "application/json"),
    ],
)
def test_what_a_function_returns_is_the_data(repo, python, go, read, function, arguments, content, content_type):
    model = python(function, **arguments)

    output = go(model, "call")

    assert (output.status, output.error) == ("succeeded", None)
    assert read(model, "result") == content
    with Records(repo) as records:
        assert records.data.get(model.ref, "result").metadata.content_type == content_type


def test_what_a_function_prints_is_its_log_and_none_without(python, go, read, names, capfd):
    model, silent = python("add", a=1), python("where")

    go(model, "call")
    go(silent, "call")

    assert read(model, "log") == b"adding\n"
    assert names(silent) == [("result", 1)]
    assert capfd.readouterr() == ("", "")


def test_a_function_runs_at_the_repos_root(repo, python, go, read):
    model = python("where")

    go(model, "call")

    assert json.loads(read(model, "result")) == [str(repo.root), "jobs.calls"]


@pytest.mark.parametrize(
    ("function", "arguments", "short", "in_traceback"),
    [
        ("crash", {"token": "x"}, "ValueError: no good: x", "in crash\n    def crash(token): raise ValueError"),
        ("add", {}, "TypeError: add() missing 1 required positional argument: 'a'", "TypeError"),
        ("nope", {}, "AttributeError: module 'jobs.calls' has no attribute 'nope'", "AttributeError"),
        ("bad", {}, "TypeError: set is neither bytes nor a text, nor what JSON can tell", "TypeError"),
        ("nan", {}, "TypeError: float is neither", "TypeError"),
        ("leave", {}, "SystemExit: 3", "in leave"),
    ],
)
def test_an_exception_is_a_failure_with_its_traceback(python, go, names, function, arguments, short, in_traceback):
    model = python(function, **arguments)

    output = go(model, "call")

    first, _, rest = output.error.partition("\n")
    assert output.status == "failed"
    assert first.startswith(short)
    assert in_traceback in rest
    assert "child.py" not in rest, "our own frames are nobody's business"
    assert ("result", 1) not in names(model)


@pytest.mark.parametrize(
    ("function", "why"), [("vanish", "ended before it was done"), ("killed", "was killed by SIGKILL")]
)
def test_a_process_that_vanishes_is_a_failure(python, go, function, why):
    output = go(python(function), "call")

    assert output.status == "failed"
    assert output.error == f"the process that called {function} {why}"


class Own:
    """A type whose only method does what a test wants."""

    name = "test/own"
    description = ""

    def __init__(self, then, *, keep_failed=False):
        self._then = then
        outputs = (OutputSpec("a", "text/plain", lifetime="7d", keep="3"), OutputSpec("s", streaming=True))
        self.methods = {"go": Method("go", "", {"type": "object"}, outputs, keep_failed)}

    def run(self, method, arguments, work):
        self._then(work)


@pytest.fixture
def own(repo, define):
    """Run a type of one's own."""

    def run(then, *, keep_failed=False, cancel=None, session_of=None, by=run_method):
        model = (
            find_model(repo, "own") if (repo.root / "models/test/own/own.yaml").exists() else define("test/own", "own")
        )
        kind = Own(then, keep_failed=keep_failed)
        prepared = PreparedRun(RunRequest(model, "go"), kind, kind.methods["go"], {}, frozenset())
        with write_session(repo, models=[model.ref]) as session:
            given = session_of(session) if session_of else session
            return model, by(given, prepared, cancel=cancel or threading.Event())

    return run


def save_two(work):
    work.save("a", b"1")
    with work.stream("s") as stream:
        stream.write(b"2")
    work.save("b", b"3", content_type="x/y", tags={"t": "v"}, lifetime="1d")


def save_two_and_fail(work):
    save_two(work)
    raise MethodFailed("on purpose", details="where it was")


def test_declared_data_is_kept_as_declared(repo, own):
    model, output = own(save_two)

    assert [made.name for made in output.data] == ["a", "s", "b"]
    with Records(repo) as records:
        a, b = (records.data.get(model.ref, name).metadata for name in "ab")
        assert (a.content_type, a.lifetime, a.keep, a.tags) == ("text/plain", "7d", "3", {})
        assert (b.content_type, b.lifetime, b.keep, b.tags) == ("x/y", "1d", None, {"t": "v"})
        assert records.data.get(model.ref, "s").metadata.streaming


def test_data_of_a_failed_method_does_not_stay(repo, own, names):
    model, output = own(save_two_and_fail)

    assert (output.status, output.data) == ("failed", ())
    assert output.error == "on purpose\nwhere it was"
    assert names(model) == []
    assert not any(path.startswith("data/") for path in files(repo))


def test_data_of_a_failed_method_stays_if_the_type_says_so(own, names):
    model, output = own(save_two_and_fail, keep_failed=True)

    assert output.status == "failed"
    assert [(made.name, made.version) for made in output.data] == [("a", 1), ("s", 1), ("b", 1)]
    assert names(model) == [("a", 1), ("b", 1), ("s", 1)]


def test_data_is_not_seen_before_the_method_has_succeeded(repo, own, names):
    seen = []

    def look(work):
        save_two(work)
        with Records(repo) as records:
            seen.extend(records.data.find())

    model, _ = own(look)

    assert seen == []
    assert names(model) == [("a", 1), ("b", 1), ("s", 1)]


def test_a_stream_is_read_while_it_is_written(repo, own, read):
    seen = []

    def then(work):
        with work.stream("s") as stream:
            for part in (b"one ", b"two ", b"three"):
                stream.write(part)
                stream._since -= 5
                stream.flush_if_due()
                with Records(repo) as records:
                    (row,) = records.data.find(name="s")
                    seen.append((row.version, row.size))

    model, output = own(then, keep_failed=True)

    assert seen == [(1, 4), (1, 8), (1, 13)]
    assert read(model, "s") == b"one two three"
    assert [made.size for made in output.data] == [13]


def test_many_lines_are_few_appends(own, read, monkeypatch):
    """No journal row, no catalog row and no sync to disk for every line."""
    from bayou.data.items import DataRepository

    calls = []
    for name in ("save", "append"):
        real = getattr(DataRepository, name)
        monkeypatch.setattr(
            DataRepository, name, lambda self, *a, _n=name, _r=real, **k: calls.append(_n) or _r(self, *a, **k)
        )

    def then(work):
        with work.stream("s") as stream:
            for number in range(20_000):
                stream.write(f"line {number}\n".encode())
                stream.flush_if_due()

    model, _ = own(then, keep_failed=True)

    assert read(model, "s").count(b"\n") == 20_000
    assert calls[0] == "save"
    assert len(calls) < 20, "by time and size: a slow machine makes a few more"


@pytest.mark.parametrize("error", [ValueError("what"), KeyError("k"), BayouError("told"), SystemExit("out")])
def test_whatever_a_type_raises_is_its_failure(own, error):
    def fail(work):
        raise error

    _, output = own(fail)

    assert output.status == "failed"
    assert str(error.args[0]) in output.error.partition("\n")[0]


def test_a_name_that_cannot_be_is_the_methods_failure(own):
    _, output = own(lambda work: work.save("../x", b""))

    assert output.status == "failed"
    assert "a slash" in output.error


def test_a_method_that_is_cancelled_says_so_and_leaves_no_data(own, names):
    cancel = threading.Event()

    def then(work):
        work.save("a", b"1")
        cancel.set()
        assert work.cancelled.wait(30)

    model, output = own(then, cancel=cancel)

    assert (output.status, output.data) == ("cancelled", ())
    assert names(model) == []


def test_a_method_that_does_not_stop_is_left_behind_and_saves_nothing_more(own, names, monkeypatch):
    monkeypatch.setattr("bayou.models.run.STOP_S", 0.05)
    cancel, go_on, refused = threading.Event(), threading.Event(), threading.Event()

    def then(work):
        cancel.set()
        assert go_on.wait(30)
        try:
            work.save("a", b"1")
        except BayouError:
            refused.set()

    def and_then(session, prepared, **more):
        output = run_method(session, prepared, **more)
        go_on.set()
        assert refused.wait(30), "while the session is still open"
        return output

    model, output = own(then, cancel=cancel, keep_failed=True, by=and_then)

    assert (output.status, output.error) == ("cancelled", "cancelled, and did not stop")
    assert names(model) == []


def test_a_lost_lease_stops_this_method_and_no_other(repo, own):
    """V13. The one event that cancels all is not set."""
    cancel, stopped = threading.Event(), threading.Event()

    class Lost:
        lost = True

    class Losing:
        def __init__(self, session):
            self.records, self.environment, self.leases = session.records, session.environment, Lost()

    def then(work):
        assert work.cancelled.wait(30)
        stopped.set()

    _, output = own(then, cancel=cancel, session_of=Losing)

    assert output.status == "cancelled"
    assert stopped.is_set()
    assert not cancel.is_set()


def test_what_is_written_without_the_lease_is_refused(repo, own):
    """V13: the output of a run that lost its lease is not recorded: it is somebody else's turn."""
    sessions: list[Any] = []

    def then(work):
        for lease in sessions[0].leases:
            lease._lose("as a test wants it")
        assert work.cancelled.wait(30)

    with pytest.raises(LeaseLost):
        own(then, session_of=lambda session: sessions.append(session) or session)

    assert {path.partition("/")[0] for path in files(repo)} == {"definitions-evaluated"}


def test_a_program_runs_a_method_of_an_open_repo(repo, define):
    define("command/shell", "m", {"run": "echo ${{ inputs.word }}"})

    with bayou.open(repo.root) as opened:
        output = opened.models.run("m", "execute", {"word": "hi"})
        log = opened.data.get(opened.models.resolve("m"), "log").read()

    assert (output.status, output.inputs, log) == ("succeeded", {"word": "hi"}, b"hi\n")


def test_an_input_that_no_record_can_keep_is_refused_before_anything_runs(repo, define):
    model = define("command/shell", "m", {"run": "echo ${{ inputs.day }}"})

    with pytest.raises(ArgumentsInvalid, match="input day: 2026-01-31 is taken for a date"):
        prepare(Connection(repo), RunRequest(model, "execute", {"day": date(2026, 1, 31)}))

    assert files(repo) == set()


def test_one_push_carries_all_to_a_peer(team):
    """Evaluated definition, data and output of a run, over a store."""
    a, b = team.clone("a"), team.clone("b")
    model = define_in(a.repo, "command/shell", "m", {"run": "echo hi"})
    prepared = prepare(Connection(a.repo), RunRequest(model, "execute"))
    with write_session(a.repo, models=[model.ref]) as session:
        output = run_method(session, prepared, cancel=threading.Event())

    b.pull()

    assert session.pushed.commit is not None
    assert b.files == a.files
    with Records(b.repo) as records:
        assert records.outputs.get(output.id) == output
        assert records.data.read(records.data.get(model.ref, "log")) == b"hi\n"
        assert records.evaluated.get_definition(model.ref, output.id)["name"] == "m"
