"""The threads that obstore works with: one set for a process, made with its first request.

A request runs on the thread that makes it; obstore's own threads only serve the connections. As many of them as there
are cores, which is what it takes by itself, wake each other up for nothing: with half as many, ten thousand small files
take a tenth less time.
"""

from __future__ import annotations

import os
import threading

import obstore
from obstore.store import MemoryStore

_NAME = "TOKIO_WORKER_THREADS"
_made = threading.Event()
_lock = threading.Lock()


def begin() -> None:
    """Make obstore's threads, unless there are some; what the environment says of their number counts."""
    if _made.is_set():
        return
    with _lock:
        if not _made.is_set():
            _make()
            _made.set()


def _make() -> None:
    if _NAME in os.environ:
        return
    # Only as long as it takes: programs that we start have obstores of their own.
    os.environ[_NAME] = str(max(1, _cores() // 2))
    try:
        obstore.list(MemoryStore()).collect()
    finally:
        del os.environ[_NAME]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
