"""The protocol of the journal that a `Worktree` writes to before every change (V7).

`bayou.state.journal` implements it on `sync.db`. The protocol stands here because `worktree` is the lower layer and
must not import `state`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

Kind = Literal["write", "delete"]
Ticket = object
"""The rows that one `Journal.open` opened, for `Journal.close`; opaque to the caller."""


class Journal(Protocol):
    """The durable, ordered rows of V7. Safe to use from many threads and processes; raises only `BayouError`."""

    def open(self, kind: Kind, paths: Sequence[str]) -> Ticket:
        """Open a row for each path. The rows are durable when this returns; if this raises, there are none.

        The caller has changed nothing yet, and changes nothing if this raises.
        """

    def close(self, ticket: Ticket) -> None:
        """Close the rows of one `open`, now that the change is durable or was given up.

        Rows that stay open count as closed after their process has ended.
        """
