"""Scan the tree: yield every payload file with its stat, and report everything else (V8, V18)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Literal, NamedTuple, Protocol

from msgspec import Struct

from bayou.core import paths
from bayou.core.errors import PathRefused
from bayou.worktree.atomic_write import is_generated, is_temporary
from bayou.worktree.durability import os_reason, tree_error
from bayou.worktree.hashing import FileStat
from bayou.worktree.safe_root import DIRECTORY, SafeRoot, check_not_symlink, file_kind

__all__ = ["FileStat", "ScannedFile", "SkippedPath", "dividing_paths", "scan", "scan_range", "subtrees"]

_MOST_FILES = 1000
"""Files directly in a directory that are looked at one by one; one with more is walked as a whole."""
_DIRECTORIES_PER_PART = 4
"""Directories for each part of a tree: more than one, since their sizes differ."""

SAMPLED_PATHS = 20_000
"""Paths by which a tree is divided, at most; an even number."""

KnownStats = dict[str, tuple[int, int, int, int]]
"""Stats of files by path, each as the tuple that a `FileStat` is."""

Directories = list[tuple[str, str]]
"""Directories that the scan has still to read: the path of each, and the prefix of the payload paths in it."""

Kind = Literal["foreign", "refused", "unreadable"]


class ScannedFile(NamedTuple):
    """A regular file with an allowed name. A tuple: a scan makes many."""

    path: str
    stat: FileStat


class SkippedPath(Struct, frozen=True):
    """A path that is not scanned as payload, and why; a directory stands for everything below it.

    `foreign`: not payload, a file that another system keeps there. `refused`: a user's file that no store can hold
    safely; a name that is not valid text is shown with escapes. `unreadable`: payload that could not be read, so its
    state is unknown, and it must not be taken for deleted (V5).
    """

    path: str
    reason: str
    kind: Kind


# Hot: a name of this form is allowed wherever its directory is, and most names have it. `paths` checks the others.
_plain = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]*(?:\.(?![Tt][Mm][Pp]\.)[0-9A-Za-z_-]+)*").fullmatch
_PLAIN_LENGTH = min(paths.MAX_PATH_BYTES // 4, paths.MAX_SEGMENT_BYTES)


def scan(
    root: Path, under: str | None = None, temporaries: list[str] | None = None, known: KnownStats | None = None
) -> Iterator[ScannedFile | SkippedPath]:
    """Yield the files of the tree, or those at and below the path `under`, in no order and without following links.

    A file whose stat equals its stat in `known` is not yielded; the scan removes every file that it finds from `known`.
    Temporary files are not yielded either: their paths (of writes in progress and of killed writers) are added to
    `temporaries`. One bad item never ends the scan. A file that vanishes during the scan counts as missing, and a tree
    that does not exist as empty. The scan raises only if the tree's root is a link (`PathRefused`) or cannot be read
    (`TreeError`).
    """
    check_not_symlink(root)
    known = known if known is not None else {}
    if under is None:
        directories: Directories = []
        yield from _list_roots(root, directories)
        yield from _walk(directories, temporaries, known)
        return
    if under not in paths.PAYLOAD_ROOTS:
        paths.check(under)
    try:
        found = SafeRoot(root).lstat(under)
    except PathRefused as error:
        yield SkippedPath(under, error.message, "refused")
        return
    except OSError as error:
        yield SkippedPath(under, os_reason(error), "unreadable")
        return
    if found is None:
        return
    if S_ISDIR(found.st_mode):
        yield from _walk([(os.path.join(root, under), f"{under}/")], temporaries, known)
    elif under in paths.PAYLOAD_ROOTS:
        yield SkippedPath(under, _not_a_root(found.st_mode), "refused")
    elif S_ISREG(found.st_mode):
        if known.pop(under, None) != (status := FileStat.of(found)):
            yield ScannedFile(under, status)
    else:
        yield SkippedPath(under, file_kind(found.st_mode), "refused")


def _list_roots(root: Path, directories: Directories) -> Iterator[SkippedPath]:
    """Add each payload root to `directories`, and yield the other entries of the tree's root."""
    try:
        with os.scandir(root) as found:
            entries = list(found)
    except FileNotFoundError:
        return
    except OSError as error:
        raise tree_error(error, f"cannot read the tree {root}") from error
    for entry in entries:
        name = entry.name
        try:
            if name not in paths.PAYLOAD_ROOTS:
                if not _is_our_temporary(entry):
                    yield SkippedPath(_shown(name), "not a payload root", "foreign")
            elif entry.is_dir(follow_symlinks=False):
                directories.append((entry.path, f"{name}/"))
            else:
                yield SkippedPath(name, _not_a_root(entry.stat(follow_symlinks=False).st_mode), "refused")
        except FileNotFoundError:
            continue
        except OSError as error:
            yield SkippedPath(_shown(name), os_reason(error), "unreadable")


