"""Processes of methods: time out, print too much, fork, are killed, call Bayou themselves. All of them are real."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path

import pytest

import bayou
from bayou.core.errors import Cancelled
from bayou.data.records import Records
from bayou.leases import open_leases
from bayou.models import process as excerpt
from bayou.models import process as tree
from bayou.models.process import Excerpt, run_process
from bayou.models.run import RunRequest, prepare, run_method
from bayou.session import write_session
from bayou.state.connection import Connection
from tests.models.conftest import define_in

SOURCE = Path(bayou.__file__).resolve().parents[1]
BAYOU = f"{sys.executable} -m bayou"
UNTIL_S = 30


@pytest.fixture(autouse=True)
def _source(monkeypatch):
    """Let processes find this Bayou."""
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))


def alive(pid: int) -> bool:
    """Whether a process is there, and not merely waiting to be buried."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition) -> None:
    until = time.monotonic() + UNTIL_S
    while not condition():
        assert time.monotonic() < until, "it did not come to this"
        time.sleep(0.02)


def pids(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().split()] if file.exists() else []


# Each writes its number down: one in the group, one that left it for a session of its own, one orphan of its own.
FAMILY = (
    "echo $$ >> pids; sh -c 'echo $$ >> pids; exec sleep 300' & "
    "setsid sh -c 'echo $$ >> pids; exec sleep 300' & "
    "(setsid sh -c 'echo $$ >> pids; trap \"\" TERM; sleep 300; sleep 300' &) ; "
)


def test_a_timeout_ends_the_whole_family(repo, define, go, read):
    model = define("command/shell", "m", {"run": f"{FAMILY} echo begun; wait", "timeout": 2})

    output = go(model, "execute")

    assert output.status == "failed"
    assert output.error == "the command took longer than 2 s, and was killed"
    family = pids(repo.root / "pids")
    assert len(family) == 4
    assert [pid for pid in family if alive(pid)] == []
    assert b"begun" in read(model, "log"), "what it said before is kept"
    assert json.loads(read(model, "result"))["exit_code"] >= 128


def test_a_timeout_holds_also_for_whoever_ignores_it_or_says_nothing(define, go):
    deaf = define("command/shell", "deaf", {"run": 'trap "" TERM; while :; do sleep 1; done', "timeout": 0.3})
    mute = define("command/shell", "mute", {"run": "exec >&- 2>&-; sleep 300", "timeout": 0.3})

    assert go(deaf, "execute").error == "the command took longer than 0.3 s, and was killed"
    assert go(mute, "execute").error == "the command took longer than 0.3 s, and was killed"


def test_the_last_words_of_a_command_that_is_ended_are_heard(define, go, read):
    run = 'trap "echo goodbye; exit 1" TERM; echo hello; while :; do sleep 0.05; done'
    model = define("command/shell", "m", {"run": run, "timeout": 1.5})

    go(model, "execute")

    assert b"goodbye\n" in read(model, "log")


def test_cancelling_ends_the_whole_family(repo, define):
    model = define("command/shell", "m", {"run": f"{FAMILY} wait"})
    prepared, cancel = prepare(Connection(repo), RunRequest(model, "execute")), threading.Event()
    outputs = []

    def run() -> None:
        with write_session(repo, models=[model.ref]) as session:
            outputs.append(run_method(session, prepared, cancel=cancel))

    thread = threading.Thread(target=run)
    thread.start()
    wait_for(lambda: len(pids(repo.root / "pids")) == 4)
    cancel.set()
    thread.join(UNTIL_S)

    assert [output.status for output in outputs] == ["cancelled"]
    assert [pid for pid in pids(repo.root / "pids") if alive(pid)] == []


def test_what_a_command_leaves_behind_is_ended_and_not_waited_for(repo, define, go, read):
    until_there = "while [ ! -s pids ]; do sleep 0.05; done"
    model = define("command/shell", "m", {"run": f"sh -c 'echo $$ > pids; exec sleep 300' & {until_there}; echo done"})

    output = go(model, "execute")

    assert (output.status, output.error) == ("succeeded", None)
    (left,) = pids(repo.root / "pids")
    wait_for(lambda: not alive(left))
    assert read(model, "log") == b"done\n"


def test_the_last_words_of_what_a_command_leaves_behind_are_heard(define, go, read, monkeypatch):
    monkeypatch.setattr("bayou.models.process.LINGER_S", UNTIL_S)  # it ends with the last words, not with the time
    model = define("command/shell", "m", {"run": "(sleep 0.3; echo late) & echo early"})

    go(model, "execute")

    assert read(model, "log") == b"early\nlate\n"


