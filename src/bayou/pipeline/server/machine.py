"""How much of this machine, or of this container, a server may take."""

from __future__ import annotations

import os
from pathlib import Path

_MIB = 1 << 20
_LEAST_HEAP = 512 * _MIB
_HEAP = 1024 * _MIB
_HEAP_PER_CORE = 256 * _MIB
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def cores() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory() -> int:
    """Return the memory of this machine in bytes, or less where a container is given less."""
    known = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for file in _LIMITS:
        try:
            known.append(int(Path(file).read_text()))
        except (OSError, ValueError):  # no such limit; "max"
            continue
    return min(known)


def heap(memory: int, cores: int) -> int:
    """Return the largest heap for Spark, in bytes.

    It grows with the cores, each of which works on a partition, up to a quarter of the memory: the Python workers,
    one for each core, hold the records and need the rest.
    """
    wanted = min(memory // 4, _HEAP + cores * _HEAP_PER_CORE)
    return max(_LEAST_HEAP, wanted) // _MIB * _MIB
