"""Writing: journaled first, whole or not at all, durable before it has its name (V7, V14)."""

from __future__ import annotations

import errno
import io
import os
import resource
import stat
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

import pytest

from bayou.core.errors import BayouError, PathRefused, TreeError
from bayou.worktree.hashing import FileStat
from bayou.worktree.tree import Worktree
from tests.worktree.commoner import Commoner
from tests.worktree.journals import RecordingJournal

Files = Callable[[], dict[str, bytes]]
PATH = "data/t/m/n/1/raw"


def is_directory(descriptor: int) -> bool:
    return stat.S_ISDIR(os.fstat(descriptor).st_mode)


def is_file(descriptor: int) -> bool:
    return not is_directory(descriptor)


def chunks() -> Iterator[bytes]:
    yield b"a" * 3
    yield b""
    yield b"b" * (1 << 20)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", b""),
        (b"some bytes", b"some bytes"),
        (bytearray(b"some bytes"), b"some bytes"),
        (memoryview(b"some bytes"), b"some bytes"),
        (io.BytesIO(b"line\n" * 300_000), b"line\n" * 300_000),
        (chunks(), b"aaa" + b"b" * (1 << 20)),
    ],
    ids=["nothing", "bytes", "bytearray", "memoryview", "a file", "chunks"],
)
def test_what_was_written_can_be_read(tree: Worktree, files: Files, content: bytes, expected: bytes) -> None:
    tree.write(PATH, content)
    assert files() == {PATH: expected}
    with tree.open(PATH) as file:
        assert file.read() == expected


def test_a_write_replaces_what_was_there(tree: Worktree, files: Files) -> None:
    tree.write(PATH, b"a long first version")
    tree.write(PATH, b"second")
    assert files() == {PATH: b"second"}


def test_rows_are_open_from_before_the_first_byte_until_after_the_last_sync(tree: Worktree, events: list[str]) -> None:
    tree.write(PATH, b"first")
    tree.write(PATH, b"second")
    second = events[events.index("close") + 1 :]
    assert second == ["open write", "sync file", "rename", "sync directory", "close"]


def test_new_directories_are_made_durable_too(tree: Worktree, events: list[str]) -> None:
    tree.write(PATH, b"x")
    # The directory above the tree, then the tree itself and data, t, m, n, 1.
    assert events.count("sync directory") == 1 + 6
    assert [event for event, _ in groupby(events) if event != "sync directory"] == [
        "open write",
        "sync file",
        "rename",
        "close",
    ]
    assert events[-2:] == ["sync directory", "close"]


def test_several_files_share_one_row_and_are_all_durable_before_the_first_has_its_name(
    tree: Worktree, files: Files, events: list[str], journal: RecordingJournal
) -> None:
    items = [(f"data/t/m/n/1/{number}", b"%d" % number) for number in range(150)]
    tree.write_many([("data/t/m/n/1/raw", b"")])
    del events[:]
    tree.write_many(items)
    assert files() == {"data/t/m/n/1/raw": b"", **dict(items)}
    assert [(event, len(list(group))) for event, group in groupby(events)] == [
        ("open write", 1),
        ("sync file", 150),
        ("rename", 150),
        ("sync directory", 1),
        ("close", 1),
    ]
    assert journal.rows[-1] == ("write", tuple(path for path, _ in items))


def test_writing_nothing_journals_nothing(tree: Worktree, journal: RecordingJournal) -> None:
    tree.write_many([])
    tree.delete_many([])
    assert journal.rows == []


def test_a_file_being_written_has_its_name_only_at_the_end(
    tree: Worktree, files: Files, journal: RecordingJournal
) -> None:
    with tree.writing(PATH) as file:
        file.write(b"half")
        file.flush()
        assert PATH not in files()
        assert journal.open_rows == {0}
        file.write(b" and half")
    assert files() == {PATH: b"half and half"}
    assert journal.open_rows == set()


