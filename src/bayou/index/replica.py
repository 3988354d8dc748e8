"""What the head of a replica says of the store that it is a copy of."""

from __future__ import annotations

from msgspec import Struct

from bayou.core.structs import Identifier, Seq
from bayou.index.node import Root


class Replica(Struct, frozen=True):
    """The source of a replica, and how far it was copied.

    `seq`, `commit` and `rebuilt` are those of the source's head that was copied last; `root` was its root, and `into`
    the root that this made here: a replica with another root has been written to by somebody else. `whole`: every entry
    of `root` was copied; otherwise the next run compares everything. A Bayou that does not know this field carries it
    along.
    """

    store: Identifier
    seq: Seq = 0
    commit: Identifier | None = None
    rebuilt: Identifier | None = None
    root: Root | None = None
    into: Root | None = None
    whole: bool = False