def test_nothing_stays_when_whoever_listens_fails(tmp_path):
    def printed(stream, data):
        raise OSError(28, "no space left")

    with pytest.raises(OSError, match="no space"):
        run_process(
            ["/bin/sh", "-c", "echo $$ > pid; echo hi; exec sleep 300"],
            cwd=tmp_path,
            environment=dict(os.environ),
            mark="m-1",
            timeout=None,
            cancelled=threading.Event(),
            printed=printed,
            waiting=lambda: None,
        )

    assert not alive(pids(tmp_path / "pid")[0])


def test_a_process_that_is_cancelled_before_it_begins_ends(tmp_path):
    cancelled = threading.Event()
    cancelled.set()

    with pytest.raises(Cancelled):
        run_process(
            ["sleep", "300"],
            cwd=tmp_path,
            environment=dict(os.environ),
            mark="m-2",
            timeout=None,
            cancelled=cancelled,
            printed=lambda stream, data: None,
            waiting=lambda: None,
        )


def test_marks_are_kept_from_the_outermost_to_the_innermost():
    outer = tree.marked_environment({"A": "b"}, "one")

    assert tree.marked_environment(outer, "two") == {"A": "b", "BAYOU_OUTPUT_ID": "one:two"}


def test_100_mb_of_output_are_all_in_the_log_and_not_in_memory(define, go, read, repo):
    size = 100_000_000
    model = define("command/shell", "m", {"run": f"head -c {size} /dev/zero | tr '\\0' 'x'; echo; echo end >&2"})
    tracemalloc.start()
    try:
        output = go(model, "execute")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert output.status == "succeeded"
    assert {made.name: made.size for made in output.data}["log"] == size + 5
    assert peak < size / 3, "a few pieces of it, never all"
    result = json.loads(read(model, "result"))
    kept = excerpt.HEAD + excerpt.TAIL
    assert f"[… {size + 1 - kept:,} bytes left out: the log has them …]" in result["stdout"]
    assert len(result["stdout"]) < kept + 100
    assert result["stderr"] == "end\n"
    with Records(repo) as records:
        found = records.data.get(model.ref, "log")
        with records.data.open(found) as log:
            assert sum(len(chunk) for chunk in iter(lambda: log.read(1 << 20), b"")) == size + 5


def test_binary_output_is_kept_as_it_is(define, go, read):
    model = define("command/shell", "m", {"run": r"printf '\377\000\001ok\n'; printf '\376' >&2; exit 2"})

    output = go(model, "execute")

    assert sorted(read(model, "log")) == sorted(b"\xff\x00\x01ok\n\xfe")
    result = json.loads(read(model, "result"))
    assert result["stdout"] == "\\xff\x00\x01ok\n"
    assert output.error == "the command ended with exit code 2: \\xfe"


def test_an_excerpt_keeps_the_beginning_and_the_end(monkeypatch):
    monkeypatch.setattr(excerpt, "HEAD", 4)
    monkeypatch.setattr(excerpt, "TAIL", 3)
    for parts in (["0123456789"], ["01", "23456", "78", "9"], list("0123456789")):
        kept = Excerpt()
        for part in parts:
            kept.add(part.encode())
        assert kept.text() == "0123\n[… 3 bytes left out: the log has them …]\n789"
    whole = Excerpt()
    whole.add(b"0123456")
    assert whole.text() == "0123456"


# -- Bayou inside Bayou ------------------------------------------------------------------------------------------------