def test_a_file_being_written_may_be_sought_in_and_closed_by_its_writer(tree: Worktree, files: Files) -> None:
    with tree.writing(PATH) as file:
        file.write(b"....body")
        file.seek(0)
        file.write(b"head")
        file.close()
    assert files() == {PATH: b"headbody"}


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit(143), OSError(errno.EPIPE, "x")])
def test_a_block_that_raises_leaves_nothing_behind_and_its_error_unchanged(
    tree: Worktree, root: Path, files: Files, journal: RecordingJournal, error: BaseException
) -> None:
    tree.write("data/old", b"old")

    def write(path: str) -> None:
        with tree.writing(path) as file:
            file.write(b"x" * 1_000_000)
            raise error

    for path in ("data/old", PATH):
        with pytest.raises(type(error)) as caught:
            write(path)
        assert caught.value is error
    assert files() == {"data/old": b"old"}
    assert sorted(os.listdir(root / "data")) == ["old"]
    assert journal.open_rows == set()


def test_a_journal_that_refuses_keeps_everything_as_it_was(
    tree: Worktree, root: Path, journal: RecordingJournal
) -> None:
    # F041
    tree.write("data/a/b", b"old")
    before = {path: os.stat(path) for path in [root, *root.rglob("*")]}
    journal.refuses = BayouError("no space for the journal", hint="free some space")
    for change in (
        lambda: tree.write("data/a/b", b"new"),
        lambda: tree.write("data/x/y", b"new"),
        lambda: tree.write_many([("data/a/b", b"new"), ("data/c", b"new")]),
        lambda: tree.append("data/a/b", b"new"),
        lambda: tree.delete("data/a/b"),
    ):
        with pytest.raises(BayouError) as caught:
            change()
        assert caught.value is journal.refuses
    after = {path: os.stat(path) for path in [root, *root.rglob("*")]}
    assert {path: FileStat.of(status) for path, status in after.items()} == {
        path: FileStat.of(status) for path, status in before.items()
    }


def at_once(tree: Worktree) -> None:
    tree.write(PATH, b"new" * 500_000)


def several(tree: Worktree) -> None:
    tree.write_many([(PATH, b"new"), ("data/t/m/n/1/metadata.yaml", b"new")])


def in_a_block(tree: Worktree) -> None:
    with tree.writing(PATH) as file:
        for _ in range(1000):
            file.write(b"new" * 1000)


@pytest.mark.parametrize(
    ("call", "options"),
    [
        ("write", {}),
        ("fsync", {"only": is_file}),
        ("replace", {}),
        ("mkdir", {"after": 1}),
    ],
)
@pytest.mark.parametrize("write", [at_once, several, in_a_block])
def test_a_full_disk_leaves_no_trace_and_says_what_to_do(
    tree: Worktree,
    root: Path,
    files: Files,
    journal: RecordingJournal,
    broken: Callable[..., None],
    call: str,
    options: dict[str, object],
    write: Callable[[Worktree], None],
) -> None:
    tree.write("data/old", b"old")
    broken(call, **options)
    with pytest.raises(TreeError) as caught:
        write(tree)
    assert caught.value.code == "tree_error"
    assert caught.value.message == f"cannot write {PATH}: No space left on device"
    assert caught.value.hint == "free some space, and try again"
    assert files() == {"data/old": b"old"}
    assert os.listdir(root / "data") == ["old"]
    assert journal.open_rows == set()


def test_of_several_files_none_is_changed_when_the_disk_fills_up_on_the_last(
    tree: Worktree, files: Files, broken: Callable[..., None]
) -> None:
    tree.write("data/a", b"old")
    broken("write", after=2)
    with pytest.raises(TreeError):
        tree.write_many([("data/a", b"new"), ("data/b", b"new"), ("data/c", b"new")])
    assert files() == {"data/a": b"old"}


def test_a_directory_that_cannot_be_synced_is_an_error_and_the_row_stays_for_the_next_push(
    tree: Worktree, files: Files, journal: RecordingJournal, broken: Callable[..., None]
) -> None:
    tree.write(PATH, b"old")
    broken("fsync", errno.EIO, only=is_directory)
    with pytest.raises(TreeError, match="Input/output error"):
        tree.write(PATH, b"new")
    assert files() == {PATH: b"new"}
    assert journal.rows[-1] == ("write", (PATH,))
    assert journal.open_rows == set()


def test_a_file_system_that_cannot_sync_directories_is_good_enough(tree: Worktree, broken: Callable[..., None]) -> None:
    broken("fsync", errno.EINVAL, only=is_directory)
    tree.write(PATH, b"x")
    assert tree.exists(PATH)


