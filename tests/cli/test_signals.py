"""SIGINT and SIGTERM, with real processes (V14, V17)."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli.conftest import Processes, Ran
from tests.trusting import trust

from bayou.repo import init_repo

CODES = [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]

RUN = """
import signal, sys, time
import bayou.sync.service
from bayou.cli import main

# The process that started the tests may ignore SIGINT, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

def sync(connection, options, *, timeout, progress):
    {body}

bayou.sync.service.sync = sync
main()
"""

WAITS = RUN.format(
    body="""
    try:
        print("ready", flush=True)
        time.sleep(60)
    finally:
        open("cleaned-up", "w").close()
"""
)

STUCK = RUN.format(
    body="""
    import bayou.cli.signals
    from bayou.objectstore import keys
    bayou.cli.signals.GRACE_S = 3600  # nobody else is to end this process: the main thread must be able to
    try:
        print("ready", flush=True)
        connection.repo.store().get(keys.HEAD)
    finally:
        open("cleaned-up", "w").close()
"""
)

STAYS = RUN.format(
    body="""
    import bayou.cli.signals
    bayou.cli.signals.GRACE_S = 0.1
    while True:
        try:
            print("ready", flush=True)
            time.sleep(60)
        except KeyboardInterrupt:
            pass
"""
)


ELSEWHERE = RUN.format(
    body="""
    import queue, threading
    import bayou.cli.signals
    bayou.cli.signals.GRACE_S = 3600
    def get_it():
        time.sleep(0.5)
        signal.pthread_kill(threading.get_ident(), {number})
    threading.Thread(target=get_it, daemon=True).start()
    try:
        queue.SimpleQueue().get()
    finally:
        open("cleaned-up", "w").close()
"""
)
"""A signal that the kernel gives to another thread than the main one, which waits for a lock."""


def signalled(process: subprocess.Popen[str], number: int) -> None:
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)


@pytest.mark.parametrize(("number", "code", "word"), CODES)
def test_a_signal_unwinds_the_command_and_is_its_exit_code(processes, tmp_path, number, code, word):
    init_repo(tmp_path)
    process = processes.script(WAITS, "datastore", "sync")

    signalled(process, number)
    ran = processes.finish(process)

    assert ran.code == code
    assert ran.err.startswith(f"error: {word}\nhint: ")
    assert (tmp_path / "cleaned-up").exists()


@pytest.mark.parametrize(("number", "code", "word"), CODES)
def test_a_signal_is_an_error_for_scripts_too(processes, tmp_path, number, code, word):
    init_repo(tmp_path)
    process = processes.script(WAITS, "datastore", "sync", "--json")

    signalled(process, number)
    ran = processes.finish(process)

    assert (ran.code, ran.out) == (code, "")
    assert (ran.error["code"], ran.error["message"]) == ("cancelled", word)


@pytest.mark.parametrize(("number", "code", "word"), CODES)
def test_a_signal_ends_a_command_that_waits_for_a_silent_server(processes, tmp_path, number, code, word):
    """A request to a server that never answers keeps Python from raising anything, for a minute."""
    init_repo(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as server:
        options = f'endpoint = "http://127.0.0.1:{server.getsockname()[1]}"\n'
        with (tmp_path / "bayou.toml").open("a") as file:
            file.write(f'url = "s3://bucket"\n[datastore.options]\n{options}')
        trust(tmp_path)
        keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
        process = processes.script(STUCK, "datastore", "sync", "--json", **keys)

        assert process.stdout.readline() == "ready\n"
        server.accept()  # the request is under way
        process.send_signal(number)
        ran = processes.finish(process)

    assert ran.code == code
    assert json.loads(ran.err)["error"]["message"] == word
    assert (tmp_path / "cleaned-up").exists()


def terminated(processes: Processes, repo: Path, error: str) -> Ran:
    """End a sync with SIGTERM, whose unwinding raises another error."""
    init_repo(repo)
    body = f"""
    from bayou.core.errors import Cancelled
    try:
        print("ready", flush=True)
        time.sleep(60)
    finally:
        raise {error}