def _walk(
    directories: Directories, temporaries: list[str] | None, known: KnownStats
) -> Iterator[ScannedFile | SkippedPath]:
    """Scan directories and everything below them.

    Hot: a sync with nothing to do is mostly this loop, and most of the loop is the kernel's stat.
    """
    known_stat = known.get
    while directories:
        directory, prefix = directories.pop()
        try:
            # By descriptor, so that a directory that became a link since it was listed is not followed.
            descriptor = os.open(directory, DIRECTORY)
        except FileNotFoundError:
            continue
        except OSError as error:
            yield SkippedPath(prefix.rstrip("/"), os_reason(error), "unreadable")
            continue
        try:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    name = entry.name
                    path = prefix + name
                    before = known_stat(path)
                    try:
                        # An earlier scan found each known path, and has checked its name.
                        if (
                            before is None
                            and (_plain(name) is None or len(path) > _PLAIN_LENGTH)
                            and paths.refusal(path) is not None
                        ):
                            if not _is_our_temporary(entry):
                                yield _bad_name(path, name)
                            elif temporaries is not None and is_generated(name):
                                temporaries.append(path)
                        elif entry.is_dir(follow_symlinks=False):
                            directories.append((f"{directory}/{name}", f"{path}/"))
                        else:
                            found = entry.stat(follow_symlinks=False)
                            if not S_ISREG(found.st_mode):
                                yield SkippedPath(path, file_kind(found.st_mode), "refused")
                                continue
                            if before is not None:
                                del known[path]
                            status = (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)
                            if before != status and before != (stat := FileStat.of(found)):
                                yield ScannedFile(path, stat)
                    except FileNotFoundError:
                        continue
                    except OSError as error:
                        yield SkippedPath(path, os_reason(error), "unreadable")
        except OSError as error:
            yield SkippedPath(prefix.rstrip("/"), os_reason(error), "unreadable")
        finally:
            os.close(descriptor)


class PathRange(Protocol):
    """A range of paths in bytewise order; an `index.key_range.KeyRange` is one."""

    @property
    def start(self) -> str: ...
    @property
    def end(self) -> str | None: ...
    def holds(self, path: str) -> bool: ...


def scan_range(
    root: Path, within: PathRange, skipped: list[SkippedPath], temporaries: list[str]
) -> Iterator[ScannedFile]:
    """Yield the files of a range in the order of their paths, with the names of a few directories in memory.

    What `scan` yields beside files is added to `skipped`. A directory that cannot be read is added by each range that
    has a path below it.
    """
    check_not_symlink(root)
    directories: Directories = []
    skipped += [item for item in _list_roots(root, directories) if within.holds(item.path)]
    for directory, prefix in sorted(set(directories)):  # a listing may have a name twice, see `_OpenDirectory.read`
        if _touches(within, prefix):
            yield from _scan_ordered(directory, prefix, within, skipped, temporaries)


class _OpenDirectory:
    """A directory that a scan in order of path is in: its descriptor, and the names that are still to come."""

    def __init__(self, descriptor: int, prefix: str) -> None:
        self.descriptor = descriptor
        self.prefix = prefix
        self.names: list[str] = []

    def read(self, within: PathRange, skipped: list[SkippedPath], temporaries: list[str]) -> None:
        """Read the names in the range, the last first; that of a directory ends with `/`, and so do paths below it.

        The names are in order even if not all could be read. A listing has a name twice if the file or directory was
        replaced meanwhile.
        """
        try:
            with os.scandir(self.descriptor) as entries:
                for entry in entries:
                    self._add(entry, within, skipped, temporaries)
        finally:
            self.names.sort(reverse=True)

    def _add(
        self, entry: os.DirEntry[str], within: PathRange, skipped: list[SkippedPath], temporaries: list[str]
    ) -> None:
        name = entry.name
        path = self.prefix + name
        try:
            if (_plain(name) is None or len(path) > _PLAIN_LENGTH) and paths.refusal(path) is not None:
                if not within.holds(path):
                    return
                if not _is_our_temporary(entry):
                    skipped.append(_bad_name(path, name))
                elif is_generated(name):
                    temporaries.append(path)
            elif entry.is_dir(follow_symlinks=False):
                if _touches(within, f"{path}/"):
                    self.names.append(f"{name}/")
            elif within.holds(path):
                self.names.append(name)
        except OSError as error:
            skipped.append(SkippedPath(path, os_reason(error), "unreadable"))


