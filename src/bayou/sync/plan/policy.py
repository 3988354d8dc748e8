"""Rules about paths: version directories, the paths that are absent on purpose, and the scope of a sync.

All files below one `<n>` of `data/<type…>/<model>/<name>/<n>/<file…>` are one version. If one path of a version is in
conflict, the whole version is, so that no version is ever mixed from two writers. A tree is without raw content under
the lazy policy, and without what the configuration excludes. A pull can be limited to the paths of some models.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from msgspec import Struct

from bayou.core.structs import SelectiveStruct

if TYPE_CHECKING:
    from pathspec import PathSpec
    from pathspec.pattern import Pattern

    from bayou.index.key_range import KeyRanges
    from bayou.state.base import Why
    from bayou.state.journal import JournalRow

_PART = re.compile(r"part-[0-9]{5}", re.ASCII)
_VERSION_DEPTH = 5
"""`data`, a type, a model, a name, a number, and then at least a file."""


def version_dir(path: str) -> str | None:
    """Return the innermost version directory around a path, or None. Hot: called several times for each moved path."""
    if not path.startswith("data/"):
        return None
    directory = path.rpartition("/")[0]
    if _is_number(directory.rpartition("/")[2]) and directory.count("/") >= _VERSION_DEPTH - 1:
        return directory
    return next(version_dirs_around(path), None)


def version_dirs_around(path: str) -> Iterator[str]:
    """Yield the directories around a path that can be versions, innermost first; the path belongs to the first."""
    if not path.startswith("data/"):
        return
    segments = path.split("/")
    for at in range(len(segments) - 2, _VERSION_DEPTH - 2, -1):
        if _is_number(segments[at]):
            yield "/".join(segments[: at + 1])


def _is_number(segment: str) -> bool:
    return segment.isdigit() and segment.isascii() and not segment.startswith("0")


class Policy(SelectiveStruct, frozen=True):
    """Which entries are absent from this tree on purpose. Base records its `text` with each absence (V3)."""

    uncompared: ClassVar[tuple[str, ...]] = ("_spec",)
    unshown: ClassVar[tuple[str, ...]] = ("_spec",)

    hydrate: Literal["full", "lazy"] = "full"
    exclude: tuple[str, ...] = ()
    _spec: PathSpec[Pattern] | None = None

    @classmethod
    def of(cls, hydrate: Literal["full", "lazy"], exclude: Sequence[str]) -> Policy:
        spec = None
        if exclude:
            from pathspec import PathSpec  # noqa: PLC0415  (15 ms: only where something is excluded)

            spec = PathSpec.from_lines("gitignore", exclude)
        return cls(hydrate, tuple(exclude), spec)

    @property
    def text(self) -> str:
        return json.dumps([self.hydrate, *self.exclude])

    def excluded(self, path: str) -> bool:
        return self._spec is not None and self._spec.match_file(path)

    def absent(self, path: str) -> Why | None:
        """Return why an entry is absent on purpose; None if it must be present."""
        if self.excluded(path):
            return "excluded"
        return "lazy" if self.hydrate == "lazy" and is_raw(path) else None

    def still(self, path: str, why: Why) -> bool:
        """Return whether an entry that was left out for this reason, maybe by another policy, still is by this one."""
        return why == "refused" or self.absent(path) is not None


def is_raw(path: str) -> bool:
    """Return whether a path is raw content of a version, or a part of it, which a lazy tree fetches when it is read."""
    version = version_dir(path)
    if version is None:
        return False
    name = path.removeprefix(f"{version}/")
    return name == "raw" or _PART.fullmatch(name) is not None


_MODEL_ROOTS = ("data", "outputs", "definitions-evaluated")
"""The payload roots in which a model has a directory of its own."""


class ModelRef(Struct, frozen=True):
    """A model: its type, of one or more path segments, its id, and its name for people."""

    type: str
    id: str
    name: str

    def prefixes(self) -> tuple[str, ...]:
        """Return the directories of everything that belongs to the model, each ending in `/` (F110)."""
        return tuple(f"{root}/{self.type}/{self.id}/" for root in _MODEL_ROOTS)


class ModelScope(Struct, frozen=True):
    """Directories of the tree, each ending in `/`. A sync within a scope records nothing about the rest (V3)."""

    prefixes: tuple[str, ...]

    @classmethod
    def of(cls, models: Iterable[ModelRef]) -> ModelScope:
        return cls(tuple(sorted({prefix for model in models for prefix in model.prefixes()})))

    @property
    def spans(self) -> KeyRanges:
        from bayou.index.key_range import KeyRange, KeyRanges  # noqa: PLC0415  (listing data needs no index)

        return KeyRanges(KeyRange.under(prefix) for prefix in self.prefixes)

    def rows(self, rows: Iterable[JournalRow]) -> Iterator[JournalRow]:
        """Yield the journal rows that concern a path of the scope."""
        for row in rows:
            if any(True for _ in self.below(row.path)) if row.kind == "tree" else row.path.startswith(self.prefixes):
                yield row

    def below(self, directory: str) -> Iterator[str]:
        """Yield the parts of a directory (the empty path: of the whole tree) that lie in the scope."""
        if f"{directory}/".startswith(self.prefixes):
            yield directory
        else:
            yield from (
                prefix.rstrip("/") for prefix in self.prefixes if not directory or prefix.startswith(f"{directory}/")
            )
