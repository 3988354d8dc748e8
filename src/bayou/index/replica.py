"""What the head of a replica says of the store that it is a copy of."""

from __future__ import annotations

from bayou.index.node import Root
from bayou.quick import dataclass


@dataclass(frozen=True, slots=True)
class Replica:
    """The source of a replica, and how far it was copied.

    `seq`, `commit` and `rebuilt` are those of the source's head that was copied last; `root` was its root, and `into`
    the root that this made here: a replica with another root has been written to by somebody else. `whole`: every entry
    of `root` was copied; otherwise the next run compares everything. A Bayou that does not know this field carries it
    along.
    """

    store: str
    seq: int = 0
    commit: str | None = None
    rebuilt: str | None = None
    root: Root | None = None
    into: Root | None = None
    whole: bool = False
