"""17.12: somebody who may write to a shared directory puts links in the place of its directories while others work.

The links lead to a directory outside that has the same names as the store. Nothing there may be written, deleted or
read; what fails meanwhile fails with an error of the store.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bayou.core.errors import BayouError, DeleteFailed, Rejected, StoreError
from bayou.objectstore import Create, Match
from bayou.objectstore.backends.directory import LocalTransport
from tests.objectstore.directories import TIMEOUT, listed, put
from tests.sync.conftest import Team

CHILDREN = Path(__file__).with_name("directory_children.py")
PRIVATE = b"what nobody else may read"
ROUNDS = 60
DEEP = "data/t/m/n"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """What the links lead to: whichever directory of the store they replace, its files have names of the store."""
    directory = tmp_path / "outside"
    for below in ("", "data", "t", "m", "n", "data/t", "data/t/m", "t/m", "t/m/n", "m/n", "empty"):
        (directory / below).mkdir(parents=True, exist_ok=True)
    for below in ("", "data", "t", "data/t", "data/t/m", "t/m/n", "m/n", "n"):
        for name in ("raw", "head", "head.json", "private.txt"):
            (directory / below / name).write_bytes(PRIVATE)
    return directory


def inventory(directory: Path) -> dict[str, tuple[bytes | None, int]]:
    """Return each file below with its content, each directory, and when they were last changed."""
    return {
        str(path.relative_to(directory)): (path.read_bytes() if path.is_file() else None, path.lstat().st_mtime_ns)
        for path in directory.rglob("*")
    }


@pytest.fixture
def swapping(root: Path, outside: Path) -> Iterator[Callable[..., None]]:
    """Begin to swap some directories, or all; at the end of the test, nothing outside has changed."""
    before = inventory(outside)
    children: list[subprocess.Popen[str]] = []

    def begin(*only: str) -> None:
        arguments = [sys.executable, str(CHILDREN), "swap", str(root), str(outside), *only]
        child = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
        children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "swapping\n"

    yield begin
    for child in children:
        assert child.poll() is None, "it swapped to the end"
        child.kill()
        child.communicate()
    assert inventory(outside) == before


def test_17_12_no_request_of_a_store_leaves_it_while_directories_are_swapped_for_links(
    root: Path, outside: Path, swapping: Callable[[], None]
) -> None:
    transport = LocalTransport(root)
    put(transport, f"{DEEP}/raw", b"ours")
    swapping()
    numbers = itertools.count()
    read: list[bytes] = []
    keys: set[str] = set()
    refused = 0

    def get(key: str) -> None:
        found = transport.get(key, timeout=TIMEOUT)
        assert found is not None
        read.append(bytes(found.data))

    def swap(key: str) -> None:
        meta = transport.head(key, timeout=TIMEOUT)
        assert meta.size != len(PRIVATE)
        transport.put(key, b"swapped", condition=Match(meta.etag), timeout=TIMEOUT)

    calls: list[Callable[[], object]] = [
        lambda: put(transport, f"{DEEP}/raw", b"ours"),
        lambda: put(transport, f"{DEEP}/{next(numbers)}", b"new"),
        lambda: put(transport, f"data/{next(numbers)}/a/b", b"new", condition=Create()),
        lambda: put(transport, "head", b"head of ours", condition=Create()),
        lambda: swap(f"{DEEP}/raw"),
        lambda: transport.put_chunks(f"{DEEP}/large", iter([b"x" * 100] * 9), part_size=1, parallel=1, timeout=TIMEOUT),
        lambda: get(f"{DEEP}/raw"),
        lambda: get("data/raw"),
        lambda: keys.update(listed(transport)),
        lambda: keys.update(listed(transport, "data/t/")),
        lambda: keys.update(meta.key for meta in transport.list_directory("data/", timeout=TIMEOUT).objects),
        lambda: transport.delete([f"{DEEP}/raw", f"{DEEP}/head", "data/head", "data/t/m/raw"], timeout=TIMEOUT),
        lambda: transport.delete(["data/empty/x", f"{DEEP}/large", "data/private.txt"], timeout=TIMEOUT),
    ]
    for _ in range(ROUNDS):
        for call in calls:
            try:
                call()
            except StoreError as error:
                refused += isinstance(error, Rejected | DeleteFailed)
    assert refused, "some requests met a link"
    assert PRIVATE not in read
    assert not [key for key in keys if "private" in key]


def test_17_12_real_pushes_write_nothing_outside_while_directories_are_swapped_for_links(
    tmp_path: Path, root: Path, outside: Path, swapping: Callable[..., None]
) -> None:
    team = Team(tmp_path, root.as_uri(), {})
    one, two = team.clone("one"), team.clone("two")
    one.write("data/t/m/n/1/raw", "first")
    one.sync()
    two.sync()
    swapping("data/t")
    for number in range(8):
        one.write_all({f"data/t/m{file}/n/{number}/raw": b"%d of ours" % number for file in range(100)})
        for call in (one.push, two.sync):
            with contextlib.suppress(BayouError):
                call()
    assert {*one.files.values(), *two.files.values()}.isdisjoint({PRIVATE})
    assert not [path for path in (*one.files, *two.files) if "private" in path]


@pytest.mark.parametrize("instead", ["the temporary file", "the lock", "the directory of locks"])
def test_17_12_nothing_is_followed_in_the_place_of_what_a_write_itself_makes(
    root: Path, outside: Path, monkeypatch: pytest.MonkeyPatch, instead: str
) -> None:
    """The temporary file is swapped after it was written: what is linked to the new name must not be what it names."""
    before = inventory(outside)
    transport = LocalTransport(root)
    put(transport, "data/a", condition=Create())
    locks = root / ".bayou-locks.tmp"
    if instead == "the lock":
        for number in range(256):
            (locks / f"{number:02x}").unlink(missing_ok=True)
            (locks / f"{number:02x}").symlink_to(outside / f"lock{number}")
    elif instead == "the directory of locks":
        locks.rename(root / "aside")
        locks.symlink_to(outside)
    else:
        link = os.link

        def swapped(source: str, target: str, **how: int | bool) -> None:
            (temporary,) = (root / "data").glob(".bayou-*.tmp")
            temporary.unlink()
            temporary.symlink_to(outside / "raw")
            link(source, target, **how)  # type: ignore[arg-type]

        monkeypatch.setattr(os, "link", swapped)
    try:
        put(transport, "data/b", condition=Create())
    except Rejected:
        assert instead != "the temporary file"
    with pytest.raises(StoreError):
        transport.get("data/b", timeout=TIMEOUT)
    assert inventory(outside) == before
    assert all(path.lstat().st_nlink == 1 for path in outside.rglob("*") if path.is_file())