def _scan_ordered(
    directory: str, prefix: str, within: PathRange, skipped: list[SkippedPath], temporaries: list[str]
) -> Iterator[ScannedFile]:
    """Scan a directory and everything below it, in the order of paths."""
    above: list[_OpenDirectory] = []

    def enter(name: str, prefix: str, parent: int | None) -> None:
        try:
            # By descriptor, so that a directory that became a link since it was listed is not followed.
            opened = _OpenDirectory(os.open(name, DIRECTORY, dir_fd=parent), prefix)
        except FileNotFoundError:
            return
        except OSError as error:
            skipped.append(SkippedPath(prefix.rstrip("/"), os_reason(error), "unreadable"))
            return
        above.append(opened)
        try:
            opened.read(within, skipped, temporaries)
        except OSError as error:
            skipped.append(SkippedPath(prefix.rstrip("/"), os_reason(error), "unreadable"))

    try:
        enter(directory, prefix, None)
        while above:
            inside = above[-1]
            if not inside.names:
                os.close(above.pop().descriptor)
                continue
            name = inside.names.pop()
            if inside.names and inside.names[-1] == name:
                continue
            path = inside.prefix + name
            if name.endswith("/"):
                enter(name.rstrip("/"), path, inside.descriptor)
                continue
            try:
                found = os.stat(name, dir_fd=inside.descriptor, follow_symlinks=False)
            except FileNotFoundError:
                continue
            except OSError as error:
                skipped.append(SkippedPath(path, os_reason(error), "unreadable"))
                continue
            if S_ISREG(found.st_mode):
                yield ScannedFile(path, FileStat.of(found))
            else:
                skipped.append(SkippedPath(path, file_kind(found.st_mode), "refused"))
    finally:
        for inside in above:
            os.close(inside.descriptor)


def _touches(within: PathRange, prefix: str) -> bool:
    """Return whether a path that begins with `prefix` can lie in a range."""
    return (within.end is None or prefix < within.end) and (prefix >= within.start or within.start.startswith(prefix))


def dividing_paths(root: Path, wanted: int) -> list[tuple[str, int]]:
    """Return some paths of the tree, in order, and for how many files each stands.

    Directories are listed from the top down, until one level has enough of them; deeper files are not counted. Of many
    names only every second, fourth, … is kept, so that a directory of any size takes little memory.
    """
    sample = _Sample()
    enough = wanted * _DIRECTORIES_PER_PART
    front = [name for name in sorted(paths.PAYLOAD_ROOTS) if _is_directory(root / name)]
    while front:
        below: list[str] = []
        for directory in front:
            sample.add(f"{directory}/")
            if len(front) >= enough:
                continue
            with suppress(OSError), os.scandir(root / directory) as entries:
                for entry in entries:
                    path = f"{directory}/{entry.name}"
                    if paths.refusal(path) is not None:
                        continue
                    if not entry.is_dir(follow_symlinks=False):
                        sample.add(path)
                    elif len(below) < enough:
                        below.append(path)
                    else:
                        sample.add(f"{path}/")  # the next level has enough
        front = below
    return [(path, sample.step) for path in sorted(sample.paths)]


class _Sample:
    """Every `step`-th of the paths that were added: at most `SAMPLED_PATHS`."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.step = 1
        self._added = 0

    def add(self, path: str) -> None:
        if self._added % self.step == 0:
            if len(self.paths) == SAMPLED_PATHS:
                self.paths = self.paths[::2]
                self.step *= 2
            if self._added % self.step == 0:
                self.paths.append(path)
        self._added += 1


def _bad_name(path: str, name: str) -> SkippedPath:
    """Return whether a name that is no payload is another system's (`foreign`) or a user's file (`refused`)."""
    reason = paths.refusal(path) or "not payload"
    foreign = paths.unsafe(path) is None and not name.startswith("~")
    return SkippedPath(_shown(path), reason, "foreign" if foreign else "refused")


def _is_our_temporary(entry: os.DirEntry[str]) -> bool:
    """Return whether this is a temporary file of a write in progress or of a killed writer, which is not reported."""
    return is_temporary(entry.name) and (is_generated(entry.name) or not entry.is_dir(follow_symlinks=False))


def _not_a_root(mode: int) -> str:
    return f"{file_kind(mode)} in place of a payload root"


def _shown(path: str) -> str:
    """Return a path that may be no valid text in printable form."""
    text = os.fsencode(path).decode(errors="backslashreplace")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def subtrees(root: Path, wanted: int) -> list[str | None]:
    """Return directories that together are the whole tree (None: its root): about `wanted`, or as many as there are.

    A directory is divided only if everything directly in it is a directory or a file with a good name.
    """
    if not root.is_dir():
        return [None]
    names = sorted(os.listdir(root))
    if any(name not in paths.PAYLOAD_ROOTS or not _is_directory(root / name) for name in names):
        return [None]
    done: list[str | None] = []
    front = names
    while front and len(done) + len(front) < wanted:
        below: list[str] = []
        for place in front:
            inside = _inside(root, place)
            if inside is None:
                done.append(place)
            else:
                done += inside[1]
                below += inside[0]
        front = below
    return done + list(front)


def _inside(root: Path, place: str) -> tuple[list[str], list[str]] | None:
    """Return the directories and the files directly in a directory, or None where only a walk of it tells all."""
    directories: list[str] = []
    plain: list[str] = []
    try:
        with os.scandir(root / place) as found:
            for entry in found:
                path = f"{place}/{entry.name}"
                if paths.refusal(path) is not None or len(plain) == _MOST_FILES:
                    return None
                (directories if entry.is_dir(follow_symlinks=False) else plain).append(path)
    except OSError:
        return None
    return directories, plain


def _is_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
