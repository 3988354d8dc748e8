"""The directory of payload files on this machine.

Programs change it through a `Tree`, which journals; a pull through `Incoming`, which does not; `scan` and
`read_content` say what it holds.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bayou.tree.filestat import FileStat
from bayou.tree.journal import Journal, Kind, Ticket
from bayou.tree.scan import Found, Skipped, scan
from bayou.tree.tree import Tree

if TYPE_CHECKING:
    from bayou.tree.content import Content, read_content
    from bayou.tree.incoming import Incoming

__all__ = [
    "Content",
    "FileStat",
    "Found",
    "Incoming",
    "Journal",
    "Kind",
    "Skipped",
    "Ticket",
    "Tree",
    "read_content",
    "scan",
]

_LATER = {"Content": "content", "Incoming": "incoming", "read_content": "content"}
"""What hashes and pulls, for those who do: most only look."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"bayou.tree.{_LATER[name]}"), name)
