"""Who is told of every change to the tree, before it is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

Kind = Literal["write", "delete"]
Ticket = object
"""What a journal gives for the rows it opened, and takes to close them; nobody else looks inside."""


class Journal(Protocol):
    """The durable, ordered rows of V7. For many threads and processes; what it raises is a `BayouError`."""

    def open(self, kind: Kind, paths: Sequence[str]) -> Ticket:
        """Open a row for each path. They are durable when this returns; if it raises, there are none.

        The caller has changed nothing yet, and changes nothing if this raises.
        """

    def close(self, ticket: Ticket) -> None:
        """Close the rows of one `open`, now that the change is durable or has been given up.

        Rows that nobody closes count as closed once their process is gone.
        """
