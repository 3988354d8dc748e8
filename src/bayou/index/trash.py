"""The trash: discovered objects that left the index, kept as a tree until they are deleted.

An object that Bayou wrote needs no such note, since its key says so. One that was there before has the plain path as
its key, and nothing but this tree would tell it from payload that nobody has indexed yet.
"""

from __future__ import annotations

from collections.abc import Iterable

from bayou.index.diff import Change
from bayou.index.entry import Entry


def trash_changes(changes: Iterable[Change]) -> dict[str, Entry | None]:
    """Return what a commit of `changes` to the index changes in the trash; merge it in the same swap of the head.

    A discovered object whose entry is deleted or replaced goes in; one that is indexed (again) comes out (V5).
    """
    trash: dict[str, Entry | None] = {}
    for change in changes:
        if change.new is not None and change.new.push is None:
            trash[change.path] = None
        elif change.old is not None and change.old.push is None:
            trash[change.path] = change.old
    return trash
