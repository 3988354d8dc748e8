"""The three-way decision table, as a pure function: what to do with a path, given base, local and remote.

Nothing here reads a disk or a store. Files are compared by content (V6). A remote entry is the same as base's if it is
of the same push and has the same hash, wherever its bytes are (P5): base takes its location, and nothing is downloaded.
The same bytes of another push are not downloaded either, but they are a change: another client deleted the file and
made it again, and a delete that is pending here is of the old one.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from bayou.index.entry import Entry

UNREAD = b""
"""The hash of a file that the scanner has not read yet."""


class Action(Enum):
    """The action for a path."""

    NOTHING = "nothing"
    RECORD = "record"
    PUSH = "push"
    PUSH_BACK = "push-back"
    PULL = "pull"
    DELETE_LOCAL = "delete-local"
    DELETE_REMOTE = "delete-remote"
    KEEP_REMOTE = "keep-remote"
    COMPARE = "compare"
    CONFLICT = "conflict"
    UNTRACKED = "untracked"
    RENUMBER = "renumber"

    @property
    def pushes(self) -> bool:
        return self in _PUSHES

    @property
    def pulls(self) -> bool:
        return self in _PULLS


_PUSHES = frozenset({Action.PUSH, Action.PUSH_BACK, Action.DELETE_REMOTE})
_PULLS = frozenset({Action.PULL, Action.DELETE_LOCAL, Action.KEEP_REMOTE})


class LocalState(Struct, frozen=True):
    """The state of a path in this tree.

    `sha256` and `size` are None if there is no file; `sha256` is `UNREAD`, which equals no hash, if the scanner has not
    read the file yet. `deleted`: the newest journal row is a delete. `ours`: a journal row names the path (or the user
    adopts it), so that a file which base does not have is pushed. `absent`: the file is missing on purpose (lazy,
    excluded, refused).
    """

    sha256: bytes | None = None
    size: int | None = None
    deleted: bool = False
    ours: bool = False
    absent: bool = False

    @property
    def present(self) -> bool:
        return self.sha256 is not None


class _Local(Enum):
    SAME = 0
    CHANGED = 1
    DELETED = 2
    MISSING = 3
    UNTRACKED = 4


class _Remote(Enum):
    SAME = 0
    MOVED = 1
    REMADE = 2
    CHANGED = 3
    DELETED = 4


_UNCHANGED_HERE = {
    _Remote.SAME: Action.NOTHING,
    _Remote.MOVED: Action.RECORD,
    _Remote.REMADE: Action.RECORD,
    _Remote.CHANGED: Action.PULL,
    _Remote.DELETED: Action.DELETE_LOCAL,
}


def decide(base: Entry | None, local: LocalState, remote: Entry | None) -> Action:
    """Return the action for one path.

    The caller fills in the hash of a discovered entry if this machine knows it.
    """
    remote_change = _compare_remote(base, remote)
    match _compare_local(base, local):
        case _Local.SAME:
            return _UNCHANGED_HERE[remote_change]
        case _Local.CHANGED:
            if remote_change in (_Remote.SAME, _Remote.MOVED):
                return Action.PUSH
            return Action.PUSH_BACK if remote_change is _Remote.DELETED else _both_changed(local, remote)
        case _Local.DELETED:
            if remote is None:
                return Action.RECORD if base is not None else Action.NOTHING
            remade = remote_change in (_Remote.REMADE, _Remote.CHANGED)
            return Action.KEEP_REMOTE if remade else Action.DELETE_REMOTE
        case _Local.MISSING:
            return Action.RECORD if remote is None else Action.PULL
        case _Local.UNTRACKED:
            return Action.UNTRACKED if remote is None else _both_changed(local, remote)


def same_object(first: Entry, second: Entry) -> bool:
    """Return whether two entries name the same object: one push of the same bytes, or one discovered object."""
    if first.push != second.push or first.size != second.size:
        return False
    if first.push is None:
        return (first.etag, first.version) == (second.etag, second.version)
    # V11: an object is never overwritten, so its key implies its hash; a rebuilt index may not know the hash.
    return first.sha256 == second.sha256 or first.sha256 is None or second.sha256 is None


def unchanged(base: Entry, remote: Entry | None) -> bool:
    """Return whether the store still has the content of base: the same object, or another with the same bytes."""
    return _compare_remote(base, remote) in (_Remote.SAME, _Remote.MOVED, _Remote.REMADE)


def _compare_local(base: Entry | None, local: LocalState) -> _Local:
    if not local.present:
        if local.deleted:
            return _Local.DELETED
        return _Local.SAME if base is None or local.absent else _Local.MISSING
    if base is None:
        return _Local.CHANGED if local.ours else _Local.UNTRACKED
    return _Local.SAME if _same_content(local, base) else _Local.CHANGED


def _compare_remote(base: Entry | None, remote: Entry | None) -> _Remote:
    if base is None:
        return _Remote.SAME if remote is None else _Remote.CHANGED
    if remote is None:
        return _Remote.DELETED
    if same_object(base, remote):
        return _Remote.SAME if base == remote else _Remote.MOVED
    return _Remote.REMADE if base.sha256 is not None and base.sha256 == remote.sha256 else _Remote.CHANGED


def _both_changed(local: LocalState, remote: Entry | None) -> Action:
    """Decide a path that is new or changed on both sides: equal, different, or of unknown hash after discovery."""
    if remote is None or remote.sha256 is None:
        return Action.COMPARE if remote is not None and remote.size == local.size else Action.CONFLICT
    return Action.RECORD if _same_content(local, remote) else Action.CONFLICT


def _same_content(local: LocalState, entry: Entry) -> bool:
    return entry.sha256 is not None and local.sha256 == entry.sha256 and local.size == entry.size
