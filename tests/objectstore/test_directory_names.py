"""A directory as a store: nothing leads out of it, and no version of an object looks like another."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bayou.core import limits, paths
from bayou.core.errors import BadAnswer, DeleteFailed, PreconditionFailed, Rejected
from bayou.objectstore import Create, Match
from bayou.objectstore.backends.directory import LocalTransport
from tests.objectstore.directories import TIMEOUT, content, listed, put, temporaries

# ---- links and names (V9, V21) ----


@pytest.fixture
def outside(tmp_path: Path, root: Path) -> Path:
    """A directory beside the store, and links in the store that lead there."""
    directory = tmp_path / "outside"
    directory.mkdir()
    (directory / "secret").write_text("private")
    (root / "data").mkdir()
    (root / "data" / "inside").write_text("ours")
    (root / "data" / "file").symlink_to(directory / "secret")
    (root / "data" / "dangling").symlink_to(directory / "nothing")
    (root / "data" / "near").symlink_to(root / "data" / "inside")
    (root / "data" / "dir").symlink_to(directory)
    (root / "link").symlink_to(directory)
    return directory


def test_v21_links_are_not_listed(outside: Path, transport: LocalTransport) -> None:
    assert listed(transport) == ["data/inside"]
    assert listed(transport, "data/") == ["data/inside"]


@pytest.mark.parametrize("key", ["data/file", "data/dangling", "data/near", "data/dir/secret", "link/secret"])
def test_v21_nothing_is_read_through_a_link(outside: Path, transport: LocalTransport, key: str) -> None:
    for call in (transport.get, transport.head):
        with pytest.raises(Rejected, match="link"):
            call(key, timeout=TIMEOUT)


@pytest.mark.parametrize("prefix", ["link/", "data/dir/", "data/dir/below/"])
def test_v21_nothing_is_listed_through_a_link(outside: Path, transport: LocalTransport, prefix: str) -> None:
    with pytest.raises(Rejected, match="link"):
        listed(transport, prefix)


@pytest.mark.parametrize("key", ["data/dir/new", "data/dir/secret", "link/new/deep"])
@pytest.mark.parametrize("condition", [None, Create()])
def test_v21_nothing_is_written_or_deleted_through_a_link(
    outside: Path, transport: LocalTransport, key: str, condition: Create | None
) -> None:
    with pytest.raises(Rejected, match="link"):
        put(transport, key, b"ours", condition=condition)
    with pytest.raises(DeleteFailed):
        transport.delete([key], timeout=TIMEOUT)
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert (outside / "secret").read_text() == "private"


def test_v21_writing_and_deleting_where_a_link_stands_touch_the_link_alone(
    outside: Path, root: Path, transport: LocalTransport
) -> None:
    put(transport, "data/file", b"ours")
    transport.delete(["data/dir", "data/dangling"], timeout=TIMEOUT)
    assert listed(transport) == ["data/file", "data/inside"]
    assert content(transport, "data/file") == b"ours"
    assert (outside / "secret").read_text() == "private"


def test_the_directory_itself_may_be_a_link(tmp_path: Path, root: Path) -> None:
    (tmp_path / "by-link").symlink_to(root)
    transport = LocalTransport(tmp_path / "by-link")
    put(transport, "data/a")
    put(transport, "head", condition=Create())
    assert listed(transport) == ["data/a", "head"]
    assert (root / "data" / "a").is_file()


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/",
        "/etc/passwd",
        "..",
        "../x",
        "data/../../x",
        "data/..",
        ".",
        "data/./x",
        "data//x",
        "data/",
        "x\0y",
        "\ud800",
        ".bayou-x.tmp",
        "data/.bayou-x.tmp",
        ".bayou-locks.tmp/00",
    ],
)
def test_v21_a_key_that_names_no_file_below_the_directory_is_refused(
    tmp_path: Path, transport: LocalTransport, key: str
) -> None:
    (tmp_path / "x").write_text("outside")
    for call in (
        lambda: transport.get(key, timeout=TIMEOUT),
        lambda: transport.head(key, timeout=TIMEOUT),
        lambda: put(transport, key),
        lambda: put(transport, key, condition=Create()),
    ):
        with pytest.raises(Rejected):
            call()
    with pytest.raises(DeleteFailed):
        transport.delete([key], timeout=TIMEOUT)
    assert (tmp_path / "x").read_text() == "outside"


def test_temporary_files_are_never_listed_not_even_while_they_grow(root: Path, transport: LocalTransport) -> None:
    put(transport, "data/a")
    (root / "data" / ".bayou-left-by-a-crash.tmp").write_text("half")
    seen: list[list[str]] = []

    def chunks() -> Iterator[bytes]:
        yield b"1"
        assert len(temporaries(root)) == 2
        seen.append(listed(transport))
        yield b"2"

    transport.put_chunks("data/b", chunks(), part_size=1, parallel=1, timeout=TIMEOUT)
    put(transport, "head", condition=Create())
    assert seen == [["data/a"]]
    assert listed(transport) == ["data/a", "data/b", "head"]


def test_names_that_are_no_unicode_are_listed_escaped_in_order_and_can_be_read(
    root: Path, transport: LocalTransport
) -> None:
    names = [b"caf\xe9", "caf\u00e9".encode(), b"\xff", "\ue000".encode(), "\U0001f600".encode(), b"z"]
    (root / "data").mkdir()
    for name in names:
        (root / "data" / os.fsdecode(name)).write_bytes(name)
    ordered = [f"data/{os.fsdecode(name)}" for name in sorted(names)]
    assert listed(transport) == ordered
    assert "data/caf\udce9" in ordered
    for number, key in enumerate(ordered):
        assert content(transport, key) == os.fsencode(key)[5:]
        assert listed(transport, after=key) == ordered[number + 1 :]


def test_a_listing_is_in_bytewise_order_and_goes_on_anywhere(transport: LocalTransport) -> None:
    ordered = sorted(["a-b", "a.b", "a/b", "a/b0", "a/c/d", "a0", "b", "a/b-/x", "a/b./y", "ab/c"])
    for key in ordered:
        put(transport, key)
    assert listed(transport) == ordered
    for after in [*ordered, "", "a", "a/", "a/b/", "zzz", "a/c"]:
        assert listed(transport, after=after) == [key for key in ordered if key > after]


def test_a_directory_deeper_than_pythons_stack_is_listed(root: Path, transport: LocalTransport) -> None:
    path, levels = root, []
    for _ in range(1_100):
        path = path / "d"
        path.mkdir()
        levels.append(path)
    (path / "x").write_text("deep")
    try:
        assert listed(transport) == ["d/" * 1_100 + "x"]
    finally:
        (path / "x").unlink()
        for level in reversed(levels):
            level.rmdir()


def test_17_12_a_directory_deeper_than_any_key_is_listed_by_its_name_and_not_entered(
    root: Path, transport: LocalTransport
) -> None:
    """What another user of the directory piles up costs no more than the length of a key; then it is refused (V25)."""
    depth, directory = 3_000, os.open(root, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("deep", dir_fd=directory)
        inner = os.open("deep", os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = inner
    os.close(directory)
    put(transport, "data/a")
    try:
        found = listed(transport)
        assert found[0] == "data/a"
        (long,) = found[1:]
        assert set(long.split("/")) == {"deep"}
        assert limits.KEY_BYTES <= len(long) < limits.KEY_BYTES + 10
        assert paths.unsafe(long) is not None
        assert listed(transport, after=long) == []
        assert listed(transport, after="data/a") == [long]
    finally:
        subprocess.run(["rm", "-rf", root], check=True)


# ---- fingerprints (V2) ----


@pytest.fixture
def whole_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that keeps only the seconds of a time."""

    def coarse(real: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
        def rounded(*arguments: Any, **how: Any) -> os.stat_result:
            status = real(*arguments, **how)
            seconds = status.st_mtime_ns // 1_000_000_000
            return os.stat_result(
                tuple(status)[:10], {"st_mtime": float(seconds), "st_mtime_ns": seconds * 1_000_000_000}
            )

        return rounded

    for name in ("stat", "lstat", "fstat"):
        monkeypatch.setattr(os, name, coarse(getattr(os, name)))


@pytest.fixture
def clock_runs_back(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter(range(1_700_000_000_000_000_000, 0, -1_000_000_000))
    monkeypatch.setattr(time, "time_ns", lambda: next(moments))


@pytest.mark.parametrize("world", ["whole_seconds", "clock_runs_back"])
@pytest.mark.parametrize("how", ["swapped", "overwritten"])
def test_v2_no_version_of_an_object_looks_like_an_earlier_one(
    transport: LocalTransport, request: pytest.FixtureRequest, world: str, how: str
) -> None:
    request.getfixturevalue(world)
    current = put(transport, "head", b"00", condition=Create())
    seen = [current]
    for number in range(1, 20):
        condition = Match(current) if how == "swapped" else None
        current = put(transport, "head", f"{number:02}".encode(), condition=condition)
        assert current == transport.head("head", timeout=TIMEOUT).etag
        seen.append(current)
    assert len(set(seen)) == 20
    for stale in seen[:-1]:
        with pytest.raises(PreconditionFailed):
            put(transport, "head", b"xx", condition=Match(stale))
    assert content(transport, "head") == b"19"


def test_v2_an_object_made_anew_at_once_is_not_the_one_that_was_deleted(transport: LocalTransport) -> None:
    seen = set()
    for _ in range(50):
        seen.add(put(transport, "head", b"same", condition=Create()))
        transport.delete(["head"], timeout=TIMEOUT)
    assert len(seen) == 50


def test_a_file_system_that_keeps_no_times_is_refused(
    root: Path, transport: LocalTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    etag = put(transport, "head", b"1", condition=Create())
    os.utime(root / "head", ns=(2**62, 2**62))
    etag = transport.head("head", timeout=TIMEOUT).etag or ""
    monkeypatch.setattr(os, "utime", lambda *_, **__: None)
    with pytest.raises(Rejected, match="times"):
        put(transport, "head", b"2", condition=Match(etag))
    assert content(transport, "head") == b"1"


def test_v2_bytes_that_another_program_changes_while_they_are_read_are_not_believed(
    root: Path, transport: LocalTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(transport, "data/log", b"0123456789")
    fstat, calls = os.fstat, iter(range(100))

    def appended(descriptor: int) -> os.stat_result:
        if next(calls) == 2:  # after the bytes
            with (root / "data" / "log").open("ab") as file:
                file.write(b"more")
        return fstat(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", appended)
        with pytest.raises(BadAnswer):
            transport.get("data/log", timeout=TIMEOUT)
    assert content(transport, "data/log") == b"0123456789more"