def test_a_limit_of_the_system_is_met_like_a_full_disk(tree: Worktree, files: Files, journal: RecordingJournal) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(TreeError, match="File too large"):
            tree.write(PATH, b"x" * 1_000_000)
        tree.write("data/small", b"x")
        with pytest.raises(TreeError, match="File too large"):
            tree.append("data/small", b"y" * 1_000_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert files() == {"data/small": b"x"}
    assert journal.open_rows == set()


def test_the_first_error_comes_out_when_the_row_cannot_be_closed_either(
    tree: Worktree, journal: RecordingJournal, broken: Callable[..., None]
) -> None:
    broken("write")
    journal.cannot_close = BayouError("the state is gone")
    with pytest.raises(TreeError, match="No space left"):
        tree.write(PATH, b"x")


def test_a_write_whose_row_cannot_be_closed_says_so(tree: Worktree, journal: RecordingJournal) -> None:
    journal.cannot_close = BayouError("the state is gone")
    with pytest.raises(BayouError, match="the state is gone"):
        tree.write(PATH, b"x")
    assert tree.exists(PATH)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("data/m/.lock", "reserved"),
        ("data/m/_index", "reserved"),
        ("data/m/~x", "~"),
        ("data/../../x", "a segment .."),
        ("/data/x", "not below a payload root"),
        ("secrets/k", "not below a payload root"),
        ("data", "not below a payload root"),
    ],
)
def test_names_that_are_not_payload_are_refused_before_anything_happens(
    tree: Worktree, root: Path, journal: RecordingJournal, path: str, reason: str
) -> None:
    # F106
    for change in (
        lambda: tree.write(path, b"x"),
        lambda: tree.write_many([("data/good", b"x"), (path, b"x")]),
        lambda: tree.append(path, b"x"),
        lambda: tree.delete(path),
        lambda: tree.delete_many(["data/good", path]),
        lambda: tree.open(path),
        lambda: tree.stat(path),
        lambda: tree.local_path(path),
    ):
        with pytest.raises(PathRefused, match=reason):
            change()
    assert journal.rows == []
    assert not root.exists()


def test_names_that_only_contain_a_reserved_part_are_written_like_any_other(tree: Worktree, files: Files) -> None:
    # F106, F104
    names = ["data/a~b", "data/x.lock", "data/.gitkeep", "data/.hidden/x", "data/index", "data/x.tmp"]
    for name in names:
        tree.write(name, b"x")
    assert sorted(files()) == sorted(names)


def test_a_directory_in_the_way_is_refused_before_it_is_journaled(tree: Worktree, journal: RecordingJournal) -> None:
    tree.write("data/a/b", b"x")
    rows = len(journal.rows)
    for change in (
        lambda: tree.write("data/a", b"x"),
        lambda: tree.append("data/a", b"x"),
        lambda: tree.delete("data/a"),
    ):
        with pytest.raises(PathRefused, match="a directory is in the way"):
            change()
    with pytest.raises(PathRefused, match="a file stands where a directory is needed"):
        tree.write("data/a/b/c", b"x")
    assert len(journal.rows) == rows


def test_a_tree_whose_parent_is_not_there_is_not_made(tmp_path: Path, journal: RecordingJournal) -> None:
    tree = Worktree(tmp_path / "not-mounted" / "project", journal)
    with pytest.raises(TreeError, match="there is no directory") as caught:
        tree.write("data/a", b"x")
    assert caught.value.hint is not None
    assert os.listdir(tmp_path) == []


def test_a_tree_that_is_a_file_is_an_error(tmp_path: Path, journal: RecordingJournal) -> None:
    (tmp_path / "tree").write_text("")
    with pytest.raises(TreeError, match="Not a directory"):
        Worktree(tmp_path / "tree", journal).write("data/a", b"x")


def test_an_unwritable_tree_is_an_error_with_a_hint(commoner: Commoner, journal: RecordingJournal) -> None:
    place = commoner.home
    tree = Worktree(place / "tree", journal)
    with commoner.acting():
        tree.write("data/a/b", b"old")
        (place / "tree/data/a").chmod(0o555)
        for change in (
            lambda: tree.write("data/a/b", b"new"),
            lambda: tree.write("data/a/c", b"new"),
            lambda: tree.delete("data/a/b"),
        ):
            with pytest.raises(TreeError, match="Permission denied") as caught:
                change()
            assert caught.value.hint == "give this user access to the directory of the datastore"
        assert os.listdir(place / "tree/data/a") == ["b"]
        assert (place / "tree/data/a/b").read_bytes() == b"old"
    assert journal.open_rows == set()
