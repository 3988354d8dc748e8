"""The directory of payload files on this machine.

Programs change it through a `Tree`, which journals; a pull through `Incoming`, which does not; `scan` and
`read_content` say what it holds.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bayou.worktree.hashing import FileStat
from bayou.worktree.journal import Journal, Kind, Ticket
from bayou.worktree.scan import Found, Skipped, scan
from bayou.worktree.tree import Worktree

if TYPE_CHECKING:
    from bayou.worktree.hashing import Content, read_content
    from bayou.worktree.staging import StagingArea

__all__ = [
    "Content",
    "FileStat",
    "Found",
    "Journal",
    "Kind",
    "Skipped",
    "StagingArea",
    "Ticket",
    "Worktree",
    "read_content",
    "scan",
]

_LATER = {"Content": "content", "Incoming": "incoming", "read_content": "content"}
"""What hashes and pulls, for those who do: most only look."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"bayou.worktree.{_LATER[name]}"), name)
