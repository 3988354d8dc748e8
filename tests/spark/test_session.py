"""Sessions on a real Spark: one warm server, found again, never mistaken for another, replaced when it has died."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from bayou.config import SparkConfig
from bayou.core.deadline import Deadline
from bayou.core.errors import DeadlinePassed, SparkError, SparkFailed, SparkLost, SparkUnavailable
from bayou.core.file_lock import is_locked
from bayou.spark.server import identity
from bayou.spark.server.control import SparkServer
from bayou.spark.server.files import ServerFiles, read_record, write_record
from bayou.spark.server.options import IDENTITY
from bayou.spark.session import _connect, close_session, log_of, open_session, spark_errors, spark_session
from tests.spark.conftest import SECRET, end_servers
from tests.spark.test_server import eventually

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

LOOK = '''
import os
from bayou.config import SparkConfig
from bayou.spark.session import spark_session

def look(batches):
    import os
    import pyarrow
    import bayou.spark.session
    for _ in batches:
        told = [f"{name}={value}" for name, value in os.environ.items()]
        yield pyarrow.RecordBatch.from_pydict({"told": told})

def tell_environment():
    """Return what a Python worker of a new session finds in its environment."""
    with spark_session(SparkConfig()) as spark:
        return [row.told for row in spark.range(1).mapInArrow(look, "told string").collect()]

if __name__ == "__main__":
    print("\\n".join(tell_environment()))
'''

HOLD = """
import sys
from bayou.config import SparkConfig
from bayou.core.deadline import Deadline
from bayou.spark.server.control import SparkServer
warm, deadline = SparkServer.of(SparkConfig()), Deadline.after(250)
with warm.using(deadline):
    print(warm.find_or_start(deadline).pid, flush=True)
    sys.stdin.read()
