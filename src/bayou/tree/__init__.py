"""The directory of payload files on this machine.

Programs change it through a `Tree`, which journals; a pull through `Incoming`, which does not; `scan` and
`read_content` say what it holds.
"""

from bayou.tree.content import Content, read_content
from bayou.tree.filestat import FileStat
from bayou.tree.incoming import Incoming
from bayou.tree.journal import Journal, Kind, Ticket
from bayou.tree.scan import Found, Skipped, scan
from bayou.tree.tree import Tree

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
