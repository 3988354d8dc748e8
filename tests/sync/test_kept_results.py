"""What was moved before a sync ended early is not moved again; and nothing of it is left lying about (V14, V17)."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from bayou.core.errors import DeadlinePassed, Unavailable
from bayou.packs import write
from bayou.sync.transfer import executor, push
from bayou.sync.transfer.executor import PAUSE, Pause, batch_results
from tests.sync import children
from tests.sync.conftest import Clone, Team

FILES = {f"files/{number:03}": b"%d" % number for number in range(200)}
GOOD = 150


class Cut:
    """Lets some calls through, and makes the others fail; says how many were made."""

    def __init__(self, real: Callable[..., Any], error: Callable[[], None], good: int = GOOD) -> None:
        self._real, self._error, self._good = real, error, good
        self._lock = threading.Lock()
        self.calls = 0

    def __call__(self, *arguments: Any) -> Any:
        with self._lock:
            self.calls += 1
            number = self.calls
        if number > self._good:
            self._error()
        return self._real(*arguments)


def fail() -> None:
    raise DeadlinePassed("not finished")


@pytest.fixture
def there(team: Team) -> Clone:
    """A clone that has everything."""
    clone = team.clone("there")
    clone.write_all(FILES)
    return clone


def staged(clone: Clone) -> list[str]:
    folder = clone.repo.state / "incoming"
    return os.listdir(folder) if folder.exists() else []


@pytest.mark.usefixtures("loose_objects")
def test_f086_a_pull_that_runs_out_of_time_keeps_what_came_and_goes_on_from_there(
    team: Team, there: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    there.push()
    here = team.clone("here")
    fetch = executor.fetch
    monkeypatch.setattr(executor, "fetch", Cut(fetch, fail))

    with pytest.raises(DeadlinePassed):
        here.pull()
    assert len(here.files) == GOOD
    assert staged(here) == []

    rest = Cut(fetch, fail, len(FILES))
    monkeypatch.setattr(executor, "fetch", rest)
    assert here.pull().pulled.files == rest.calls == len(FILES) - GOOD
    assert here.files == there.files


@pytest.mark.usefixtures("loose_objects")
def test_f086_a_push_that_runs_out_of_time_does_not_send_again_what_arrived(
    there: Clone, team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = executor.send
    monkeypatch.setattr(executor, "send", Cut(send, fail))
    with pytest.raises(DeadlinePassed):
        there.push()

    rest = Cut(send, fail, len(FILES))
    monkeypatch.setattr(executor, "send", rest)
    assert there.push().pushed.files == len(FILES)
    assert rest.calls == len(FILES) - GOOD
    assert len(team.payload_keys()) == len(FILES)


@pytest.mark.usefixtures("loose_objects")
def test_a_pull_that_is_interrupted_keeps_what_came(team: Team, there: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    there.push()
    here = team.clone("here")
    interrupted, sent = threading.Event(), threading.Lock()

    def interrupt() -> None:
        if sent.acquire(blocking=False):
            os.kill(os.getpid(), signal.SIGINT)
        assert interrupted.wait(30)

    monkeypatch.setattr(executor, "fetch", Cut(executor.fetch, interrupt))
    threading.Timer(5, interrupted.set).start()  # by then nobody waits for them any more
    with pytest.raises(KeyboardInterrupt):
        here.pull()
    assert len(here.files) >= GOOD - 2 * 32, "but for what was handed over at that very moment"
    assert here.files.items() <= there.files.items()
    interrupted.set()
    assert here.pull().exit_code == 0
    assert here.files == there.files


@pytest.mark.usefixtures("both_ways")
def test_a_full_disk_leaves_no_half_of_a_download(team: Team, there: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    there.push()
    here = team.clone("here")
    write = os.write

    def full(descriptor: int, data: Any) -> int:
        if "incoming" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(28, "No space left on device")
        return write(descriptor, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(Exception, match="cannot store a download"):
            here.pull()
    assert staged(here) == []
    assert here.pull().exit_code == 0
    assert here.files == there.files


@pytest.mark.usefixtures("loose_objects")
def test_a_push_records_what_has_arrived_while_an_earlier_file_is_still_on_its_way(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that share a slow link end in any order, and the last of them long after the first."""
    monkeypatch.setattr(executor, "BATCH_S", 0.0)
    others = threading.Event()
    recorded: set[str] = set()
    real, real_send = push._record, executor.send

    def record(database: Any, remote_id: int, done: Any) -> None:
        real(database, remote_id, done)
        recorded.update(upload.path for upload in done)
        if len(recorded) == 2:
            others.set()

    def send(sender: Any, upload: Any) -> Any:
        assert upload.path != "files/0" or others.wait(30), f"only {recorded} are recorded"
        return real_send(sender, upload)

    monkeypatch.setattr(push, "_record", record)
    monkeypatch.setattr(executor, "send", send)
    clone = team.clone("a")
    clone.write_all({f"files/{number}": os.urandom(2000) for number in range(3)})

    assert clone.push().pushed.files == 3


