"""Ending a server's process, and no other."""

from __future__ import annotations

import os
import signal
import time

from bayou.core.file_lock import is_locked
from bayou.pipeline.server.place import Place

_GRACE_S = 5.0
_ARCHIVE_S = 240.0  # a server that had no class archive writes one at its end
_KILLED_S = 10.0
_POLL_S = 0.05


def terminate(place: Place, *, keep_archive: bool = False) -> bool:
    """Stop the server of a place, if one lives there, and return when it is gone; say whether there was one.

    The server gets SIGTERM at once and SIGKILL after a grace of seconds. A server that had no class archive would write
    one at its end, which takes a minute: only a caller that asks to `keep_archive` waits for it.
    The process id is the server's own, for the server lives as long as its lock is held.
    """
    if not is_locked(place.alive):
        place.record.unlink(missing_ok=True)
        return False
    grace = _ARCHIVE_S if keep_archive and place.classes.exists() else _GRACE_S
    for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, _KILLED_S)):
        signal_server(place, number)
        if _gone(place, seconds):
            break
    place.record.unlink(missing_ok=True)
    return True


def signal_server(place: Place, number: int) -> None:
    """Send a signal to the server, if it lives."""
    try:
        pid = int(place.alive.read_text())
    except (FileNotFoundError, ValueError):
        return  # there never was one, or its starter died before it wrote that down
    if is_locked(place.alive):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass  # it has ended in this moment


def _gone(place: Place, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while is_locked(place.alive):
        if time.monotonic() >= end:
            return False
        time.sleep(_POLL_S)
    return True
