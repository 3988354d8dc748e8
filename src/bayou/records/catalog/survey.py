"""What changed in a datastore that is a directory: told by stat alone, and no file is opened.

A directory whose mtime is the one that is remembered has the names that it had; in one that has changed, every record
is looked at. Claimed versions that have no metadata yet are directories like all others.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path
from stat import S_ISDIR

from bayou import paths
from bayou.quick import dataclass
from bayou.records.catalog.derive import ROOTS, is_record
from bayou.records.catalog.files import stamp
from bayou.records.layout import METADATA, version_number
from bayou.tree.failure import why
from bayou.tree.spot import DIRECTORY

_STEP_NS = 2_000_000_000
"""A directory that changed less than this ago may change again without a trace in its mtime."""

_VERSION_DEPTH = 5
_plain = re.compile(r"[0-9A-Za-z@][0-9A-Za-z_.@-]*").fullmatch


@dataclass(slots=True)
class Survey:
    """What a look brought: the records, with their stamps, in directories that were listed; known ones that changed.

    `folders` are to be remembered; `hidden` are directories that could not be seen, and why: nothing below them is
    known to be gone (V20).
    """

    found: dict[str, str] = field(default_factory=dict)
    listed: set[str] = field(default_factory=set)
    changed: list[str] = field(default_factory=list)
    folders: dict[str, int | None] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    hidden: dict[str, str] = field(default_factory=dict)


def survey(root: Path, remembered: Mapping[str, int | None], known: Iterable[tuple[str, str | None]]) -> Survey:
    """Look at a directory datastore. `remembered` has its directories with their mtimes, `known` records and stamps."""
    base = f"{root}/"
    look = _Look(base, remembered)
    look.walk([*ROOTS, *remembered])
    hidden = tuple(f"{path}/" for path in look.survey.hidden)
    for path, mark in known:
        if hidden and path.startswith(hidden):
            continue
        try:
            if mark is None or stamp(os.stat(base + path, follow_symlinks=False)) != mark:
                look.survey.changed.append(path)
        except OSError:
            look.survey.changed.append(path)
    return look.survey


def survey_up_to(root: Path, limit: int) -> Survey | None:
    """Look at a directory datastore as at something new; None as soon as it has more records than `limit`."""
    look = _Look(f"{root}/", {})
    look.walk(list(ROOTS), limit)
    return look.survey if len(look.survey.found) <= limit else None


def divide(root: Path, wanted: int) -> tuple[Survey, list[str]]:
    """Look at the uppermost directories, until there are about `wanted` below them to look into."""
    look = _Look(f"{root}/", {})
    front = list(ROOTS)
    while front and len(front) < wanted:
        front = [inner for path in front for inner in look.folder(path)]
    return look.survey, front


def survey_below(root: Path, places: Iterable[str]) -> Survey:
    """Look at some directories and all that is below them, as at something new."""
    look = _Look(f"{root}/", {})
    look.walk(list(places))
    return look.survey


class _Look:
    def __init__(self, base: str, remembered: Mapping[str, int | None]) -> None:
        self._base = base
        self._remembered = remembered
        self.survey = Survey()

    def walk(self, waiting: list[str], limit: int | None = None) -> None:
        """Look at directories and at all that is below them; at no more once there are more records than `limit`."""
        while waiting and (limit is None or len(self.survey.found) <= limit):
            waiting += self.folder(waiting.pop())

    def folder(self, path: str) -> list[str]:
        """Look at one directory; return those in it that nobody remembers."""
        survey = self.survey
        if path in survey.folders:
            return []
        try:
            status = os.lstat(self._base + path)
            if not S_ISDIR(status.st_mode):
                raise FileNotFoundError(path)
            mtime = status.st_mtime_ns
            if path in self._remembered and self._remembered[path] == mtime:
                survey.folders[path] = mtime
                return []
            survey.folders[path] = mtime if mtime < time.time_ns() - _STEP_NS else None
            return self._names(path)
        except (FileNotFoundError, NotADirectoryError):
            survey.gone.add(path)
        except OSError as error:
            survey.hidden[path] = why(error)
        survey.folders.pop(path, None)
        return []

    def _names(self, path: str) -> list[str]:
        new: list[str] = []
        self.survey.listed.add(path)
        # By descriptor: a directory that became a link since it was looked at is not followed.
        descriptor = os.open(self._base + path, DIRECTORY)
        try:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    inner = f"{path}/{entry.name}"
                    if _plain(entry.name) is None and paths.refusal(f"{inner}/x") is not None:
                        continue
                    if not entry.is_dir(follow_symlinks=False):
                        if is_record(inner):
                            self.survey.found[inner] = stamp(entry.stat(follow_symlinks=False))
                    elif not self._version(inner, entry.name) and inner not in self._remembered:
                        new.append(inner)
        finally:
            os.close(descriptor)
        return new

    def _version(self, path: str, name: str) -> bool:
        """Take a directory for a version if it is called like one, and has metadata."""
        if version_number(name) is None or path.count("/") < _VERSION_DEPTH - 1 or not path.startswith("data/"):
            return False
        metadata = f"{path}/{METADATA}"
        try:
            self.survey.found[metadata] = stamp(os.lstat(self._base + metadata))
        except FileNotFoundError:
            return False
        return True
