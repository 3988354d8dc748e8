"""The place of a server, its locks, its watcher and its identity: everything that needs no JVM to be shown."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from bayou.config import SparkConfig
from bayou.core.deadline import Deadline
from bayou.core.errors import ConfigInvalid, SparkUnavailable
from bayou.core.file_lock import FileLock, is_locked
from bayou.spark.java import Java
from bayou.spark.server import files as terminate_module
from bayou.spark.server import identity, launch, options, watch
from bayou.spark.server.class_archive import Archive
from bayou.spark.server.control import SparkServer, release
from bayou.spark.server.files import ServerFiles, ServerRecord, read_record, start_detached, terminate, write_record
from bayou.spark.server.identity import Identity, SparkHome, inherited, server_environment
from tests.trusting import trust

RECORD = ServerRecord(1, 2, "key:nonce", "token")


@pytest.fixture
def place(tmp_path):
    made = ServerFiles(tmp_path / "place")
    made.make()
    return made


def eventually(true) -> None:
    """Wait for what must come; the timeout of the test ends the wait."""
    while not true():
        time.sleep(0.01)


class Stand:
    """A process that stands in for a server: it holds the server lock, and ends when it is told to."""

    def __init__(self, place: ServerFiles, *, write_pid: bool = True) -> None:
        alive = FileLock(place.server_lock)
        assert alive.acquire(timeout=30)  # a watcher that looks whether somebody has it, has it for that moment
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-c", "import time; time.sleep(300)"], pass_fds=[alive.descriptor]
        )
        if write_pid:
            os.pwrite(alive.descriptor, f"{self.process.pid:<10}\n".encode(), 0)
        alive.release()
        write_record(place, replace(RECORD, pid=self.process.pid))

    def alive(self) -> bool:
        return self.process.poll() is None


@pytest.fixture
def stand(place):
    made = Stand(place)
    yield made
    made.process.kill()
    made.process.wait()


@pytest.fixture
def watcher(place, tmp_path):
    """Watch a place in a thread, as the watcher process does."""
    threads = []

    def start(idle_s: float, sessions: int = watch.SESSIONS) -> threading.Thread:
        thread = threading.Thread(target=watch.watch, args=(place, Archive(tmp_path / "a.jsa"), idle_s, sessions))
        thread.start()
        threads.append(thread)
        eventually(lambda: is_locked(place.watch_lock) or not thread.is_alive())
        return thread

    yield start
    terminate(place)
    for thread in threads:
        thread.join()


@pytest.fixture
def use(place, watcher):
    """The lock of an open session; it ends before the watcher is waited for, also when a test fails."""
    lock = FileLock(place.use_lock)
    assert lock.acquire(shared=True)
    yield lock
    lock.release()


# ---- who lives ----


def test_a_lock_is_held_by_whoever_inherits_it_and_until_its_end(place, stand):
    assert is_locked(place.server_lock)

    stand.process.kill()
    stand.process.wait()

    assert not is_locked(place.server_lock)


def test_looking_at_a_lock_does_not_take_it(tmp_path):
    assert not is_locked(tmp_path / "lock")
    assert not (tmp_path / "lock").exists()
    first, second = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert first.acquire(shared=True)
    assert second.acquire(shared=True)
    assert not is_locked(tmp_path / "lock")
    assert not FileLock(tmp_path / "lock").acquire()
    first.release(), second.release()
    assert first.acquire()
    assert is_locked(tmp_path / "lock")
    first.release()


def test_a_server_is_ended_and_its_record_with_it(place, stand):
    assert terminate(place)

    assert not stand.alive()
    assert read_record(place) is None
    assert not terminate(place)


def test_a_process_that_got_the_number_of_a_dead_server_is_left_alone(place):
    innocent = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(300)"])
    place.server_lock.write_text(f"{innocent.pid}\n")  # a reboot, and numbers begin anew
    write_record(place, replace(RECORD, pid=innocent.pid))
    try:
        assert not terminate(place)
        watch.end_if_unused(place)
        with pytest.raises(subprocess.TimeoutExpired):
            innocent.wait(0.2)
        assert read_record(place) is None
    finally:
        innocent.kill()
        innocent.wait()


ARCHIVING = """
import signal, sys, time

