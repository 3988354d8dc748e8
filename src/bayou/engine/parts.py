"""The division of a store's listing into parts: directories, from the top down, until there are enough of them.

Together the parts hold every key of the store once. A directory is divided only if the store can list exactly what lies
directly in it; otherwise it stays one part, which is slower but correct. It also stays one part if dividing it would
separate keys that belong together: the objects of pushes (`a/~<push>/b` is the object of the path `a/b`), and another
store (a directory that holds `.bayou/`), which a job recognises only by that directory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TypeVar

from msgspec import Struct

from bayou.core import paths
from bayou.objectstore import keys
from bayou.objectstore.store import Store
from bayou.objectstore.transport import ObjectMeta

MOST_LEVELS = 500
"""Directories that the driver lists before the work starts, at most, so that dividing stays cheap."""

REQUEST = 1 << 16
"""The cost of a request in bytes: the transfer of a small object takes as long as this many bytes more."""

_PAGE = 1000

T = TypeVar("T")


class StorePart(Struct, frozen=True):
    """A directory of a store (None: its root): all keys below it (`deep`), or only the objects directly in it."""

    directory: str | None
    deep: bool = True
    inside: tuple[str, ...] = ()
    """The subdirectories of a divided directory; each of them is a part, or divided again."""

    def holds(self, path: str) -> bool:
        """Return whether a path belongs to this part: it lies in the directory, and in no split-off subdirectory."""
        start = 0 if self.directory is None else len(self.directory) + 1
        if self.directory is not None and not path.startswith(f"{self.directory}/"):
            return False
        if self.deep:
            return True
        end = path.find("/", start)
        if end < 0:
            return True
        at = bisect_left(self.inside, path[:end])
        return at == len(self.inside) or self.inside[at] != path[:end]


def divide(store: Store, wanted: int) -> list[StorePart]:
    """Return parts that hold every key of the store except Bayou's own; about `wanted`, or as many as there are."""
    done: list[StorePart] = []
    front: list[StorePart] = [StorePart(None)]
    listed = 0
    while front and len(done) + len(front) < wanted and listed + len(front) <= MOST_LEVELS:
        listed += len(front)
        below: list[StorePart] = []
        for part, inside in zip(front, store.map(lambda part: _directories(store, part), front), strict=True):
            if inside is None:
                done.append(part)
            else:
                done.append(StorePart(part.directory, deep=False, inside=tuple(sorted(inside))))
                below += [StorePart(directory) for directory in inside]
        front = below
    return done + front


def objects(store: Store, part: StorePart) -> Iterator[Sequence[ObjectMeta]]:
    """Yield pages of the objects of a part. A failure raises, and never ends a listing early (V4)."""
    under = None if part.directory is None else keys.as_listed(part.directory)
    if part.deep:
        yield from store.list(under)
        return
    level = store.list_directory(under)
    if level is None:
        # The store could list one level a moment ago; now only the whole listing shows the objects directly in it.
        start = 0 if under is None else len(under) + 1
        for page in store.list(under):
            yield [meta for meta in page if "/" not in meta.key[start:]]
        return
    found = iter(level.objects)
    while page := list(islice(found, _PAGE)):
        yield page


def groups(parts: Sequence[T], wanted: int) -> list[Sequence[T]]:
    """Group parts evenly for at most `wanted` tasks, neighbours together."""
    size = max(1, -(-len(parts) // wanted))
    return [parts[at : at + size] for at in range(0, len(parts), size)]


def _directories(store: Store, part: StorePart) -> list[str] | None:
    """Return the directories that lie directly in a part; None if it cannot be divided."""
    level = store.list_directory(None if part.directory is None else keys.as_listed(part.directory))
    if level is None:
        return None
    found = [directory.removesuffix("/") for directory in level.directories]
    # A directory with an unsafe name cannot be listed by itself.
    if any(paths.unsafe(directory) is not None for directory in found):
        return None
    last = [directory.rpartition("/")[2] for directory in found]
    if any(keys.is_push_segment(directory) for directory in last) or (
        part.directory is not None and keys.INTERNAL in last
    ):
        return None
    return [directory for directory in found if directory != keys.INTERNAL]
