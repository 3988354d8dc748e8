"""Parquet that somebody else wrote, and that may hold anything.

A failure inside the parser's blocking reader can end the process; inside its asynchronous one it is an exception. That
one reads from a store only, so the bytes become a file.
"""

from __future__ import annotations

import asyncio
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from arro3.core import Table
from arro3.io import read_parquet_async
from arro3.io.store import LocalStore

from bayou.index.node import Ref, damaged


def read_unsealed(data: bytes, ref: Ref) -> Table:
    """Read a Parquet file, or raise `NodeDamaged`."""
    # A thread of its own, since the caller's may have an event loop already.
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(1) as thread:
        Path(directory, "node").write_bytes(data)
        reading = thread.submit(lambda: asyncio.run(_read(directory)))
        error = reading.exception()
        if error is not None:
            first_line = str(error).partition("\n")[0]
            raise damaged(ref.node, f"its Parquet cannot be read: {first_line}") from error
        return reading.result()


async def _read(directory: str) -> Table:
    return await read_parquet_async("node", store=LocalStore(directory))
