"""A walk by two processes finds what one finds, whatever becomes of the child."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bayou.tree import Found, Skipped, scan
from bayou.tree import pair as pair_module
from bayou.tree.pair import scan_by_two
from bayou.tree.scan import Known, walk

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a child for it")

Looked = tuple[set[Found | Skipped], list[str], Known]


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few files there are, and processors."""
    monkeypatch.setattr(pair_module, "_MANY", 0)
    monkeypatch.setattr(pair_module, "_can_help", lambda: True)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = set(os.listdir("/proc/self/fd")), signal.pthread_sigmask(signal.SIG_BLOCK, []), children()
    yield
    assert (set(os.listdir("/proc/self/fd")), signal.pthread_sigmask(signal.SIG_BLOCK, []), children()) == before


def children() -> set[str]:
    """The children of this process, dead ones too; other tests may have left some that go on (`index.parser`)."""
    return {
        pid
        for thread in os.listdir("/proc/self/task")
        for pid in Path(f"/proc/self/task/{thread}/children").read_text().split()
    }


@pytest.fixture
def messy(root: Path) -> Path:
    """Files of many directories, and all that a walk has a word about."""
    for number in range(300):
        file = root / f"data/t/m{number % 7}/n{number}/1/raw"
        file.parent.mkdir(parents=True)
        file.write_bytes(b"%d" % number)
    for name in (
        "files/a b",
        "logs/x/.bayou-01ARZ3NDEKTSV4RRFFQ69G5FAV.tmp",
        "stray",
        "data/t/m3/_catalog.db",
        "outputs/ü",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")
    (root / "data/t/m5/link").symlink_to(root / "files")
    (root / "data/t/m6/bad\\name").write_bytes(b"x")
    os.mkfifo(root / "data/t/m4/fifo")
    (root / os.fsdecode(b"data/t/m1/caf\xe9")).write_bytes(b"x")
    return root


def known_of(root: Path) -> Known:
    """Know every file but a few, wrongly of some, and of some that are not there."""
    known = {one.path: tuple(one.stat) for one in scan(root) if isinstance(one, Found)}
    for number, path in enumerate(sorted(known)):
        if number % 11 == 0:
            del known[path]
        elif number % 13 == 0:
            known[path] = (1, 2, 3, 4)
        elif number % 17 == 0:
            known[f"{path}-gone"] = known[path]
    return known  # type: ignore[return-value]


def looked(items: Iterator[Found | Skipped], temporaries: list[str], known: Known) -> Looked:
    found = list(items)
    assert len(found) == len(set(found))
    return set(found), sorted(temporaries), known


def by_one(root: Path, known: Known) -> Looked:
    known, made = dict(known), list[str]()
    return looked(scan(root, None, made, known), made, known)


def by_two(root: Path, known: Known) -> Looked:
    known, made = dict(known), list[str]()
    return looked(scan_by_two(root, made, known), made, known)


def in_the_child(monkeypatch: pytest.MonkeyPatch, what: Callable[[], object]) -> None:
    """Have something happen when the child begins to walk."""
    parent = os.getpid()

    def walking(*args: Any) -> Iterator[Found | Skipped]:
        if os.getpid() != parent:
            what()
        return walk(*args)

    monkeypatch.setattr(pair_module, "walk", walking)


def test_two_find_what_one_finds(messy: Path) -> None:
    known = known_of(messy)
    expected = by_one(messy, known)
    assert by_two(messy, known) == expected
    items, _, left = expected
    assert {one.kind for one in items if isinstance(one, Skipped)} == {"foreign", "refused"}
    assert left, "what is gone"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(
    names=st.sets(st.lists(st.sampled_from("abc"), min_size=1, max_size=5).map("/".join), max_size=60),
    enough=st.integers(1, 20),
)
def test_whatever_the_tree_is_like_and_however_it_is_divided(
    tmp_path_factory: pytest.TempPathFactory, names: set[str], enough: int
) -> None:
    root = tmp_path_factory.mktemp("tree")
    for name in names:
        (root / "data" / name).mkdir(parents=True, exist_ok=True)
        (root / "data" / name / "file").write_bytes(name.encode())
    known = known_of(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair_module, "_ENOUGH", enough)
        assert by_two(root, known) == by_one(root, known)


def test_the_child_does_its_half(messy: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = tmp_path / "told"
    in_the_child(monkeypatch, lambda: told.write_text(str(len(os.listdir("/proc/self/fd")))))
    opened = os.open
    here: list[object] = []
    monkeypatch.setattr(os, "open", lambda path, *rest: (here.append(path), opened(path, *rest))[1])
    by_two(messy, known_of(messy))
    directories = sum(one.is_dir() and not one.is_symlink() for one in messy.rglob("*"))
    # The whole tree was walked once by one process, for what is known, and about half of it again.
    assert 1.3 * directories < len(here) < 1.7 * directories
    # The pipe, and the directory that tells: neither a lock nor a database of ours, nor what somebody reads of us.
    assert int(told.read_text()) == 2


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_child_that_dies_is_replaced(messy: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    in_the_child(monkeypatch, lambda: os.kill(os.getpid(), number))
    known = known_of(messy)
    assert by_two(messy, known) == by_one(messy, known)


def test_a_child_that_fails_is_replaced_and_says_nothing(
    messy: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    in_the_child(monkeypatch, lambda: 1 / 0)
    known = known_of(messy)
    assert by_two(messy, known) == by_one(messy, known)
    assert capfd.readouterr() == ("", "")


def test_v12_a_child_that_hangs_is_not_waited_for(messy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_module, "_AT_LEAST_S", 0.2)
    monkeypatch.setattr(pair_module, "_PATIENCE", 0)
    in_the_child(monkeypatch, lambda: time.sleep(600))
    known = known_of(messy)
    assert by_two(messy, known) == by_one(messy, known)


@pytest.mark.parametrize("told", [0, 5, 100])
def test_half_an_answer_is_none(messy: Path, monkeypatch: pytest.MonkeyPatch, told: int) -> None:
    write = os.write

    def cut(descriptor: int, data: memoryview) -> int:
        write(descriptor, data[:told])
        os._exit(0)

    in_the_child(monkeypatch, lambda: monkeypatch.setattr(os, "write", cut))
    known = known_of(messy)
    assert by_two(messy, known) == by_one(messy, known)


def test_where_no_process_can_be_made_one_does_it_all(messy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(os, "fork", refuse)
    known = known_of(messy)
    assert by_two(messy, known) == by_one(messy, known)


def test_whoever_wants_no_more_leaves_no_child(messy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_the_child(monkeypatch, lambda: time.sleep(600))
    items = scan_by_two(messy, [], {})
    assert any(isinstance(item, Found) and item.path.startswith("data/t/m") for item in items)
    items.close()  # type: ignore[attr-defined]


def test_signals_are_for_this_process(messy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child has our handlers, and the descriptor that wakes up who waits for them: it uses neither."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    os.set_blocking(reading, False)
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    woken = signal.set_wakeup_fd(writing)
    try:
        in_the_child(monkeypatch, lambda: os.kill(os.getpid(), signal.SIGINT))
        known = known_of(messy)
        assert by_two(messy, known) == by_one(messy, known)
        with pytest.raises(BlockingIOError):
            os.read(reading, 1)
    finally:
        signal.set_wakeup_fd(woken)
        signal.signal(signal.SIGINT, before)
        os.close(reading)
        os.close(writing)
    assert came == []


def test_a_signal_right_after_the_fork_leaves_nothing_but_a_child_that_ends(
    messy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread receives it, and Python raises here before anybody knows the child's number."""
    fork, made = os.fork, []

    def forked() -> int:
        if pid := fork():
            made.append(pid)
            raise KeyboardInterrupt
        return 0

    monkeypatch.setattr(os, "fork", forked)
    with pytest.raises(KeyboardInterrupt):
        list(scan_by_two(messy, [], {}))
    _, status = os.waitpid(made[0], 0)
    assert os.waitstatus_to_exitcode(status) == 1, "nobody takes its answer"


def test_few_files_are_walked_by_one(messy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_module, "_MANY", 10_000)
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("nobody is needed"))
    known = known_of(messy)
    assert by_two(messy, known) == by_one(messy, known)


def test_a_tree_that_does_not_exist_is_empty(root: Path) -> None:
    assert by_two(root, {"data/a": (1, 2, 3, 4)}) == (set(), [], {"data/a": (1, 2, 3, 4)})