"""
    process = processes.script(RUN.format(body=body), "datastore", "sync", "--json")
    signalled(process, signal.SIGTERM)
    return processes.finish(process)


def test_a_cancelled_sync_after_sigterm_still_exits_with_143(processes, tmp_path):
    """Whatever error surfaces while a signal unwinds the command, the signal is why it ended."""
    ran = terminated(processes, tmp_path, 'Cancelled("cancelled")')

    assert (ran.code, ran.error["code"]) == (143, "cancelled")


def test_a_second_signal_ends_the_process_at_once_while_it_is_cleaning_up(processes, tmp_path):
    init_repo(tmp_path)
    body = """
    import bayou.cli.signals
    bayou.cli.signals.GRACE_S = 3600
    try:
        print("ready", flush=True)
        time.sleep(3600)
    finally:
        print("cleaning up", flush=True)
        time.sleep(3600)
"""
    process = processes.script(RUN.format(body=body), "datastore", "sync", "--json")
    signalled(process, signal.SIGINT)
    assert process.stdout.readline() == "cleaning up\n"

    process.send_signal(signal.SIGTERM)
    ran = processes.finish(process)

    assert (ran.code, ran.error["message"]) == (130, "interrupted")


@pytest.mark.parametrize(("number", "code", "word"), CODES)
def test_a_signal_that_another_thread_gets_wakes_the_main_thread(processes, tmp_path, number, code, word):
    """Python runs its handler in the main thread, which no signal has woken; `workflow run` slept on."""
    init_repo(tmp_path)

    ran = processes.finish(
        processes.script(ELSEWHERE.replace("{number}", str(int(number))), "datastore", "sync", "--json")
    )

    assert (ran.code, ran.error["message"]) == (code, word)
    assert (tmp_path / "cleaned-up").exists()


def test_a_main_thread_that_does_not_come_back_is_not_waited_for(processes, tmp_path):
    init_repo(tmp_path)
    process = processes.script(STAYS, "datastore", "sync", "--json")

    signalled(process, signal.SIGTERM)
    ran = processes.finish(process)

    assert (ran.code, ran.error["message"]) == (143, "terminated")


@pytest.mark.parametrize("how", ["gone", "full"])
def test_a_process_ends_although_nobody_reads_what_it_says(processes, tmp_path, how):
    """Ctrl-C ends the `tee` behind it too; a pager may have stopped to read."""
    init_repo(tmp_path)
    reading, writing = os.pipe()
    if how == "gone":
        os.close(reading)
    else:
        os.set_blocking(writing, False)
        with contextlib.suppress(BlockingIOError):
            while os.write(writing, b"x" * 4096):
                pass
        with contextlib.suppress(BlockingIOError):
            while os.write(writing, b"x"):
                pass
        os.set_blocking(writing, True)
    process = processes.script(STAYS, "datastore", "sync", stderr=writing)
    os.close(writing)

    signalled(process, signal.SIGTERM)

    assert process.wait(timeout=30) == 143
    if how == "full":
        os.close(reading)


@pytest.mark.parametrize(("number", "code", "_"), CODES)
def test_a_signal_is_the_exit_code_although_nobody_reads_what_is_said(processes, tmp_path, number, code, _):
    init_repo(tmp_path)
    reading, writing = os.pipe()
    os.close(reading)
    process = processes.script(WAITS, "datastore", "sync", stderr=writing)
    os.close(writing)

    signalled(process, number)

    assert process.wait(timeout=30) == code
    assert (tmp_path / "cleaned-up").exists()


def test_a_signal_that_the_parent_ignores_stays_ignored(processes, tmp_path):
    init_repo(tmp_path)
    body = """
    import os
    from bayou.sync.report import SyncReport
    os.kill(os.getpid(), signal.SIGINT)
    return SyncReport()
"""
    ignoring = RUN.format(body=body).replace("signal.default_int_handler", "signal.SIG_IGN")

    ran = processes.finish(processes.script(ignoring, "datastore", "sync"))

    assert (ran.code, ran.out) == (0, "already in sync\n")


def test_a_signal_that_comes_while_the_command_line_loads_ends_it_without_a_word(tmp_path):
    (tmp_path / "click.py").write_text("print('loading', flush=True)\nimport time\ntime.sleep(60)\n")
    begin = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); import bayou.__main__ as m; m.main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", begin],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "loading\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == -signal.SIGINT


EVERYWHERE = """
import dis, os, signal, sys, threading, time
from bayou.cli import signals
from bayou.objectstore.threads import ThreadPool, wait_for_result

