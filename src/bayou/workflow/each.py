"""`for_each`: one step, run for each element of a list or of a mapping."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from msgspec import Struct

from bayou.core.errors import WorkflowInvalid
from bayou.models.expressions.evaluate import redact

_LONGEST = 80


class Each(Struct, frozen=True):
    """One element: its key (of a list: its index, from 0), and its value."""

    key: str | int
    value: Any

    def fields(self) -> Mapping[str, Any]:
        """Return what `each` is in expressions."""
        return {"key": self.key, "value": self.value}


def elements(found: Any, where: str) -> list[Each]:
    """Return the elements of what a `for_each` has come to; `WorkflowInvalid` if that is neither list nor mapping."""
    if isinstance(found, Mapping):
        return [Each(str(key), value) for key, value in found.items()]
    if isinstance(found, list | tuple):
        return [Each(at, value) for at, value in enumerate(found)]
    raise WorkflowInvalid(f"{where}: for_each has come to neither a list nor a mapping", hint="like [web, db]")


def names(step: str, found: list[Each], secrets: Collection[str] = ()) -> list[str]:
    """Name each time that a step runs, `step[key]`: short plain texts of a list name themselves, if they differ.

    Where a name would tell a secret, they are numbered.
    """
    labels = [str(one.key) for one in found]
    plain = [one.value for one in found if isinstance(one.value, str) and 0 < len(one.value) <= _LONGEST]
    if found and isinstance(found[0].key, int) and len(set(plain)) == len(found) and all(map(str.isprintable, plain)):
        labels = plain
    if redact(labels, secrets) != labels:
        labels = [str(at) for at in range(len(found))]
    return [f"{step}[{label}]" for label in labels]
