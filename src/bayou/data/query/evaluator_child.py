"""The process that evaluates CEL expressions, and calls functions, which may take long, or much memory.

It holds no secrets and no files.

It reads requests from its standard input and writes answers to its standard output, each with its length before it.
What comes in is pickled, by the process that started this one; what goes out is JSON, whatever came of an expression.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import resource
import signal
import struct
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

LENGTH = struct.Struct("!Q")


def main() -> None:
    """Serve until the other side closes."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing to clean up; and the evaluator would not notice
    sys.path[:] = json.loads(sys.argv[1])
    memory, seconds, longest = json.loads(sys.argv[2])
    from bayou.data.query.evaluator import FAILURES, compile_expression  # noqa: PLC0415
    from bayou.data.query.expression import as_json  # noqa: PLC0415

    compile_expression("1", "a first one")  # loads the evaluator before memory is limited
    _limit(resource.RLIMIT_AS, memory)
    _limit(resource.RLIMIT_CORE, 0)
    source, target = sys.stdin.buffer, sys.stdout.buffer

    def call(name: str) -> Callable[..., Any]:
        def ask(*arguments: Any) -> Any:
            _send(target, {"call": name, "arguments": as_json(list(arguments[1:]))})
            return _receive(source)

        return ask

    while (request := _receive(source)) is not None:
        _allow(seconds)
        if "module" in request:
            called = getattr(importlib.import_module(request["module"]), request["function"])
            _send(target, {"value": called(*request["arguments"])})
            continue
        try:
            context = {**request["values"], **{name: call(name) for name in request["functions"]}}
            value = as_json(compile_expression(request["source"], "the expression").execute(context))
            answer = json.dumps({"value": value})
            if len(answer) > longest:
                answer = json.dumps({"costly": f"it comes to more than {longest} bytes"})
        except KeyError as error:
            answer = json.dumps({"missing": str(error.args[0])})
        except MemoryError:
            os._exit(1)
        except (*FAILURES, RecursionError) as error:
            answer = json.dumps({"failed": str(error)[:1000]})
        _write(target, answer.encode())


def _limit(what: int, most: int) -> None:
    _, hard = resource.getrlimit(what)
    allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
    try:
        resource.setrlimit(what, (allowed, hard))
    except (OSError, ValueError):  # a system without this limit: the time is limited all the same
        return


def _allow(seconds: float) -> None:
    """Let this request have so much time: it ends this process even where nobody is left to end it."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime + seconds) + 2)


def _send(target: BinaryIO, answer: object) -> None:
    _write(target, json.dumps(answer).encode())


def _write(target: BinaryIO, data: bytes) -> None:
    target.write(LENGTH.pack(len(data)))
    target.write(data)
    target.flush()


def _receive(source: BinaryIO) -> Any:
    """Return the next request, or the answer to a call; None when the other side has closed."""
    head = source.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    return pickle.loads(source.read(length))


if __name__ == "__main__":
    main()
