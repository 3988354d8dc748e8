"""Files of `.bayou/` that Git wrote, read from Git's index without running Git.

`.bayou/` is ignored, and Git silently overwrites ignored files if a commit has such a path. So a hostile repo can
replace single files of the user's own state. A file whose content is that of its entry in the index is Git's.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bayou.core import limits

_FIXED = struct.Struct(">10I")
_MODE, _SIZE, _MTIME = 6, 9, 2
_EXTENDED = 0x4000
_MAX_HASHED = 64 * limits.MIB


class _Entry(NamedTuple):
    name: bytes
    mode: int
    mtime: int
    size: int
    digest: bytes


def placed_by_git(root: Path, folder: str) -> list[str]:
    """Return the paths below `folder` of a repo whose files match Git's index."""
    located = _git_folder(root)
    if located is None:
        return []
    git, inside = located
    prefix = os.fsencode(f"{inside}{folder}/")
    placed = []
    for index in (git / "index", *git.glob("sharedindex.*")):
        for entry in _entries(index, prefix, _digest_size(git)):
            path = root / os.fsdecode(entry.name[len(os.fsencode(inside)) :])
            if _matches(path, entry):
                placed.append(path.relative_to(root).as_posix())
    return placed


def _git_folder(root: Path) -> tuple[Path, str] | None:
    """Return Git's directory for the work tree that contains `root`, and the path from that work tree to `root`."""
    real = Path(os.path.realpath(root))
    for above in (real, *real.parents):
        git = above / ".git"
        inside = real.relative_to(above).as_posix()
        prefix = "" if inside == "." else f"{inside}/"
        if git.is_dir():
            return git, prefix
        if git.is_file():  # a worktree, or a submodule
            try:
                target = git.read_text(errors="replace").removeprefix("gitdir:").strip()
            except OSError:
                return None
            return above / target, prefix
    return None


def _digest_size(git: Path) -> int:
    for config in (git / "config", git.parent.parent / "config"):
        try:
            if "objectformat = sha256" in config.read_text(errors="replace").lower():
                return 32
        except OSError:
            continue
    return 20


def _entries(index: Path, prefix: bytes, digest_size: int) -> Iterator[_Entry]:
    """Yield the entries below `prefix`; nothing if the file is not an index."""
    try:
        data = index.read_bytes()
    except OSError:
        return
    if data[:4] != b"DIRC" or len(data) < 12:
        return
    version, count = struct.unpack_from(">2I", data, 4)
    if version not in (2, 3, 4) or (version < 4 and prefix not in data):
        return
    at, name = 12, b""
    try:
        for _ in range(count):
            begin = at
            fixed = _FIXED.unpack_from(data, at)
            at += _FIXED.size + digest_size
            digest = data[at - digest_size : at]
            (flags,) = struct.unpack_from(">H", data, at)
            at += 4 if flags & _EXTENDED else 2
            if version == 4:
                drop, at = _varint(data, at)
                kept = name[: len(name) - drop]
            else:
                kept = b""
            end = data.index(b"\0", at)
            name = kept + data[at:end]
            at = end + 1 if version == 4 else begin + ((end - begin) // 8 + 1) * 8
            if name.startswith(prefix):
                yield _Entry(name, fixed[_MODE], fixed[_MTIME], fixed[_SIZE], digest)
    except (struct.error, ValueError, IndexError):
        return


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = data[at] & 0x7F
    while data[at] & 0x80:
        at += 1
        value = ((value + 1) << 7) | (data[at] & 0x7F)
    return value, at + 1


def _matches(path: Path, entry: _Entry) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    if stat.S_ISLNK(found.st_mode) or not stat.S_ISREG(found.st_mode):
        return stat.S_ISLNK(found.st_mode)
    if found.st_size > _MAX_HASHED:
        return (int(found.st_mtime), found.st_size & 0xFFFFFFFF) == (entry.mtime, entry.size)
    import hashlib  # noqa: PLC0415  (only if Git's index names the file)

    try:
        data = path.read_bytes()
    except OSError:
        return False
    hashed = hashlib.sha1 if len(entry.digest) == 20 else hashlib.sha256
    return hashed(b"blob %d\0" % len(data) + data).digest() == entry.digest