"""


def finish(process: subprocess.Popen[str]) -> str:
    """Return what a process printed. Slow machines start it slowly; the timeout of the test ends the wait."""
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert err == ""
    return out


def test_a_second_caller_uses_the_server_of_the_first_and_meets_nobody_s_credentials(warm, processes, monkeypatch):
    server = warm.running()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    here: dict[str, Any] = {"__name__": "look"}
    exec(LOOK, here)

    of_the_first = here["tell_environment"]()
    of_the_second = finish(processes.script(LOOK, AWS_SECRET_ACCESS_KEY="of-the-second")).splitlines()

    assert warm.running() == server, "the same process, port and token"
    for told in (of_the_first, of_the_second):
        assert f"PYSPARK_PYTHON={sys.executable}" in told
        assert not [line for line in told if SECRET in line or "of-the-second" in line]
        assert not [line for line in told if line.startswith(("AWS_", "GOOGLE_", "AZURE_", "MY_"))]
    # What one caller's kernels leave in a worker, no other caller's kernels find: each session has workers of its own.
    assert mark(of_the_first) != mark(of_the_second)


def mark(environment: list[str]) -> str:
    (found,) = [line for line in environment if line.startswith("SPARK_JOB_ARTIFACT_UUID=")]
    return found


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="there is no other way to look into a process")
def test_the_server_itself_has_no_credentials_and_shows_no_token(warm):
    server = warm.running()
    process = Path(f"/proc/{server.pid}")

    assert SECRET not in (process / "environ").read_text()
    assert server.token not in (process / "environ").read_text() + (process / "cmdline").read_text()
    for file in warm.files.root.rglob("*"):
        if file.is_file() and file != warm.files.record:
            assert server.token.encode() not in file.read_bytes(), file
            assert SECRET.encode() not in file.read_bytes(), file


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="there is no other way to look into a process")
def test_the_server_runs_from_the_class_archive_and_listens_on_loopback_only(warm):
    server = warm.running()

    assert warm.archive.ready
    assert Path(warm.archive.path).resolve().name in Path(f"/proc/{server.pid}/maps").read_text()
    addresses = {
        line.split()[1]
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/{server.pid}/net/{table}").read_text().splitlines()[1:]
        if line.split()[1].endswith(f":{server.port:04X}") and line.split()[3] == "0A"
    }
    assert {address.rpartition(":")[0][-8:] for address in addresses} == {"0100007F"}


def test_a_stranger_without_the_token_gets_nothing(warm):
    server = warm.running()

    for token in ("", "/;token=guessed"):
        with pytest.raises(SparkLost):
            _connect(server.url + token, server, warm.files.log)


def test_a_server_that_is_not_the_one_looked_for_is_not_used(warm):
    server = warm.running()

    with pytest.raises(SparkUnavailable, match="not the Spark server that was started for this"):
        _connect(f"{server.url}/;token={server.token}", replace(server, identity="other:nonce"), None)


def test_another_version_does_not_find_this_server(warm, monkeypatch):
    monkeypatch.setattr(identity, "bayou_version", lambda: "9.9.9")

    assert SparkServer.of(SparkConfig()).running() is None
    assert SparkServer.of(SparkConfig()).files != warm.files


def test_status_says_that_it_runs_and_where(warm, command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    ran = command("spark", "status", "--json")

    assert ran.document == {
        "mode": "local",
        "url": warm.running().url,
        "version": "4.3.0",
        "running": True,
        "java": warm.java.version,
        "log": str(warm.files.log),
    }
    assert f"running at {warm.running().url}" in command("spark", "status").out


def test_a_job_that_fails_names_the_log(warm):
    def fail(batches):
        raise ValueError("the kernel's own words")

    with pytest.raises(SparkFailed) as caught, spark_session(SparkConfig()) as spark:
        spark.range(1).mapInArrow(fail, "id long").collect()

    assert "\n" not in caught.value.message
    assert str(warm.files.log) in caught.value.hint
    assert "the kernel's own words" in warm.files.log.read_text()


def test_a_task_is_tried_again(spark, tmp_path):
    def fail_once(batches):
        import os

        if not os.path.exists(tmp_path / "tried"):
            (tmp_path / "tried").touch()
            os.kill(os.getpid(), 9)
        yield from batches

    assert spark.range(3).mapInArrow(fail_once, "id long").count() == 3


def test_closing_a_session_ends_what_runs_in_it(warm, tmp_path):
    """As after Ctrl-C: the server goes on, the job does not."""

    def stall(batches):
        import os
        import time

        (tmp_path / "new").write_text(str(os.getpid()))
        (tmp_path / "new").rename(tmp_path / "worker")
        time.sleep(300)
        yield from batches

    spark, ended = open_session(SparkConfig()), []

    def work() -> None:
        with pytest.raises((SparkError, ValueError)) as caught, spark_errors(log_of(spark)):
            spark.range(1).mapInArrow(stall, "id long").collect()
        ended.append(caught.value)

    thread = threading.Thread(target=work)
    thread.start()
    eventually((tmp_path / "worker").exists)
    worker = int((tmp_path / "worker").read_text())

    close_session(spark)

    thread.join()
    assert ended
    eventually(lambda: not lives(worker))
    assert warm.is_listening()


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_server_killed_in_the_middle_of_a_job_is_named_as_lost_and_the_next_session_has_another(warm, tmp_path):
    def stall(batches):
        import time

        (tmp_path / "running").touch()
        time.sleep(300)
        yield from batches

    before = warm.running()
    spark = open_session(SparkConfig())
    log = log_of(spark)

    with pytest.raises(SparkLost) as caught, killing(before.pid, tmp_path / "running"), spark_errors(log):
        spark.range(1).mapInArrow(stall, "id long").collect()
    close_session(spark)

    assert str(log) in caught.value.hint
    with spark_session(SparkConfig()) as another:
        assert another.range(5).count() == 5
    assert warm.running().pid != before.pid


class killing:  # noqa: N801
    """Kill a process as soon as a file exists."""

    def __init__(self, pid: int, when: Path) -> None:
        def kill() -> None:
            eventually(when.exists)
            os.kill(pid, signal.SIGKILL)

        self._thread = threading.Thread(target=kill)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._thread.join()


def test_a_record_that_leads_to_another_server_is_given_up_and_never_followed(warm, capfd):
    with spark_session(SparkConfig()):
        pass
    before = warm.running()
    write_record(warm.files, replace(before, identity="somebody:else"))

    with spark_session(SparkConfig()) as spark:
        now = warm.running()
        assert spark.conf.get(IDENTITY) == now.identity
        assert now.identity.startswith(f"{warm.identity.key}:")
    assert now.pid != before.pid
    assert capfd.readouterr() == ("", "")


def test_two_who_start_at_once_get_one_server_which_stops_when_both_are_gone(classes, tmp_path):
    """And what it leaves tells the next one nothing wrong."""
    folder = tmp_path / "cache" / "bayou" / "spark"
    folder.mkdir(parents=True)
    (folder / "classes").symlink_to(classes)
    try:
        both = [
            subprocess.Popen(
                [sys.executable, "-c", HOLD],
                env=os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache"), "BAYOU_SPARK_IDLE": "0.5"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        pids = {process.stdout.readline() for process in both}
        (place,) = [ServerFiles(file.parent) for file in folder.glob("*/server.lock")]
        first, second = both

        assert len(pids) == 1
        first.communicate()
        assert is_locked(place.server_lock)
        second.communicate()

        eventually(lambda: not is_locked(place.server_lock))
        eventually(lambda: not is_locked(place.watch_lock))
        assert read_record(place) is None
    finally:
        for process in both:
            process.kill()
            process.communicate()
        end_servers(tmp_path / "cache")


def test_a_server_that_does_not_start_says_why_and_names_its_log():
    with pytest.raises(SparkUnavailable, match=r"Spark did not start: .*nonsense") as caught:
        open_session(SparkConfig(master="local[nonsense]"))

    log = SparkServer.of(SparkConfig(master="local[nonsense]")).files.log
    assert caught.value.hint == f"its log says more: {log}"
    assert "nonsense" in log.read_text()


def test_a_server_that_does_not_start_in_time_is_not_left_behind():
    config = SparkConfig(master="local[1]")

    with pytest.raises(DeadlinePassed) as caught:
        open_session(config, deadline=Deadline.after(1.0))

    place = SparkServer.of(config).files
    assert str(place.log) in caught.value.__notes__[0]
    eventually(lambda: not is_locked(place.server_lock))
    assert read_record(place) is None


def test_a_remote_that_is_not_there_is_one_line(monkeypatch):
    monkeypatch.setattr("bayou.spark.session.REMOTE_RETRIES", 1)

    with pytest.raises(SparkUnavailable, match=r"no Spark Connect server answers at sc://127\.0\.0\.1:1") as caught:
        open_session(SparkConfig(remote="sc://127.0.0.1:1/;user_id=me"))

    assert "BAYOU_SPARK_REMOTE" in caught.value.hint


def test_a_remote_is_used_as_it_is(warm, monkeypatch):
    with spark_session(SparkConfig()):
        server = warm.running()
        monkeypatch.setenv("SPARK_CONNECT_AUTHENTICATE_TOKEN", server.token)

        with spark_session(SparkConfig(remote=server.url)) as spark:
            assert spark.range(2).count() == 2
            assert log_of(spark) is None


def test_warm_and_stop_say_what_they_did(warm, command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    warmed = command("spark", "warm", "--json").document
    stopped = command("spark", "stop", "--json").document

    assert (warmed["running"], warmed["archive"], warmed["mode"]) == (True, True, "local")
    assert stopped == {"stopped": True}
    assert command("spark", "status", "--json").document["running"] is False
    assert not is_locked(warm.files.server_lock)


def workers(spark) -> set[tuple[int, int]]:
    """Return the processes that a session's tasks run in, each with its daemon."""
    import pyarrow

    def who(batches):
        for _ in batches:
            pass
        yield pyarrow.RecordBatch.from_pydict({"pid": [os.getpid()], "parent": [os.getppid()]})

    return {tuple(row) for row in spark.range(0, 8, 1, 8).mapInArrow(who, "pid long, parent long").collect()}


def test_v26_sessions_share_neither_a_daemon_nor_a_worker_and_one_session_uses_its_own_again(warm):
    with spark_session(SparkConfig()) as one, spark_session(SparkConfig()) as two:
        mine, theirs = workers(one), workers(two)

        assert not {daemon for _, daemon in mine} & {daemon for _, daemon in theirs}
        assert not {pid for pid, _ in mine} & {pid for pid, _ in theirs}
        assert workers(one) & mine


def test_tasks_are_spoken_to_over_sockets_that_only_this_user_can_reach(warm):
    """Over TCP each of them waits for 40 ms."""
    with spark_session(SparkConfig()) as spark:
        assert spark.conf.get("spark.python.unix.domain.socket.enabled") == "true"
        assert workers(spark)
        assert list(warm.files.work.glob(".*.sock"))
        assert warm.files.root.stat().st_mode & 0o077 == 0