CHECKS = {dis.opmap[name] for name in ("CALL", "CALL_FUNCTION_EX", "JUMP_BACKWARD", "RESUME")}
MODULES = (threading.__file__, sys.modules["concurrent.futures._base"].__file__)
signal.signal(signal.SIGTERM, signal.SIG_DFL)

class Sent:
    # Raises a signal at one of the moments at which Python looks for signals: after steps of some kinds.
    def __init__(self, at):
        self.at, self.came, self.last = at, 0, None
    def watch(self, frame, event, _):
        if frame.f_code.co_filename not in MODULES:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self.step
    def step(self, frame, event, _):
        if event == "opcode":
            if self.last and self.last[0] is frame and self.last[1] in CHECKS:
                self.came += 1
                if self.came == self.at:
                    sys.settrace(None)
                    signal.getsignal(signal.SIGTERM)(signal.SIGTERM, frame)
            self.last = frame, frame.f_code.co_code[frame.f_lasti]
        return self.step

def usable(event, pool):
    event.set()
    pool.submit(int)

def child(at):
    signals.GRACE_S = 3600
    signals.install(json=False)
    event, pool = threading.Event(), ThreadPool(1)
    sent = Sent(at)
    try:
        sys.settrace(sent.watch)
        called = pool.submit(lambda: time.sleep(0.002))
        wait_for_result(called)
        event.wait(0.001)
        event.set()
        pool.close()
        sys.settrace(None)
        if sent.came < at:
            return "never"
        time.sleep(60)
    except signals.Terminated:
        other = threading.Thread(target=usable, args=(event, pool), daemon=True)
        other.start()
        other.join(5)
        return "a lock stayed shut" if other.is_alive() else "terminated"
    except BaseException as error:
        return repr(error)

told = {}
at = 0
while "never" not in told:
    at += 1
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(writing, child(at).encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as said:
        told.setdefault(said.read(), []).append(at)
    os.waitpid(pid, 0)
print({what: len(moments) for what, moments in told.items()})
"""
"""Where a process is when the signal comes: one process for each moment."""


def test_a_signal_while_a_lock_changes_hands_is_that_signal_and_no_lock_stays_shut(processes):
    """Out of the middle of a `Condition`, Python raises "release unlocked lock", or leaves it locked for good."""
    ran = processes.finish(processes.script(EVERYWHERE))

    told = ast.literal_eval(ran.out)
    assert (set(told), told["never"]) == ({"terminated", "never"}, 1)
    assert told["terminated"] >= 30


def test_what_a_signal_runs_into_on_the_way_out_is_told_after_it(processes, tmp_path):
    """V17: the signal is why the command ended; the other error is not lost."""
    ran = terminated(processes, tmp_path, 'RuntimeError("broken")')

    assert (ran.code, ran.error["code"]) == (143, "cancelled")
    assert ran.error["message"] == "terminated; on the way out: this is a bug: RuntimeError: broken"


ENDLESS = """
import os, signal, sys
from bayou.cli import main, signals

signals.GRACE_S = 3600
signal.signal(signal.SIGINT, signal.default_int_handler)
reading, writing = os.pipe()
sys.stdin = os.fdopen(reading)
main()
"""
"""An input that does not end, whatever the tests' own standard input is; the main thread has time to clean up."""


def test_a_put_whose_input_has_not_ended_says_that_nothing_was_saved(processes, tmp_path):
    repo = init_repo(tmp_path / "reading")
    processes.cwd = repo.root
    assert processes.run("model", "create", "host", "web").code == 0
    process = processes.script(ENDLESS, "data", "put", "web", "x")
    spool = repo.state / "spool"
    while not list(spool.glob("*.raw")):
        assert process.poll() is None
        time.sleep(0.01)

    process.send_signal(signal.SIGINT)
    ran = processes.finish(process)

    assert ran.code == 130
    assert "nothing was saved; to go on: `bayou data put web x`" in ran.err
    assert list(spool.iterdir()) == []
