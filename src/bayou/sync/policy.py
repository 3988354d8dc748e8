"""What is absent here on purpose: raw content under the lazy policy, and what the configuration excludes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from bayou.core.structs import SelectiveStruct
from bayou.sync.units import unit_of

if TYPE_CHECKING:
    from pathspec import PathSpec
    from pathspec.pattern import Pattern

    from bayou.state.base import Why


class Policy(SelectiveStruct, frozen=True):
    """Which entries this tree does without. `text` identifies it: absence was decided under one policy (V3)."""

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
        """Say why an entry need not be here, or None if it must."""
        if self.excluded(path):
            return "excluded"
        return "lazy" if self.hydrate == "lazy" and is_raw(path) else None

    def still(self, path: str, why: Why) -> bool:
        """Whether an entry that was left out for this reason, maybe under another policy, stays away under this one."""
        return why == "refused" or self.absent(path) is not None


def is_raw(path: str) -> bool:
    """Whether a path is the content of a version, which a lazy tree fetches when it is read."""
    unit = unit_of(path)
    return unit is not None and path == f"{unit}/raw"
