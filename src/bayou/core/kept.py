"""A record of what an interrupted command has kept, and of the command that continues from there.

The command line names the command; the code below it updates the rest as it goes, at the moment at which it becomes
true. When a signal or a deadline ends the command, the error's hint is made of it, by any thread. Bayou as a library
keeps this record too, and does not show it.
"""

from __future__ import annotations

import threading

from msgspec import Struct, field


class Count(Struct):
    """Files and their bytes."""

    files: int = 0
    bytes: int = 0

    def add(self, files: int, size: int) -> None:
        self.files += files
        self.bytes += size


class Kept(Struct):
    """`what` is true now, besides the counted files; `go_on` is the command to type next.

    `nothing` says what is true as long as no file was counted.
    """

    what: str | None = None
    nothing: str | None = None
    go_on: str | None = None
    pulled: Count = field(default_factory=Count)
    pushed: Count = field(default_factory=Count)
    """Committed: other clients see them."""
    arrived: Count = field(default_factory=Count)
    """Acknowledged by the store and recorded here, but not committed: a later push does not send them again."""
    part_sent: dict[str, int] = field(default_factory=dict)
    """Bytes of files on their way, by path, that the store has acknowledged: a later push sends only the others."""
    part_fetched: dict[str, int] = field(default_factory=dict)
    """Bytes of files on their way, by path, that are staged here: a later pull fetches only the others."""


_kept = Kept()
_lock = threading.Lock()


def begin(go_on: str | None = None) -> None:
    """Start a new record for a command; until `now` names another, the same command continues the work."""
    global _kept  # noqa: PLW0603  (the record of this process's one command)
    _kept = Kept(go_on=go_on)


def now(what: str | None = None, *, nothing: str | None = None, go_on: str | None = None) -> None:
    """Set what is kept from now on; and with `go_on` the command that continues, if it is no longer the same one."""
    with _lock:
        _kept.what, _kept.nothing = what, nothing
        _kept.go_on = go_on or _kept.go_on


def pulled(files: int, size: int) -> None:
    """Count files that are in the tree for good."""
    with _lock:
        _kept.pulled.add(files, size)


def arrived(files: int, size: int) -> None:
    """Count files that the store has, and that are recorded here so that no push sends them again."""
    with _lock:
        _kept.arrived.add(files, size)


def pushed(files: int, size: int) -> None:
    """Count files that a commit names; they are no longer among those that only arrived."""
    with _lock:
        _kept.pushed.add(files, size)
        _kept.arrived = Count(max(0, _kept.arrived.files - files), max(0, _kept.arrived.bytes - size))


def part_sent(path: str, size: int) -> None:
    """Count bytes of a file that is not all in the store, if a later command goes on after them."""
    with _lock:
        _kept.part_sent[path] = _kept.part_sent.get(path, 0) + size


def part_fetched(path: str, size: int) -> None:
    """Count bytes of a file that is not all here, if a later command goes on after them."""
    with _lock:
        _kept.part_fetched[path] = _kept.part_fetched.get(path, 0) + size


def part_ended(path: str) -> None:
    """Forget the parts of a file: it counts as a whole from now on, or its parts are of no use any more."""
    with _lock:
        _kept.part_sent.pop(path, None)
        _kept.part_fetched.pop(path, None)


def current() -> Kept:
    """Return a copy of the record as it is now."""
    with _lock:
        pulled, pushed, arrived = (Count(one.files, one.bytes) for one in (_kept.pulled, _kept.pushed, _kept.arrived))
        return Kept(
            _kept.what,
            _kept.nothing,
            _kept.go_on,
            pulled,
            pushed,
            arrived,
            dict(_kept.part_sent),
            dict(_kept.part_fetched),
        )