def end(*_):
    print("SIGTERM", flush=True)
    time.sleep(float(sys.argv[1]))
    sys.exit(3)

signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(300)
"""
"""A server that still has to do something for so many seconds once it is told to end."""


def archiving(place: ServerFiles, seconds: float) -> subprocess.Popen[bytes]:
    alive = FileLock(place.server_lock)
    assert alive.acquire()
    server = subprocess.Popen(
        [sys.executable, "-S", "-c", ARCHIVING, str(seconds)], pass_fds=[alive.descriptor], stdout=subprocess.PIPE
    )
    assert server.stdout.readline() == b"ready\n"
    os.pwrite(alive.descriptor, f"{server.pid:<10}\n".encode(), 0)
    alive.release()
    return server


@pytest.mark.parametrize("archive", [False, True])
def test_a_server_that_does_not_end_when_told_is_killed_after_seconds_whatever_it_writes(place, monkeypatch, archive):
    """The class archive took `bayou spark stop` a minute."""
    assert terminate_module.GRACE_S <= 5
    monkeypatch.setattr(terminate_module, "GRACE_S", 2)  # time to say that it was told
    server = archiving(place, 300)
    if archive:
        place.classes.touch()

    assert terminate(place)

    assert server.wait() == -signal.SIGKILL
    assert server.stdout.read() == b"SIGTERM\n", "the server was told first"
    server.stdout.close()


def test_an_idle_server_has_the_time_to_leave_its_archive(place, monkeypatch):
    monkeypatch.setattr(terminate_module, "GRACE_S", 0.0)
    server = archiving(place, 0.5)
    place.classes.touch()
    place.use_lock.touch()

    watch.stop_if_idle(place, 0.0)

    assert server.wait() == 3, "it ended by itself"
    server.stdout.close()


def test_what_is_started_detached_has_its_own_session_and_inherits_only_what_it_is_given(tmp_path):
    lock, other = FileLock(tmp_path / "lock"), FileLock(tmp_path / "other")
    assert lock.acquire()
    assert other.acquire()
    code = "import os, time; print(os.getsid(0) == os.getpid(), sorted(os.environ), flush=True); time.sleep(300)"
    log = tmp_path / "log"
    pid = start_detached(
        [sys.executable, "-S", "-c", code], cwd=tmp_path, log=log, env={"A": "1"}, inherit=[lock.descriptor]
    )
    lock.release(), other.release()
    try:
        eventually(lambda: log.exists() and log.read_text().endswith("\n"))
        assert log.read_text().startswith("True ['A'")
        assert is_locked(tmp_path / "lock")
        assert not is_locked(tmp_path / "other")
    finally:
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: not is_locked(tmp_path / "lock"))
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


# ---- the record and the place ----


def test_a_record_is_for_this_user_alone_and_its_token_is_not_shown(place):
    write_record(place, RECORD)

    assert read_record(place) == RECORD
    assert stat.S_IMODE(place.record.stat().st_mode) == 0o600
    assert stat.S_IMODE(place.root.stat().st_mode) == 0o700
    assert "token" not in repr(RECORD).replace("token=", "")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"port": 1}', '{"port": "1", "pid": 2, "identity": "", "token": ""}'])
def test_a_record_that_is_none_is_as_good_as_none(place, text):
    place.record.write_text(text)

    assert read_record(place) is None


def test_a_place_that_others_may_read_is_closed_to_them(place):
    place.root.chmod(0o755)

    place.make()

    assert stat.S_IMODE(place.root.stat().st_mode) == 0o700


def test_a_place_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(SparkUnavailable, match="not a folder of yours"):
        ServerFiles(tmp_path / "link").make()


# ---- the watcher ----


def test_an_idle_server_is_stopped_and_its_watcher_ends(place, stand, watcher):
    place.use_lock.touch()
    os.utime(place.use_lock, (0, 0))

    watcher(0.05).join()

    assert not stand.alive()
    assert read_record(place) is None
    assert not is_locked(place.watch_lock)


def test_a_server_in_use_is_never_stopped_however_long_ago_its_session_began(place, stand, watcher, use):
    os.utime(place.use_lock, (0, 0))
    thread = watcher(0.02)
    watch.stop_if_idle(place, 0.0)
    for _ in range(20):  # many times the idle time
        time.sleep(0.02)
        assert stand.alive()

    release(use)
    thread.join()

    assert not stand.alive()


def test_a_server_that_was_used_a_moment_ago_is_not_idle(place, stand):
    place.use_lock.touch()

    watch.stop_if_idle(place, 3600.0)

    assert stand.alive()


def test_an_unused_server_that_served_more_sessions_than_the_limit_is_ended(place, stand, use):
    for _ in range(3):
        place.record_session()

    watch.stop_if_idle(place, 3600.0, sessions=2)
    assert stand.alive(), "a session is open"
    release(use)
    watch.stop_if_idle(place, 3600.0, sessions=3)
    assert stand.alive(), "the limit is not exceeded"
    watch.stop_if_idle(place, 3600.0, sessions=2)

    assert not stand.alive()
    assert read_record(place) is None


def test_the_watcher_does_not_wait_an_hour_for_a_server_that_served_too_many_sessions(place, stand, use, watcher):
    thread = watcher(20.0, sessions=1)  # looks every 5 s, and would wait 20 s for an idle server
    place.record_session()
    place.record_session()
    started = time.monotonic()

    release(use)
    thread.join()

    assert not stand.alive()
    assert time.monotonic() - started < 20.0


def test_a_watcher_ends_with_a_server_that_was_killed(place, stand, watcher):
    thread = watcher(0.2)
    stand.process.kill()
    stand.process.wait()

    thread.join()

    assert not is_locked(place.watch_lock)


def test_a_watcher_does_not_leave_while_a_session_may_be_starting_another_server(place, stand, watcher, use):
    thread = watcher(0.1)
    stand.process.kill()
    stand.process.wait()
    time.sleep(0.2)
    assert is_locked(place.watch_lock)
    second = Stand(place)
    release(use)

    os.utime(place.use_lock, (0, 0))
    thread.join()

    assert second.process.wait() == -signal.SIGTERM


def test_there_is_one_watcher(place, stand, watcher, monkeypatch):
    monkeypatch.setattr(watch, "PATIENCE_S", 0.0)
    first = watcher(60)

    watcher(60).join()

    assert first.is_alive()


def test_a_real_watcher_is_started_once(place, stand, use, tmp_path, monkeypatch):
    monkeypatch.setenv("BAYOU_SPARK_IDLE", "0.2")
    watch.ensure(place, Archive(tmp_path / "a.jsa"))
    eventually(lambda: is_locked(place.watch_lock))
    monkeypatch.setattr(watch, "start_detached", lambda *_, **__: pytest.fail("a second one"))

    watch.ensure(place, Archive(tmp_path / "a.jsa"))

    release(use)
    assert stand.process.wait() == -signal.SIGTERM
    eventually(lambda: not is_locked(place.watch_lock))
    assert (place.root / "watch.log").read_text() == ""


@pytest.mark.parametrize("text", ["soon", "0", "-1", "inf", "nan"])
def test_an_idle_time_that_is_none_is_refused(monkeypatch, text):
    monkeypatch.setenv("BAYOU_SPARK_IDLE", text)

    with pytest.raises(ConfigInvalid, match="BAYOU_SPARK_IDLE"):
        watch.idle_seconds()


@pytest.mark.parametrize("text", ["many", "0", "-1", "1.5"])
def test_a_limit_of_sessions_that_is_none_is_refused(monkeypatch, text):
    monkeypatch.setenv("BAYOU_SPARK_SESSIONS", text)

    with pytest.raises(ConfigInvalid, match="BAYOU_SPARK_SESSIONS"):
        watch.session_limit()


# ---- whose server it is ----


@pytest.fixture
def known(tmp_path):
    """Return the identity of a caller, with some of the circumstances changed."""
    java, spark = Java(tmp_path / "java", "17.0.15"), SparkHome(tmp_path / "spark", "4.3.0")

    def make(master: str = "local", java: Java = java, spark: SparkHome = spark, **environ: str) -> Identity:
        return identity.identify(master, java, spark, {"HOME": "/h", **environ})

    return make


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setattr(sys, "prefix", "/other/venv"),
        lambda patch: patch.setattr(sys, "executable", "/other/python"),
        lambda patch: patch.setattr(os, "getuid", lambda: 4711),
        lambda patch: patch.setattr(identity, "bayou_version", lambda: "9.9.9"),
        lambda patch: patch.setattr(identity, "SOURCE", Path("/other/checkout/src")),
        lambda patch: patch.setattr(identity, "files_digest", lambda _: "edited"),
    ],
    ids=["venv", "python", "user", "version", "checkout", "edited"],
)
def test_another_environment_or_version_means_another_server(known, monkeypatch, change):
    mine = known()

    change(monkeypatch)

    assert known() != mine
    assert known().key != mine.key


def test_another_java_spark_master_or_setting_means_another_server(known, tmp_path):
    others = [
        known(master="local[2]"),
        known(java=Java(tmp_path / "java", "21.0.2")),
        known(java=Java(tmp_path / "other", "17.0.15")),
        known(spark=SparkHome(tmp_path / "spark", "4.3.1")),
        known(HTTPS_PROXY="http://proxy:3128"),
        known(PYTHONPATH="/plugins"),
    ]

    assert len({other.key for other in [known(), *others]}) == 7
    assert known().key == known(TERM="xterm", AWS_PROFILE="x").key


def test_an_identity_outdates_only_itself_in_another_version(known, tmp_path):
    mine = known()

    assert mine.outdates(known(spark=SparkHome(tmp_path / "spark", "4.3.1")))
    assert mine.outdates(replace(mine, bayou="0.0.9"))
    assert not mine.outdates(mine)
    assert not mine.outdates(known(master="local[2]"))
    assert not mine.outdates(replace(mine, prefix="/other/venv"))
    assert Identity.from_json(mine.to_json()) == mine


@pytest.mark.parametrize("used", [False, True])
def test_a_server_of_an_older_version_is_dismissed_unless_somebody_uses_it(tmp_path, known, used):
    mine = known()
    warm = SparkServer(tmp_path / "cache", mine, Java(tmp_path, "17"), SparkHome(tmp_path, "4.3.0"))
    old = ServerFiles(warm.cache / "older")
    old.make()
    old.identity.write_text(replace(mine, bayou="0.0.9").to_json())
    use = FileLock(old.use_lock)
    assert use.acquire(shared=True)
    if not used:
        release(use)
    stand = Stand(old)
    try:
        warm._end_outdated()
        if used:
            assert stand.alive()
        else:
            assert stand.process.wait() == -signal.SIGTERM
        assert (read_record(old) is not None) == used
    finally:
        stand.process.kill()
        stand.process.wait()
        use.release()


# ---- what it gets ----


def environment_of(master: str, environ: dict[str, str], home: Path) -> dict[str, str]:
    taken = inherited(master, environ)
    scratch = ServerFiles(home).scratch(taken.get("SPARK_LOCAL_DIRS", ""))
    return server_environment(master, taken, java_home=home, spark_home=home, scratch=scratch)


def test_no_credential_reaches_a_server_whatever_its_name(tmp_path):
    environ = {
        "HOME": "/h",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "GOOGLE_APPLICATION_CREDENTIALS": "secret",
        "AZURE_STORAGE_ACCOUNT_KEY": "secret",
        "SPARK_CONNECT_AUTHENTICATE_TOKEN": "secret",
        "ANYTHING": "secret",
        "HTTPS_PROXY": "http://me:secret@proxy:3128",
        "HTTP_PROXY": "http://proxy:3128",
        "KRB5CCNAME": "FILE:/secret",
    }

    made = environment_of("local[*]", environ, tmp_path)

    assert "secret" not in json.dumps(made)
    assert made["HTTP_PROXY"] == "http://proxy:3128"
    assert made["PYSPARK_PYTHON"] == sys.executable
    assert made["SPARK_LOCAL_IP"] == "127.0.0.1"


def test_a_cluster_needs_to_know_where_spark_is_and_hadoop_s_configuration(tmp_path):
    made = environment_of("yarn", {"HADOOP_CONF_DIR": "/etc/hadoop"}, tmp_path)

    assert (made["HADOOP_CONF_DIR"], made["SPARK_HOME"]) == ("/etc/hadoop", str(tmp_path))
    assert "SPARK_LOCAL_IP" not in made


def test_17_3_temporary_files_are_in_a_folder_that_only_this_user_can_read(tmp_path):
    """Wherever somebody wants them: Spark itself makes them readable for everybody."""
    place, fast = ServerFiles(tmp_path / "key"), tmp_path / "fast"
    place.make()
    fast.mkdir(mode=0o777)
    told = environment_of("local", {"SPARK_LOCAL_DIRS": f"{fast},/more"}, place.root)["SPARK_LOCAL_DIRS"]

    assert environment_of("local", {}, place.root)["SPARK_LOCAL_DIRS"] == str(place.work)
    assert told == f"{fast}/bayou-key,/more/bayou-key"

    launch._clear(place, place.scratch(str(fast)))

    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (place.work, fast / "bayou-key")] == [0o700, 0o700]
    (fast / "bayou-key").rmdir()
    (fast / "bayou-key").symlink_to(tmp_path)
    with pytest.raises(SparkUnavailable, match="not a folder of yours"):
        launch._clear(place, place.scratch(str(fast)))
    (tmp_path / "file").touch()
    with pytest.raises(SparkUnavailable, match="cannot make the folder"):
        launch._clear(place, place.scratch(str(tmp_path / "file")))


def test_settings_are_written_for_this_user_alone_and_bind_to_loopback(place):
    file = options.write_spark(place, "local[*]", token="t0ken", identity="key:nonce")

    lines = dict(line.split("=", 1) for line in file.read_text().splitlines())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert lines["spark.connect.authenticate.token"] == "t0ken"
    assert lines["spark.bayou.identity"] == "key:nonce"
    assert (lines["spark.authenticate"], lines["spark.network.crypto.enabled"]) == ("true", "true")
    again = options.write_spark(place, "local[*]", token="t0ken", identity="key:nonce").read_text()
    assert lines["spark.authenticate.secret"] not in again, "a secret is good for one server"
    assert {lines[f"spark.{key}"] for key in ("connect.grpc.binding.address", "driver.bindAddress", "driver.host")} == {
        "127.0.0.1"
    }


def test_sockets_are_used_where_their_names_are_not_too_long(tmp_path):
    for name, used in (("short", "true"), ("long" * 30, "false")):
        place = ServerFiles(Path("/tmp") / name)
        settings = options._settings(place, "local[*]", "token", "identity")
        assert settings["spark.python.unix.domain.socket.enabled"] == used


def test_a_cluster_reaches_the_driver_where_spark_says_so(place):
    file = options.write_spark(place, "spark://host:7077", token="t", identity="i")

    assert "spark.driver." not in file.read_text()
    assert "spark.authenticate" not in file.read_text(), "whether a cluster authenticates is its administrator's to say"
    assert "spark.connect.grpc.binding.address=127.0.0.1" in file.read_text()


def test_the_command_line_of_java_survives_spaces_and_quotes(tmp_path):
    place = ServerFiles(tmp_path / 'a "place" of\\mine')
    place.make()

    file = options.write_java(place, [Path("/opt/my jars/a.jar"), Path("/b.jar")], ["-Dx=1"])

    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines[-2:] == ["-cp", "/opt/my jars/a.jar:/b.jar"]
    assert f"-Djava.io.tmpdir={place.work}" in lines
    assert "-Dx=1" in lines


@pytest.mark.parametrize(
    ("gib", "cores", "heap"), [(1, 1, 0.5), (4, 2, 1), (24, 2, 1.5), (64, 16, 5), (16, 64, 4), (256, 64, 17)]
)
def test_the_heap_grows_with_the_machine_and_leaves_room_for_python(gib, cores, heap):
    assert options.heap_size(gib << 30, cores) == heap * (1 << 30)


def test_this_machine_has_memory_and_cores():
    assert options.memory() > 100 << 20
    assert options.cores() >= 1


# ---- the class archive ----


@pytest.fixture
def archive(tmp_path):
    return Archive(tmp_path / "classes" / "4.3.0-17-aaaa.jsa")


def test_a_server_uses_the_archive_or_leaves_one(place, archive):
    assert archive.options(place) == [f"-XX:ArchiveClassesAtExit={place.classes}"]
    assert not archive.publish(place), "it is announced, and not there yet"
    assert not archive.ready
    place.classes.write_bytes(b"\xa8\xba\x0b\xf0 and more")

    assert archive.publish(place)

    assert archive.options(place)[-1] == f"-XX:SharedArchiveFile={archive.path}"
    assert not place.classes.exists()
    assert archive.publish(place)


def test_an_archive_that_its_jvm_did_not_finish_is_thrown_away(place, archive):
    place.classes.write_bytes(bytes(4096))

    assert not archive.publish(place)

    assert not place.classes.exists()
    assert not archive.ready


def test_a_new_archive_takes_the_place_of_the_one_for_jars_that_were_replaced(place, archive):
    archive.path.parent.mkdir()
    for name in ("4.3.0-17-bbbb.jsa", "4.3.0-21-bbbb.jsa"):
        (archive.path.parent / name).touch()
    place.classes.write_bytes(b"\xa8\xba\x0b\xf0")

    archive.publish(place)

    assert sorted(file.name for file in archive.path.parent.iterdir()) == ["4.3.0-17-aaaa.jsa", "4.3.0-21-bbbb.jsa"]


def test_an_archive_is_for_one_java_and_one_set_of_jars(tmp_path):
    home, java = SparkHome(tmp_path / "spark", "4.3.0"), Java(tmp_path / "java", "17")
    (home.root / "jars").mkdir(parents=True)
    jar = home.root / "jars" / "a.jar"
    jar.write_bytes(b"1")
    first = Archive.of(tmp_path, java, home)

    assert Archive.of(tmp_path, java, home) == first
    assert Archive.of(tmp_path, replace(java, version="21"), home) != first
    os.utime(jar, (0, 0))
    assert Archive.of(tmp_path, java, home) != first


# ---- asking costs nothing ----


def test_f094_the_status_starts_nothing_and_sends_nothing(command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # where no server of another test runs
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    monkeypatch.setattr("socket.create_connection", lambda *_, **__: pytest.fail("a connection was opened"))

    ran = command("spark", "status", "--json")

    assert (ran.code, ran.err) == (0, "")
    assert {key: ran.document[key] for key in ("mode", "url", "running")} == {
        "mode": "local",
        "url": None,
        "running": False,
    }
    assert ran.document["version"].startswith("4.")


def test_f094_the_status_loads_no_spark(processes):
    ran = processes.finish(processes.start(["-X", "importtime", "-m", "bayou", "spark", "status", "--json"]))

    assert ran.code == 0
    assert not [line for line in ran.err.splitlines() if line.split("|")[-1].strip().startswith(("pyspark", "grpc"))]


def test_a_remote_is_shown_without_its_token(command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BAYOU_SPARK_REMOTE", "sc://127.0.0.1:1/;token=secret")

    ran = command("spark", "status", "--json")
    stop = command("spark", "stop", "--json")

    assert (ran.document["mode"], ran.document["url"], ran.document["running"]) == ("remote", "sc://127.0.0.1:1", False)
    assert stop.error["code"] == "spark_unavailable"
    assert "secret" not in ran.out + stop.err


def test_without_java_the_status_says_so_and_the_rest_is_one_line(command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("bayou.spark.java.USUAL_HOMES", ())
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("PATH", "")

    status, warm = command("spark", "status"), command("spark", "warm", "-q")

    assert status.code == 0
    assert "apt-get install" in status.err
    assert warm.code == 1
    assert warm.err.splitlines()[0] == "error: Spark needs Java 17 or newer, and there is none"
    assert warm.err.splitlines()[1].startswith("hint: install it with: sudo apt-get install")
    assert len(warm.err.splitlines()) == 2


def test_stopping_what_does_not_run_is_no_failure(command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BAYOU_SPARK_MASTER", "local[7]")

    assert command("spark", "stop", "--json").document == {"stopped": False}
    assert "no Spark server was running" in command("spark", "stop").out


def test_a_repo_s_own_setting_counts(command, monkeypatch, tmp_path):
    command("init", str(tmp_path / "repo"))
    file = tmp_path / "repo" / "bayou.toml"
    file.write_text(file.read_text() + '\n[spark]\nmaster = "spark://127.0.0.1:7077"\n')
    trust(tmp_path / "repo")
    monkeypatch.chdir(tmp_path / "repo")

    assert command("spark", "status", "--json").document["mode"] == "master"


def test_somebody_who_waits_for_a_turn_too_long_is_told(tmp_path, known):
    warm = SparkServer(tmp_path / "cache", known(), Java(tmp_path, "17"), SparkHome(tmp_path, "4.3.0"))
    warm.files.make()
    turn = FileLock(warm.files.control_lock)
    assert turn.acquire()

    with pytest.raises(SparkUnavailable, match="starting or stopping Spark for too long") as caught:
        warm.stop(Deadline.after(0.1))

    assert str(warm.files.log) in caught.value.hint
    turn.release()


def test_a_server_is_found_for_as_long_as_it_lives(tmp_path, known):
    warm = SparkServer(tmp_path / "cache", known(), Java(tmp_path, "17"), SparkHome(tmp_path, "4.3.0"))
    warm.files.make()
    assert warm.running() is None
    stand = Stand(warm.files)
    assert warm.running() == replace(RECORD, pid=stand.process.pid)

    stand.process.kill()
    stand.process.wait()

    assert warm.running() is None, "its record is still there, and worth nothing"


def test_the_default_is_every_core_with_retries(monkeypatch):
    assert SparkServer.of(SparkConfig()).identity.master == "local[*,4]"
    assert SparkServer.of(SparkConfig(master="yarn")).identity.master == "yarn"


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("", "it ended without a word"),
        ("/opt/java/bin/java: No such file or directory\n", "/opt/java/bin/java: No such file or directory"),
        ("Error occurred during initialization of VM\nToo small maximum heap\n", "Too small maximum heap"),
        ("Error: Could not find or load main class X\n", "Could not find or load main class X"),
        (
            "ERROR SparkContext: no\norg.apache.spark.SparkException: Could not parse Master URL: 'x'\n\tat a.b(C:1)\n",
            "Could not parse Master URL: 'x'",
        ),
        ('Exception in thread "main" java.lang.IllegalStateException: no\n\tat a.b(C:1)\n', "no"),
    ],
)
def test_of_a_log_the_line_is_told_that_says_why(log, cause):
    assert launch._cause(log) == cause
