"""What a sync may be narrowed to: the paths that belong to some models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from bayou.index.key_range import KeyRanges
    from bayou.state.journal import JournalRow

_OWNED = ("data", "outputs", "definitions-evaluated")
"""The payload roots in which a model has a directory of its own."""


class ModelRef(Struct, frozen=True):
    """A model, as its files name it: `type` may have several segments; `name` is for people."""

    type: str
    id: str
    name: str

    def prefixes(self) -> tuple[str, ...]:
        """Return the directories of everything that belongs to the model, each ending in `/` (F110)."""
        return tuple(f"{root}/{self.type}/{self.id}/" for root in _OWNED)


class Scope(Struct, frozen=True):
    """Directories of the tree, each ending in `/`; a sync that is narrowed to them says nothing about the rest (V3)."""

    prefixes: tuple[str, ...]

    @classmethod
    def of(cls, models: Iterable[ModelRef]) -> Scope:
        return cls(tuple(sorted({prefix for model in models for prefix in model.prefixes()})))

    @property
    def spans(self) -> KeyRanges:
        from bayou.index.key_range import KeyRange, KeyRanges  # noqa: PLC0415  (who lists data names models, and asks no index)

        return KeyRanges(KeyRange.under(prefix) for prefix in self.prefixes)

    def rows(self, rows: Iterable[JournalRow]) -> Iterator[JournalRow]:
        """Yield the journal's rows that can tell of a path in here."""
        for row in rows:
            if any(True for _ in self.below(row.path)) if row.kind == "tree" else row.path.startswith(self.prefixes):
                yield row

    def below(self, directory: str) -> Iterator[str]:
        """Yield the parts of a directory (the empty path: of the whole tree) that lie in here."""
        if f"{directory}/".startswith(self.prefixes):
            yield directory
        else:
            yield from (
                prefix.rstrip("/") for prefix in self.prefixes if not directory or prefix.startswith(f"{directory}/")
            )
