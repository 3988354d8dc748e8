"""How a listing is divided: directories, from the top down, until there are enough of them to go round.

Together the parts hold every key of the store once. A directory is divided only where what lies directly in it is
known exactly; otherwise it stays one part, which is slower and as right. It also stays one part where dividing it would
separate what belongs together: the objects of pushes (`a/~<push>/b` is the object of the path `a/b`), and another store
(a directory that holds `.bayou/`), which a job knows only by that.

How a listing is divided (`engine.parts`).
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
"""Directories that are looked into before the work begins: what they cost must not be felt."""

REQUEST = 1 << 16
"""What a request costs besides the bytes that it moves, in bytes: a small object takes as long as this many."""

_PAGE = 1000

T = TypeVar("T")


class Part(Struct, frozen=True):
    """A directory of a store (None: the store itself): all that is below it, or only the objects directly in it."""

    directory: str | None
    deep: bool = True
    inside: tuple[str, ...] = ()
    """Of a directory that was divided: the directories in it, each of which is a part, or divided again."""

    def holds(self, path: str) -> bool:
        """Whether a path belongs here: it lies in the directory, and in none of those that it was divided into."""
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


def divide(store: Store, wanted: int) -> list[Part]:
    """Return parts that hold every key of the store but Bayou's own; about `wanted`, or as many as there are."""
    done: list[Part] = []
    front: list[Part] = [Part(None)]
    looked = 0
    while front and len(done) + len(front) < wanted and looked + len(front) <= MOST_LEVELS:
        looked += len(front)
        below: list[Part] = []
        for part, inside in zip(front, store.map(lambda one: _directories(store, one), front), strict=True):
            if inside is None:
                done.append(part)
            else:
                done.append(Part(part.directory, deep=False, inside=tuple(sorted(inside))))
                below += [Part(directory) for directory in inside]
        front = below
    return done + front


def objects(store: Store, part: Part) -> Iterator[Sequence[ObjectMeta]]:
    """Yield pages of the objects of a part. A failure raises, and never ends a listing early (V4)."""
    under = None if part.directory is None else keys.as_listed(part.directory)
    if part.deep:
        yield from store.list(under)
        return
    level = store.level(under)
    if level is None:
        # It could be divided a moment ago; now only the whole listing tells which objects lie directly in it.
        start = 0 if under is None else len(under) + 1
        for page in store.list(under):
            yield [meta for meta in page if "/" not in meta.key[start:]]
        return
    found = iter(level.objects)
    while page := list(islice(found, _PAGE)):
        yield page


def groups(parts: Sequence[T], wanted: int) -> list[Sequence[T]]:
    """Divide parts evenly among at most `wanted` tasks, neighbours together."""
    size = max(1, -(-len(parts) // wanted))
    return [parts[at : at + size] for at in range(0, len(parts), size)]


def _directories(store: Store, part: Part) -> list[str] | None:
    """Return the directories that lie directly in a part; None where it cannot be divided."""
    level = store.level(None if part.directory is None else keys.as_listed(part.directory))
    if level is None:
        return None
    found = [one.removesuffix("/") for one in level.directories]
    # A directory with an odd name cannot be listed by itself.
    if any(paths.unsafe(one) is not None for one in found):
        return None
    last = [one.rpartition("/")[2] for one in found]
    if any(keys.is_push_segment(one) for one in last) or (part.directory is not None and keys.INTERNAL in last):
        return None
    return [one for one in found if one != keys.INTERNAL]


__all__ = ["MOST_LEVELS", "Part", "divide", "groups", "objects"]
