"""The nodes of base, on this machine. What is lost of them is found out anew, not mourned."""

from __future__ import annotations

from bayou.core.errors import NodeDamaged, NodeMissing, StateError
from bayou.index.node import Node, Ref
from bayou.index.node_store import LocalNodes


class BaseLost(StateError):
    """Part of base cannot be read. It is forgotten then, and the next look compares the tree with the store anew."""


class BaseNodes(LocalNodes):
    """Base's nodes in `.bayou/state/nodes`."""

    def load(self, level: int, ref: Ref) -> Node:
        try:
            return super().load(level, ref)
        except (NodeMissing, NodeDamaged) as error:
            raise BaseLost(
                f"part of what this machine knew of the store is lost: {error.message}",
                hint="bayou datastore sync compares tree and store anew",
            ) from error