@pytest.mark.parametrize("waits", ["packs", "objects"])
def test_a_push_records_what_has_arrived_while_others_are_still_on_their_way(
    team: Team, monkeypatch: pytest.MonkeyPatch, waits: str
) -> None:
    """A process that is killed then sends only what the store has not acknowledged."""
    monkeypatch.setenv("BAYOU_PACK_BELOW", "1KiB")
    monkeypatch.setenv("BAYOU_PACK_SIZE", "64KiB")
    monkeypatch.setattr(executor, "BATCH_S", 0.0)
    recorded = threading.Event()
    arrives = "files/packed" if waits == "objects" else "files/large"
    real, real_put, real_send = push._record, write._put, executor.send

    def record(database: Any, remote_id: int, done: Any) -> None:
        real(database, remote_id, done)
        if any(upload.path.startswith(arrives) for upload in done):
            recorded.set()

    def held(call: Callable[..., Any]) -> Callable[..., Any]:
        def wait_and_call(*args: Any) -> Any:
            assert recorded.wait(30), "what has arrived is not recorded"
            return call(*args)

        return wait_and_call

    monkeypatch.setattr(push, "_record", record)
    if waits == "packs":
        monkeypatch.setattr(write, "_put", held(real_put))
    else:
        monkeypatch.setattr(executor, "send", held(real_send))
    clone = team.clone("a")
    clone.write_all({f"files/packed{number:03}": os.urandom(1000) for number in range(700)})
    clone.write_all({f"files/large{number}": os.urandom(2000) for number in range(3)})

    report = clone.push()

    assert (report.pushed.files, report.failed) == (703, [])


def numbers(error: BaseException | None = None) -> Iterator[int]:
    yield from range(10)
    if error is not None:
        raise error


@pytest.mark.parametrize("error", [Unavailable("gone"), KeyboardInterrupt()])
def test_results_before_an_error_are_told_before_it(error: BaseException) -> None:
    found: list[list[int]] = []
    with pytest.raises(type(error)):
        found.extend(batch_results(numbers(error), 4, lambda _: 0))
    assert found == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_results_of_many_bytes_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "BATCH_BYTES", 10)
    monkeypatch.setattr(executor, "BATCH_S", float("inf"))
    assert list(batch_results(numbers(), 4, lambda one: one)) == [[0, 1, 2, 3], [4, 5, 6], [7, 8], [9]]


def test_results_that_come_slowly_do_not_wait_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "BATCH_S", 0.0)
    assert list(batch_results(range(3), 4, lambda _: 0)) == [[0], [1], [2]]


def test_results_do_not_wait_for_the_next_one_to_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow link it comes much later: a process that is killed before must have recorded those that came."""
    now = 0.0
    monkeypatch.setattr(executor, "time", SimpleNamespace(monotonic=lambda: now))

    def results() -> Iterator[int | Pause]:
        nonlocal now
        yield from (0, 1)
        now += executor.BATCH_S / 2
        yield PAUSE
        assert told == []
        now += executor.BATCH_S / 2
        yield PAUSE
        assert told == [[0, 1]]
        yield PAUSE
        yield 2

    told: list[list[int]] = []
    for batch in batch_results(results(), 4, lambda _: 0):
        told.append(batch)  # noqa: PERF402  (the source looks at it)
    assert told == [[0, 1], [2]]


@pytest.mark.parametrize(("size", "shares"), [(1000, [8, 8, 4]), (100_000, [3, 3, 3, 3, 3, 3, 2]), (300_000, [1] * 20)])
def test_a_thread_takes_many_small_files_at_a_time_and_large_ones_singly(size: int, shares: list[int]) -> None:
    """What a thread takes together comes back together, which is long for large files on a slow link."""
    assert [len(share) for share in executor._shares([size] * 20, 8, abs)] == shares


def test_a_signal_at_any_moment_makes_nobody_be_told_twice() -> None:
    """Python raises it where the generator goes on, right after somebody was told."""
    results = batch_results(numbers(), 4, lambda _: 0)
    assert isinstance(results, Generator)
    assert next(results) == [0, 1, 2, 3]
    with pytest.raises(KeyboardInterrupt):
        results.throw(KeyboardInterrupt())


PUSHER = """
from bayou.repo import open_repo
from bayou.state.connection import Connection
from bayou.sync.service import sync
from bayou.sync.transfer import push
from bayou.sync.report import SyncOptions

after(push, "_record")
sync(Connection(open_repo(sys.argv[1])), SyncOptions(mode="push"))
"""
RESUMED = {f"files/{number:03}": b"%04d" % number * 500 for number in range(300)}
RESUMED_BYTES = sum(map(len, RESUMED.values()))


@pytest.mark.usefixtures("both_ways")
def test_a_resumed_push_reports_files_and_bytes_of_one_and_the_same_work(team: Team) -> None:
    a = team.clone("a")
    a.write_all(RESUMED)
    assert children.run_to_death(PUSHER, a.repo.root)

    report = a.push()

    assert (report.pushed.files, report.pushed.bytes) == (len(RESUMED), RESUMED_BYTES)
    assert 0 < report.requests.bytes_out < RESUMED_BYTES  # what the killed push had uploaded is not sent again
    assert report.requests.put < len(RESUMED)
    again = a.push()
    assert (again.pushed.files, again.pushed.bytes) == (0, 0)


def test_a_push_reports_no_bytes_of_a_file_that_it_does_not_commit(team: Team) -> None:
    a, b = team.clone("a"), team.clone("b")
    for clone in (a, b):
        clone.write("files/same", b"same bytes")
    assert a.push().pushed.bytes == len(b"same bytes")
    report = b.push()
    assert (report.pushed.files, report.pushed.bytes) == (0, 0)
