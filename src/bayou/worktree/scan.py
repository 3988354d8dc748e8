"""Walk the tree: every payload file with its stat, and a word about everything else (V8, V18)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Literal, NamedTuple

from msgspec import Struct

from bayou.core import paths
from bayou.core.errors import PathRefused
from bayou.worktree.atomic_write import is_made, is_temporary
from bayou.worktree.durability import tree_error, why
from bayou.worktree.hashing import FileStat
from bayou.worktree.safe_root import DIRECTORY, SafeRoot, no_link, what_is

__all__ = ["FileStat", "Found", "Skipped", "places", "scan"]

_MOST_FILES = 1000
"""Files directly in a directory that are looked at one by one; one with more is walked as a whole."""


class Found(NamedTuple):
    """A regular file with an allowed name. A tuple: a walk makes many."""

    path: str
    stat: FileStat


Known = dict[str, tuple[int, int, int, int]]
"""Stats of files by path, each as the tuple that a `FileStat` is."""

Waiting = list[tuple[str, str]]
"""Directories that the walk has still to read: where each is, and what the paths of its files begin with."""

Kind = Literal["foreign", "refused", "unreadable"]


class Skipped(Struct, frozen=True):
    """What is no payload, and why; a directory stands for all that is below it.

    `foreign`: not payload, and nobody's loss. `refused`: somebody's file that has no safe place in a store; a name
    that is not even text is shown with escapes. `unreadable`: payload that could not be seen, so nothing is known of
    it; whoever takes it for deleted is wrong (V5).
    """

    path: str
    reason: str
    kind: Kind


# Hot: such a name is allowed wherever its directory is, and most names are such. Everything else asks `paths`.
_plain = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]*(?:\.(?![Tt][Mm][Pp]\.)[0-9A-Za-z_-]+)*").fullmatch
_PLAIN_LENGTH = min(paths.MAX_PATH_BYTES // 4, paths.MAX_SEGMENT_BYTES)


def scan(
    root: Path, under: str | None = None, temporaries: list[str] | None = None, known: Known | None = None
) -> Iterator[Found | Skipped]:
    """Yield what lies in the tree, or at and below one path of it, in no order and without following links.

    `temporaries` is given the paths of writes in progress, and of what killed ones left; nothing is yielded for them,
    nor for files that have the stat that is `known` of them. What is found is taken out of `known`.
    One bad item never ends the walk. What vanishes meanwhile is not there; a tree that does not exist is empty. Only
    a tree whose root is a link (`PathRefused`) or cannot be read (`TreeError`) raises.
    """
    no_link(root)
    known = known if known is not None else {}
    if under is None:
        waiting: Waiting = []
        yield from _list_roots(root, waiting)
        yield from _walk(waiting, temporaries, known)
        return
    if under not in paths.PAYLOAD_ROOTS:
        paths.check(under)
    try:
        found = SafeRoot(root).status(under)
    except PathRefused as error:
        yield Skipped(under, error.message, "refused")
        return
    except OSError as error:
        yield Skipped(under, why(error), "unreadable")
        return
    if found is None:
        return
    if S_ISDIR(found.st_mode):
        yield from _walk([(os.path.join(root, under), f"{under}/")], temporaries, known)
    elif under in paths.PAYLOAD_ROOTS:
        yield Skipped(under, _not_a_root(found.st_mode), "refused")
    elif S_ISREG(found.st_mode):
        if known.pop(under, None) != (status := FileStat.of(found)):
            yield Found(under, status)
    else:
        yield Skipped(under, what_is(found.st_mode), "refused")


def _list_roots(root: Path, waiting: Waiting) -> Iterator[Skipped]:
    """Add each payload root to the directories that wait, and yield what else lies beside them."""
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
                    yield Skipped(_shown(name), "not a payload root", "foreign")
            elif entry.is_dir(follow_symlinks=False):
                waiting.append((entry.path, f"{name}/"))
            else:
                yield Skipped(name, _not_a_root(entry.stat(follow_symlinks=False).st_mode), "refused")
        except FileNotFoundError:
            continue
        except OSError as error:
            yield Skipped(_shown(name), why(error), "unreadable")


def _walk(waiting: Waiting, temporaries: list[str] | None, known: Known) -> Iterator[Found | Skipped]:
    """Walk directories, and what is below them, until none waits.

    Hot: a sync with nothing to do is mostly this loop, and most of the loop is the kernel's stat.
    """
    known_stat = known.get
    while waiting:
        directory, prefix = waiting.pop()
        try:
            # By descriptor: a directory that became a link since it was listed is not followed.
            descriptor = os.open(directory, DIRECTORY)
        except FileNotFoundError:
            continue
        except OSError as error:
            yield Skipped(prefix.rstrip("/"), why(error), "unreadable")
            continue
        try:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    name = entry.name
                    path = prefix + name
                    before = known_stat(path)
                    try:
                        # A path that is known was found by an earlier walk, which has checked its name.
                        if (
                            before is None
                            and (_plain(name) is None or len(path) > _PLAIN_LENGTH)
                            and paths.refusal(path) is not None
                        ):
                            if not _is_our_temporary(entry):
                                yield _bad_name(path, name)
                            elif temporaries is not None and is_made(name):
                                temporaries.append(path)
                        elif entry.is_dir(follow_symlinks=False):
                            waiting.append((f"{directory}/{name}", f"{path}/"))
                        else:
                            found = entry.stat(follow_symlinks=False)
                            if not S_ISREG(found.st_mode):
                                yield Skipped(path, what_is(found.st_mode), "refused")
                                continue
                            if before is not None:
                                del known[path]
                            status = (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)
                            if before != status:
                                yield Found(path, FileStat(*status))
                    except FileNotFoundError:
                        continue
                    except OSError as error:
                        yield Skipped(path, why(error), "unreadable")
        except OSError as error:
            yield Skipped(prefix.rstrip("/"), why(error), "unreadable")
        finally:
            os.close(descriptor)


def _bad_name(path: str, name: str) -> Skipped:
    """Tell what other systems leave behind from what somebody wants kept."""
    reason = paths.refusal(path) or "not payload"
    foreign = paths.unsafe(path) is None and not name.startswith("~")
    return Skipped(_shown(path), reason, "foreign" if foreign else "refused")


def _is_our_temporary(entry: os.DirEntry[str]) -> bool:
    """Whether this is a write in progress, or what a killed one left: nothing to report."""
    return is_temporary(entry.name) and (is_made(entry.name) or not entry.is_dir(follow_symlinks=False))


def _not_a_root(mode: int) -> str:
    return f"{what_is(mode)} in place of a payload root"


def _shown(path: str) -> str:
    """Make a name printable that may be no text at all."""
    text = os.fsencode(path).decode(errors="backslashreplace")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def places(root: Path, wanted: int) -> list[str | None]:
    """Return places that together are the whole tree (None: the tree itself): about `wanted`, or as many as there are.

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
