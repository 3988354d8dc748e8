"""Where simulated machines keep their files: in memory, where there is such a place."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MEMORY = Path("/dev/shm")


@contextmanager
def quick_directory() -> Iterator[Path]:
    """Make a directory on a file system that has no disk to wait for, and remove it at the end."""
    memory = _MEMORY if os.access(_MEMORY, os.W_OK | os.X_OK) else None
    made = Path(tempfile.mkdtemp(prefix="bayou-sim-", dir=memory))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
