"""The child process of `index.node_parser`: it parses untrusted nodes, and only this process dies of a bad one (V25).

It reads requests from its standard input and answers each on its standard output, one at a time, until the input ends
or no request comes for a minute. A request is the number of bytes, the node's level, and the bytes. An answer is the
number of bytes, the kind (the node's columns as JSON, or a sentence that says what is wrong), and the bytes.
"""

from __future__ import annotations

import json
import os
import resource
import select
import struct

from bayou.core import limits
from bayou.index.parquet import BadColumns, read_columns

MESSAGE = struct.Struct("<IB")
COLUMNS, WRONG = 0, 1
READY = MESSAGE.pack(0, COLUMNS)
"""The first message: all modules are loaded, so from now on only a node can end the process."""

_IDLE_S = 60
_LONGEST = 300


def main() -> None:
    """Answer requests until the input ends or stays idle."""
    _bound_memory()
    _write(READY)
    while select.select([0], [], [], _IDLE_S)[0] and (header := _read(MESSAGE.size)):
        length, level = MESSAGE.unpack(header)
        kind, answer = _answer(_read(length), level)
        _write(MESSAGE.pack(len(answer), kind) + answer)


def _answer(data: bytes, level: int) -> tuple[int, bytes]:
    _bound_time()
    try:
        columns = [_plain(column) for column in read_columns(data, level)]
        answer = json.dumps(columns, ensure_ascii=False, check_circular=False).encode()
        if len(answer) > limits.NODE_TEXT:
            raise BadColumns(f"its rows have {len(answer)} bytes")
        return COLUMNS, answer
    except BadColumns as error:
        return WRONG, str(error).encode(errors="replace")
    except BaseException as error:  # noqa: BLE001  (the parser's panics are no `Exception`: they end with this request)
        text = " ".join(str(error).split())[:_LONGEST] or type(error).__name__
        return WRONG, f"its Parquet cannot be read: {text}".encode(errors="replace")


def _plain(column: list[object]) -> list[object]:
    """Return a column as JSON values: bytes become hexadecimal digits."""
    return [value.hex() if isinstance(value, bytes) else value for value in column]


def _bound_memory() -> None:
    """Limit the address space to its current size and what one node may take; allow no core dump of a store's data."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return  # not Linux: such systems do not enforce this limit either
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    wanted = used + limits.NODE_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def _bound_time() -> None:
    """Give this request its own limit of CPU time, whatever earlier requests used."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    wanted = int(usage.ru_utime + usage.ru_stime) + 1 + limits.NODE_CPU_S
    resource.setrlimit(resource.RLIMIT_CPU, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def _read(length: int) -> bytes:
    """Read exactly `length` bytes; none if the input ends."""
    parts = []
    while length:
        part = os.read(0, min(length, 1 << 20))
        if not part:
            return b""
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]
