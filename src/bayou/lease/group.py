"""Several leases that stand and fall together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

from bayou.core.deadline import Deadline
from bayou.lease.claim import RELEASE_S, Lease
from bayou.lease.inherit import environment


class LeaseGroup:
    """Leases that one session holds. Leaving the block gives up all of them."""

    def __init__(self, leases: Sequence[Lease]) -> None:
        self._leases = tuple(leases)

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._leases)

    def __len__(self) -> int:
        return len(self._leases)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def check(self) -> None:
        """Raise `LeaseLost` unless all of them are still ours. Sends nothing: call it before every write."""
        for lease in self._leases:
            lease.check()

    @property
    def lost(self) -> bool:
        return any(lease.lost for lease in self._leases)

    def environment(self) -> dict[str, str]:
        """Return what to add to the environment of a child, so that it may work under these leases."""
        return environment(self._leases)

    def release(self) -> None:
        """Give all of them up, in the time that one may take."""
        deadline = Deadline.after(RELEASE_S)
        for lease in reversed(self._leases):
            lease.release(deadline)
