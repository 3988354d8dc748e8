"""A directory as a store: what it promises to many processes, and what a file system can do to it."""

from __future__ import annotations

import errno
import gc
import json
import os
import random
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bayou.core import atomic_file
from bayou.core.errors import (
    AccessDenied,
    AlreadyExists,
    DeleteFailed,
    NoSuchBucket,
    NotFound,
    Rejected,
    StoreError,
    TimedOut,
    Unavailable,
)
from bayou.objectstore import Create, Match, Store, keys, open_store
from bayou.objectstore.backends import directory as local
from bayou.objectstore.backends import directory_files
from bayou.objectstore.backends.directory import LocalTransport
from bayou.objectstore.keys import KeyScope
from bayou.objectstore.retry import RetryPolicy
from bayou_testing.contract import payload, race
from tests.objectstore.directories import TIMEOUT, content, listed, put, temporaries

CHILDREN = Path(__file__).with_name("directory_children.py")
ONCE = RetryPolicy(attempts=1)
PROCESSES, INCREMENTS, CREATIONS = 8, 25, 30


@pytest.fixture
def store(transport: LocalTransport) -> Store:
    return Store(transport, KeyScope.of("", None), policy=ONCE)


def run_child(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, str(CHILDREN), *arguments], stdout=subprocess.PIPE, text=True)


def answer_of(child: subprocess.Popen[str]) -> dict[str, Any]:
    said, _ = child.communicate(timeout=100)
    assert child.returncode == 0
    answer: dict[str, Any] = json.loads(said)
    return answer


# ---- many processes ----


def test_v1_processes_that_count_together_lose_no_step_and_of_all_creators_one_wins(
    root: Path, transport: LocalTransport
) -> None:
    put(transport, "counter", b"0", condition=Create())
    children = [
        run_child("contend", str(root), f"p{number}", str(INCREMENTS), str(CREATIONS)) for number in range(PROCESSES)
    ]
    (root / "start").touch()
    answers = [answer_of(child) for child in children]
    assert content(transport, "counter") == str(PROCESSES * INCREMENTS).encode()
    assert sorted(number for answer in answers for number in answer["won"]) == list(range(CREATIONS))
    for answer in answers:
        for number in answer["won"]:
            assert content(transport, f"created/{number}") == answer["name"].encode()
    assert temporaries(root) == []


def test_v11_a_writer_that_is_killed_leaves_no_half_object_and_no_lock(root: Path, rng: random.Random) -> None:
    done = answer_of(run_child("die", str(root), str(rng.random())))
    assert min(done["steps"].values()) > 3, "every kind of write has some steps to die in"
    assert listed(LocalTransport(root)) == ["head"]


def test_v12_a_lock_that_somebody_holds_is_waited_for_no_longer_than_allowed(transport: LocalTransport) -> None:
    etag = put(transport, "head", condition=Create())
    with transport._locked("head", TIMEOUT), pytest.raises(TimedOut):
        transport.put("head", b"y", condition=Match(etag), timeout=0.05)
    put(transport, "head", b"z", condition=Match(etag))


