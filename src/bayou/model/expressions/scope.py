"""What an expression can ask for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from msgspec import field

from bayou.core.structs import SelectiveStruct

if TYPE_CHECKING:
    from bayou.model.expressions.data import DataLookup

NAMES = ("inputs", "env", "run", "data", "steps")


def _environment() -> Mapping[str, str]:
    return dict(os.environ)


class EvaluationScope(SelectiveStruct, frozen=True):
    """The values behind the names. `more` has names of the caller's own, as a loop's item.

    `data` answers `data.latest` and the like; None where there is nothing to be asked.
    """

    unshown: ClassVar[tuple[str, ...]] = ("env",)

    inputs: Mapping[str, object] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=_environment)
    run: Mapping[str, object] = field(default_factory=dict)
    steps: Mapping[str, object] = field(default_factory=dict)
    more: Mapping[str, object] = field(default_factory=dict)
    data: DataLookup | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return (*NAMES, *self.more)
