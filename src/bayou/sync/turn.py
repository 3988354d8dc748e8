"""Going first: a committer that loses one race after the other asks the others to wait, out of politeness (V13).

A store may allow no more than one write a second to the head, and a slow writer must not starve. Nothing depends on
it: who cannot have the lease in time commits without it, by compare-and-swap like everybody.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bayou.core.deadline import Deadline
from bayou.core.errors import LeaseError, StoreError
from bayou.objectstore.store import Store

_WAIT_S = 10.0


@contextmanager
def turn(store: Store, deadline: Deadline) -> Iterator[bool]:
    """Take the `commit` lease for a while, if it can be had; say whether that came about."""
    from bayou.leases import COMMIT, Leases  # noqa: PLC0415  (hardly ever needed)

    try:
        lease = Leases(store, inherited={}).acquire(COMMIT, wait_s=_WAIT_S, deadline=deadline)
    except (LeaseError, StoreError):
        yield False
        return
    with lease:
        yield True