def test_locks_do_not_grow_with_the_number_of_objects(
    root: Path, transport: LocalTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    for number in range(600):
        put(transport, f"probes/{number}", condition=Create())
    transport.delete([f"probes/{number}" for number in range(600)], timeout=TIMEOUT)
    assert [path.name for path in root.iterdir()] == [".bayou-locks.tmp"]
    assert len(list(root.rglob("*"))) <= 1 + 256


def test_people_who_share_a_group_share_the_locks(root: Path, transport: LocalTransport) -> None:
    before = os.umask(0o002)
    try:
        put(transport, "head", condition=Create())
    finally:
        os.umask(before)
    (lock,) = (root / ".bayou-locks.tmp").iterdir()
    assert stat.S_IMODE(lock.stat().st_mode) & 0o060 == 0o060
    assert stat.S_IMODE(lock.parent.stat().st_mode) & 0o070 == 0o070


def test_directories_that_deletes_empty_vanish_under_writers_without_an_error(
    root: Path, transport: LocalTransport
) -> None:
    failed: list[BaseException] = []
    stop = threading.Event()

    def write(name: str) -> None:
        try:
            for number in range(150):
                key = f"data/a/b/c/{name}{number}"
                put(transport, key, condition=Create() if number % 3 == 0 else None)
                transport.delete([key], timeout=TIMEOUT)
        except StoreError as error:
            failed.append(error)

    def prune() -> None:
        while not stop.is_set():
            for directory in ("data/a/b/c", "data/a/b", "data/a", "data"):
                try:
                    (root / directory).rmdir()
                except OSError:
                    pass

    writers = [threading.Thread(target=write, args=(name,)) for name in "uvw"]
    pruner = threading.Thread(target=prune)
    for thread in (*writers, pruner):
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    pruner.join()
    assert failed == []
    assert listed(transport) == []


def test_a_delete_removes_the_directories_that_it_empties_and_no_others(root: Path, transport: LocalTransport) -> None:
    put(transport, "data/a/b/c")
    put(transport, "data/x")
    transport.delete(["data/a/b/c"], timeout=TIMEOUT)
    assert not (root / "data" / "a").exists()
    transport.delete(["data/x"], timeout=TIMEOUT)
    assert root.is_dir()
    assert list(root.iterdir()) == []


# ---- what is not there ----


def every_read(transport: LocalTransport) -> list[Callable[[], object]]:
    return [
        lambda: transport.get("data/a", timeout=TIMEOUT),
        lambda: transport.head("data/a", timeout=TIMEOUT),
        lambda: listed(transport),
        lambda: listed(transport, "data/"),
    ]


def test_v4_a_directory_that_is_not_mounted_is_not_an_empty_store(tmp_path: Path) -> None:
    transport = LocalTransport(tmp_path / "not-mounted")
    for call in every_read(transport):
        with pytest.raises(NoSuchBucket) as caught:
            call()
        assert "not-mounted" in caught.value.message
        assert caught.value.hint
    with pytest.raises(DeleteFailed) as failed:
        transport.delete(["data/a"], timeout=TIMEOUT)
    assert isinstance(failed.value.failed["data/a"], NoSuchBucket)


def test_v4_writing_makes_the_directory_but_not_the_way_to_it(tmp_path: Path) -> None:
    put(LocalTransport(tmp_path / "new"), "data/a")
    assert (tmp_path / "new" / "data" / "a").is_file()
    for condition in (None, Create()):
        with pytest.raises(NoSuchBucket):
            put(LocalTransport(tmp_path / "not" / "mounted"), "data/a", condition=condition)
    assert not (tmp_path / "not").exists()


def test_a_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    transport = LocalTransport(tmp_path / "file")
    for call in (*every_read(transport), lambda: put(transport, "data/a")):
        with pytest.raises(NoSuchBucket):
            call()
    assert (tmp_path / "file").read_text() == "x"


@pytest.mark.parametrize("instead", ["nothing", "an empty directory"])
def test_v4_a_directory_that_is_unmounted_during_a_listing_does_not_end_it_early(
    root: Path, transport: LocalTransport, instead: str
) -> None:
    for number in range(1_200):
        (root / f"{number:04}").mkdir()
        (root / f"{number:04}" / "x").touch()
    pages = transport.list("", timeout=TIMEOUT)
    assert len(next(iter(pages))) == 1_000
    root.rename(root.with_name("elsewhere"))
    if instead == "an empty directory":
        root.mkdir()
    with pytest.raises((NoSuchBucket, Unavailable)):
        list(pages)


def test_a_name_is_an_object_or_a_directory_and_a_write_says_which_stands_in_its_way(
    root: Path, transport: LocalTransport
) -> None:
    put(transport, "data/a")
    for key in ("data/a/b", "data/a/b/c", "data"):
        for condition in (None, Create()):
            with pytest.raises(Rejected):
                put(transport, key, condition=condition)
        with pytest.raises(NotFound):
            transport.get(key, timeout=TIMEOUT)
        with pytest.raises(NotFound):
            transport.head(key, timeout=TIMEOUT)
        transport.delete([key], timeout=TIMEOUT)
    assert listed(transport) == ["data/a"]
    assert temporaries(root) == []


def test_a_pipe_or_a_device_is_no_object_and_holds_nobody_up(root: Path, transport: LocalTransport) -> None:
    os.mkfifo(root / "pipe")
    for call in (transport.get, transport.head):
        with pytest.raises(NotFound):
            call("pipe", timeout=TIMEOUT)
    assert listed(transport) == []


# ---- what a file system refuses ----


def refuse(monkeypatch: pytest.MonkeyPatch, number: int, *names: str) -> None:
    """Let these calls into the system fail."""

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    for name in names:
        monkeypatch.setattr(os, name, fail)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda transport: transport.get("data/a", timeout=TIMEOUT), ["open"]),
        (lambda transport: transport.head("data/a", timeout=TIMEOUT), ["stat"]),
        (lambda transport: transport.put("data/b", b"", timeout=TIMEOUT), ["open"]),
        (lambda transport: transport.put("new/b", b"", timeout=TIMEOUT), ["mkdir"]),
        (listed, ["scandir"]),
    ],
)
def test_v4_what_may_not_be_touched_is_access_denied_and_not_absent(
    transport: LocalTransport,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    call: Callable[[LocalTransport], object],
    names: list[str],
) -> None:
    put(transport, "data/a")
    with monkeypatch.context() as patch:
        refuse(patch, number, *names)
        with pytest.raises(AccessDenied) as caught:
            call(transport)
    assert caught.value.hint
    assert listed(transport) == ["data/a"]


