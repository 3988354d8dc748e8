"""Files that appear whole, with the mode that the caller asks for, and durable."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from bayou.core.atomic_file import atomic_file, fsync_directory, fsync_file, write_file


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was fsynced, in order."""
    made: list[str] = []
    real = os.fsync

    def noted(descriptor: int) -> None:
        made.append("directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    return made


def test_a_write_replaces_the_file_and_leaves_no_temporary(tmp_path: Path) -> None:
    write_file(tmp_path / "a", b"one")
    write_file(tmp_path / "a", b"two")
    assert (tmp_path / "a").read_bytes() == b"two"
    assert names(tmp_path) == ["a"]


def test_content_is_durable_before_the_name_and_the_name_when_the_write_returns(
    tmp_path: Path, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.replace

    def replace(self: Path, target: Path) -> Path:
        synced.append("rename")
        return real(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    write_file(tmp_path / "a", b"one")
    assert synced == ["file", "rename", "directory"]


def test_a_private_file_is_private_from_its_first_byte(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "a", mode=0o600) as file:
        (temporary,) = names(tmp_path)
        assert stat.S_IMODE((tmp_path / temporary).stat().st_mode) == 0o600
        file.write(b"secret")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600


def test_an_ordinary_file_has_the_mode_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_file(tmp_path / "a", b"one")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_a_block_that_fails_leaves_the_old_content_and_no_temporary(tmp_path: Path) -> None:
    write_file(tmp_path / "a", b"old")
    with pytest.raises(TypeError), atomic_file(tmp_path / "a") as file:
        file.writelines([b"half of the new", None])
    assert (tmp_path / "a").read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize("links", [True, False])
def test_without_overwrite_an_existing_file_stays(tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not links:

        def refused(*_: object) -> None:
            raise OSError(errno.EPERM, "this file system has no links")

        monkeypatch.setattr(os, "link", refused)
    write_file(tmp_path / "a", b"first", overwrite=False)
    with pytest.raises(FileExistsError):
        write_file(tmp_path / "a", b"second", overwrite=False)
    assert (tmp_path / "a").read_bytes() == b"first"
    assert names(tmp_path) == ["a"]


def test_what_lies_at_a_named_temporary_is_replaced_and_a_link_there_is_not_followed(
    tmp_path: Path,
) -> None:
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "a.tmp").symlink_to("victim")
    write_file(tmp_path / "a", b"new", temporary=tmp_path / "a.tmp")
    assert (tmp_path / "victim").read_bytes() == b"precious"
    assert (tmp_path / "a").read_bytes() == b"new"
    assert names(tmp_path) == ["a", "victim"]


def test_fsync_of_a_file_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="symbolic links"):
        fsync_file(tmp_path / "link")


def test_a_file_and_a_directory_can_be_named_by_a_descriptor(tmp_path: Path, synced: list[str]) -> None:
    (tmp_path / "a").write_bytes(b"one")
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        fsync_file("a", dir_fd=directory)
        fsync_directory(directory)
    finally:
        os.close(directory)
    assert synced == ["file", "directory"]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_without_fsync_of_directories_is_accepted(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", failing)
    fsync_directory(tmp_path)
    (tmp_path / "a").write_bytes(b"one")
    with pytest.raises(OSError, match=os.strerror(number)):
        fsync_file(tmp_path / "a")


def test_another_failure_of_an_fsync_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_: int) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OSError, match="broken"):
        fsync_directory(tmp_path)
