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
        elif change.old is not None and change.old.push is None and change.old.refusal() is None:
            trash[change.path] = change.old
    return trash


def trash_refusal(entry: Entry) -> str | None:
    """Say why nothing may be deleted by a row of the trash; None if it can be one that a commit put there.

    The trash is part of the store, and whoever writes there can put any name into it (V5, V9, V25): only a payload path
    of this store is believed, of an object that Bayou did not write, with the ETag that it had.
    """
    if entry.push is not None:
        return "it names an object of a push, and such objects are never in the trash"
    return entry.refusal() or ("it has no ETag" if entry.etag is None else None)