def test_keys_that_may_not_be_deleted_are_named_and_the_others_are_gone(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        store.put(payload(f"data/{name}"), b"")
    unlink = os.unlink

    def guarded(path: Any, **how: Any) -> None:
        if str(path).endswith("b"):
            raise PermissionError(errno.EACCES, "no")
        unlink(path, **how)

    monkeypatch.setattr(os, "unlink", guarded)
    with pytest.raises(DeleteFailed) as caught:
        store.delete([payload(f"data/{name}") for name in "abc"])
    assert set(caught.value.failed) == {"data/b"}
    assert isinstance(caught.value.failed["data/b"], AccessDenied)
    assert [meta.key for page in store.list() for meta in page] == ["data/b"]


class Full:
    """A file on a disk that is full."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, data: bytes) -> int:
        self._file.write(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "full")

    def __enter__(self) -> Full:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


@pytest.mark.parametrize("how", ["write", "fsync"])
@pytest.mark.parametrize("condition", [None, Create()])
def test_a_full_disk_leaves_nothing_behind(
    root: Path, transport: LocalTransport, monkeypatch: pytest.MonkeyPatch, how: str, condition: Create | None
) -> None:
    put(transport, "data/a", b"old")
    with monkeypatch.context() as patch:
        if how == "fsync":
            refuse(patch, errno.ENOSPC, "fsync")
        else:
            patch.setattr(directory_files, "open", lambda *arguments: Full(open(*arguments)), raising=False)  # noqa: SIM115
        for call in (
            lambda: put(transport, "data/b", b"new", condition=condition),
            lambda: transport.put_chunks("data/a", iter([b"1", b"2"]), part_size=1, parallel=1, timeout=TIMEOUT),
        ):
            with pytest.raises(Rejected) as caught:
                call()
            assert caught.value.hint == "free some space"
    assert listed(transport) == ["data/a"]
    assert content(transport, "data/a") == b"old"
    assert temporaries(root) == []


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (errno.EIO, Unavailable),
        (errno.ESTALE, Unavailable),
        (errno.EROFS, Rejected),
        (errno.EDQUOT, Rejected),
        (errno.ENOSPC, Rejected),
    ],
)
def test_what_may_pass_is_retryable_and_what_stays_is_not(
    transport: LocalTransport, monkeypatch: pytest.MonkeyPatch, number: int, error: type[StoreError]
) -> None:
    with monkeypatch.context() as patch:
        refuse(patch, number, "open", "fsync")
        with pytest.raises(error) as caught:
            put(transport, "data/a")
    assert os.strerror(number) in caught.value.message
    assert caught.value.hint


def test_a_swap_that_took_effect_is_never_told_as_a_plain_failure(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = Store(store._transport, store._scope, policy=RetryPolicy(base_s=0.001))
    first = patient.put(keys.HEAD, b"one", condition=Create())
    failures = iter([OSError(errno.ENOSPC, "full")])
    real = atomic_file.fsync_directory

    def once(directory: int) -> None:
        if error := next(failures, None):
            raise error
        real(directory)

    monkeypatch.setattr(local, "fsync_directory", once)
    second = patient.put(keys.HEAD, b"two", condition=Match(first.etag))
    assert next(failures, None) is None, "it did fail, after the swap"
    found = patient.get(keys.HEAD)
    assert found is not None
    assert (bytes(found.data), found.meta.etag) == (b"two", second.etag)


def test_a_name_that_is_too_long_for_the_file_system_is_refused(transport: LocalTransport) -> None:
    for call in (lambda: put(transport, "data/" + "n" * 300), lambda: transport.get("n" * 300, timeout=TIMEOUT)):
        with pytest.raises(Rejected, match="name"):
            call()


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_file_system_without_hard_links_creates_only_once_too(
    transport: LocalTransport, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    refuse(monkeypatch, number, "link")
    winners = race(16, lambda number: put(transport, "head", f"{number:02}".encode(), condition=Create()))
    assert len(winners) == 1
    assert content(transport, "head") == f"{winners[0]:02}".encode()
    with pytest.raises(AlreadyExists):
        put(transport, "head", condition=Create())


def test_a_file_system_that_cannot_sync_directories_will_do(
    transport: LocalTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def files_only(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a file")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", files_only)
    put(transport, "head", condition=Create())


# ---- durability (V11) ----


def name_of(directory: int, root: Path) -> str:
    status = os.fstat(directory)
    return next(path.name for path in (root, *root.rglob("*")) if os.path.samestat(path.stat(), status))


@pytest.fixture
def synced(root: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of directories that were made durable, and of objects that then appeared, in order."""
    events: list[str] = []
    sync, link = atomic_file.fsync_directory, os.link

    def noted(directory: int) -> None:
        sync(directory)
        events.append(f"sync {name_of(directory, root)}")

    def linked(source: Any, target: Any, **how: Any) -> None:
        link(source, target, **how)
        events.append(f"link {target}")

    monkeypatch.setattr(local, "fsync_directory", noted)
    monkeypatch.setattr(os, "link", linked)
    return events


def test_v11_what_a_head_may_name_is_durable_before_the_head_is(transport: LocalTransport, synced: list[str]) -> None:
    put(transport, "data/one/raw")
    put(transport, "data/two/raw")
    assert synced == []
    put(transport, "head", condition=Create())
    assert set(synced[:2]) == {"sync one", "sync two"}
    assert synced[2:] == ["link head", "sync store"]


def test_v11_a_directory_that_could_not_be_synced_is_synced_before_the_next_head(
    transport: LocalTransport, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(transport, "data/one/raw")
    with monkeypatch.context() as patch:
        fsync = os.fsync

        def broken(descriptor: int) -> None:
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                raise OSError(errno.EIO, "broken")
            fsync(descriptor)

        patch.setattr(os, "fsync", broken)
        with pytest.raises(Unavailable):
            put(transport, "head", condition=Create())
    assert synced == []
    put(transport, "head", condition=Create())
    assert synced == ["sync one", "link head", "sync store"]


def test_v11_a_head_waits_for_what_another_thread_is_making_durable(
    root: Path, transport: LocalTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(transport, "data/one/raw")
    begun, go_on = threading.Event(), threading.Event()
    real = atomic_file.fsync_directory

    def slow(directory: int) -> None:
        if name_of(directory, root) == "one":
            begun.set()
            assert go_on.wait(TIMEOUT)
        real(directory)

    monkeypatch.setattr(local, "fsync_directory", slow)
    lease = threading.Thread(target=put, args=(transport, "lease"), kwargs={"condition": Create()})
    lease.start()
    assert begun.wait(TIMEOUT)
    head = threading.Thread(target=put, args=(transport, "head"), kwargs={"condition": Create()})
    head.start()
    head.join(0.1)
    assert "head" not in listed(transport), "the object that it names might be lost if the power failed now"
    go_on.set()
    lease.join()
    head.join()
    assert "head" in listed(transport)


def test_a_store_on_a_directory_leaves_no_descriptor_open(root: Path) -> None:
    descriptors = Path("/proc/self/fd")
    if not descriptors.is_dir():
        pytest.skip("this system does not show open descriptors")
    store = open_store(root.as_uri())
    store.put(keys.HEAD, b"1", condition=Create())
    gc.collect()  # or what other tests have left would close meanwhile
    before = len(list(descriptors.iterdir()))
    for number in range(50):
        key = payload(f"data/{number}")
        store.put(key, b"x")
        store.get(key)
        with pytest.raises(AlreadyExists):
            store.put(keys.HEAD, f"{number}".encode(), condition=Create())
        with pytest.raises(NotFound):
            store.get(payload("data"))
        assert len([*store.list()]) == 1
    assert len(list(descriptors.iterdir())) <= before