def in_a_process(repo, *args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bayou", *args, "--json"],
        cwd=repo.root,
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def test_f089_a_method_that_runs_another_model_and_its_own_does_not_wait_for_itself(team):
    """F089, V13: on a store, under real leases; and each version of the log is its own run's."""
    clone = team.clone("a")
    define_in(clone.repo, "command/shell", "other", {"run": "echo other"})
    inner = f"{BAYOU} model run m execute --input run='echo inner' -q"
    much = "head -c 5000000 /dev/zero"  # so that the log is there, and is written to again, before the nested run
    run = f"echo before; {much}; {BAYOU} model run other execute -q && {inner}; {much}; echo after"
    model = define_in(clone.repo, "command/shell", "m", {"run": run})

    ran = in_a_process(clone.repo, "model", "run", "m", "execute", BAYOU_LOCK_TIMEOUT="20")

    assert (ran.returncode, json.loads(ran.stdout)["status"]) == (0, "succeeded"), ran.stderr
    peer = team.clone("b")
    peer.pull()
    with Records(peer.repo) as records:
        assert {row.status for row in records.outputs.list(model.ref)} == {"succeeded"}
        logs = [records.data.read(records.data.get(model.ref, "log", version)) for version in (1, 2)]
    assert logs[1] == b"inner\n"
    assert logs[0].startswith(b"before\n")
    assert logs[0].endswith(b"after\n"), "what came after the nested run went to the outer log"
    assert open_leases(clone.repo).list() == []


def test_f089_a_python_function_may_write_to_its_own_model(team):
    clone = team.clone("a")
    (clone.repo.root / "job.py").write_text(
        "import bayou\n"
        "def go():\n"
        "    with bayou.open('.') as repo, repo.write_session(['m']) as session:\n"
        "        ref = repo.models.resolve('m')\n"
        "        return session.records.data.save(ref, 'own', b'x').version\n"
    )
    model = define_in(clone.repo, "python/call", "m", {"target": "job:go"})
    prepared = prepare(Connection(clone.repo), RunRequest(model, "call"))

    with write_session(clone.repo, models=[model.ref], timeout=30) as session:
        output = run_method(session, prepared, cancel=threading.Event())

    assert (output.status, output.error) == ("succeeded", None)
    with Records(clone.repo) as records:
        assert records.data.read(records.data.get(model.ref, "own")) == b"x"


def test_f080_a_model_does_not_wait_for_another(team):
    """F080: B runs from start to end while A runs."""
    clone = team.clone("a")
    define_in(clone.repo, "command/shell", "slow", {"run": "touch begun; while [ ! -e go ]; do sleep 0.05; done"})
    define_in(clone.repo, "command/shell", "fast", {"run": "echo fast"})
    slow = subprocess.Popen(
        [sys.executable, "-m", "bayou", "model", "run", "slow", "execute", "--json"],
        cwd=clone.repo.root,
        stdout=subprocess.PIPE,
    )
    try:
        wait_for((clone.repo.root / "begun").exists)
        ran = in_a_process(clone.repo, "model", "run", "fast", "execute", BAYOU_LOCK_TIMEOUT="5")
        assert slow.poll() is None, "A is still at it"
        assert ran.returncode == 0, ran.stderr
    finally:
        (clone.repo.root / "go").touch()
        out, _ = slow.communicate(timeout=60)
    assert json.loads(out)["status"] == "succeeded"


def test_ctrl_c_ends_the_family_records_cancelled_and_frees_the_lease(team):
    clone = team.clone("a")
    model = define_in(clone.repo, "command/shell", "m", {"run": f"{FAMILY} echo begun; wait"})
    process = subprocess.Popen(
        [sys.executable, "-m", "bayou", "model", "run", "m", "execute", "--json"],
        cwd=clone.repo.root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    file = clone.repo.root / "pids"
    try:
        wait_for(lambda: len(pids(file)) == 4)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()

    assert process.returncode == 130
    assert json.loads(err)["error"]["code"] == "cancelled"
    assert [pid for pid in pids(file) if alive(pid)] == []
    assert open_leases(clone.repo).list() == []
    with Records(clone.repo) as records:
        listed = records.outputs.list(model.ref)
        assert [(one.status, one.error) for one in listed] == [("cancelled", "cancelled")]
        assert records.data.get(model.ref, "log") is not None, "what it said until then"
    clone.push()
    peer = team.clone("b")
    peer.pull()
    with Records(peer.repo) as records:
        assert [row.status for row in records.outputs.list(model.ref)] == ["cancelled"], (
            "kept, and pushed with the next"
        )


def test_a_nested_bayou_goes_down_with_its_parent(team):
    clone = team.clone("a")
    inner = define_in(clone.repo, "command/shell", "inner", {"run": "echo $$ > pids; exec sleep 300"})
    define_in(clone.repo, "command/shell", "outer", {"run": f"{BAYOU} model run inner execute -q"})
    process = subprocess.Popen(
        [sys.executable, "-m", "bayou", "model", "run", "outer", "execute", "--json"],
        cwd=clone.repo.root,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: pids(clone.repo.root / "pids"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143
    finally:
        process.kill()
        process.wait()

    assert not alive(pids(clone.repo.root / "pids")[0])
    with Records(clone.repo) as records:
        statuses = {one.status for one in records.outputs.list(inner.ref)}
    assert statuses <= {"cancelled"}, "no failure of its own; on a slow machine it did not get to say so"
