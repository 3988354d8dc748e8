"""What all sinks of nodes have in common: take and name now, store together later."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence

from msgspec import Struct

from bayou.index import codec
from bayou.index.node import Node, name


class NodeFile(Struct, frozen=True):
    """A node as it is stored."""

    level: int
    name: str
    data: bytes


class Staging(ABC):
    """A sink of one commit's nodes. `written` are the names of those that are stored."""

    def __init__(self, commit: str) -> None:
        self.written: list[str] = []
        self.commit = commit
        self._staged: deque[NodeFile] = deque()

    def save(self, node: Node) -> str:
        """Encode a node at once, since bytes are a tenth of what its rows take in memory, and return its name."""
        named = name(node.digest, self.commit)
        self.take(NodeFile(node.level, named, codec.encode(node)))
        return named

    def take(self, file: NodeFile) -> None:
        """Take a node that was encoded elsewhere, for the same commit."""
        self._staged.append(file)

    def flush(self) -> None:
        """Store what is staged. After a failure, what is not known to be stored is staged still."""
        for file in self._keep(tuple(self._staged)):
            self._staged.popleft()
            self.written.append(file.name)

    @abstractmethod
    def _keep(self, files: Sequence[NodeFile]) -> Iterable[NodeFile]:
        """Store the files and give back, in order, each that is."""
