"""What the packs of a store say about its files, for the recovery of a damaged index (P9).

A pack's list names the files in it. Nothing proves that any of them was ever committed, and a hostile list may name
anything (V25); but a file whose bytes have the listed hash is at least what the list says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from msgspec import Struct, field

from bayou.core.errors import NotFound
from bayou.core.structs import Malformed
from bayou.index.entry import Entry
from bayou.maintenance.verify_rules import WELL, read_members
from bayou.objectstore import keys
from bayou.objectstore.store import Store
from bayou.packs.listing import PackList, read_list

_LISTS = 4
"""Lists that are read at once: a hostile one takes as much memory as `limits.PACK_LIST_BYTES` allows."""


class PackWitness(Struct, frozen=True):
    """The packs of a store, and how to learn what is in them."""

    listed: Mapping[str, int] = field(default_factory=dict)
    """The keys of the packs that have the size in their name, each with its time, in ms."""
    members_since: Callable[[int], Iterable[Entry]] = lambda _: ()
    """Returns the files that the lists of packs name, of packs that the store got since a time."""
    prove: Callable[[Sequence[Entry]], Iterable[Entry]] = lambda _: ()
    """Returns those of some files whose bytes have their hash."""
    unreadable: list[str] = field(default_factory=list)
    """The names of packs of another size, and of those whose list `members_since` could not read."""


NO_PACKS = PackWitness()


def pack_witness(store: Store) -> PackWitness:
    """List the packs of a store; their lists are read when they are asked for."""
    listed: dict[str, int] = {}
    unreadable: list[str] = []
    for meta in (meta for page in store.list(keys.PACKS) for meta in page):
        name = keys.parse_pack(meta.key)
        if name is None:
            continue
        if meta.size == keys.pack_bytes(name):
            listed[meta.key] = meta.modified
        else:
            unreadable.append(name)
    return PackWitness(listed, partial(_members, store, listed, unreadable), partial(_prove, store), unreadable)


def _members(store: Store, listed: Mapping[str, int], unreadable: list[str], at: int) -> Iterator[Entry]:
    names = [name for key, modified in listed.items() if modified >= at and (name := keys.parse_pack(key)) is not None]
    for name, found in zip(names, store.map(partial(_list, store), names, threads=_LISTS), strict=True):
        if found is None or found.refused:
            unreadable.append(name)
        if found is not None:
            yield from found.members


def _list(store: Store, name: str) -> PackList | None:
    try:
        return read_list(store, name)
    except (Malformed, NotFound):
        return None


def _prove(store: Store, entries: Sequence[Entry]) -> Iterator[Entry]:
    return (entry for finding, entry in read_members(store, entries) if finding == WELL)
