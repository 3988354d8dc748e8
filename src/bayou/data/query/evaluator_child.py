"""The child process that evaluates expressions and calls functions that may take long or much memory (see `evaluator`).

It has no secrets and no open files. It reads requests from its standard input and writes answers to its standard
output, each after its length. Requests are pickled, by the parent process, which is trusted; answers are JSON, whatever
an expression returned.
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
    """Answer requests until the parent closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing to clean up, and CEL cannot be interrupted
    sys.path[:] = json.loads(sys.argv[1])
    memory, seconds, longest = json.loads(sys.argv[2])
    from bayou.data.query.evaluator import FAILURES, compile_expression  # noqa: PLC0415
    from bayou.data.query.expression import as_json  # noqa: PLC0415

    compile_expression("1", "an expression")  # loads CEL before memory is limited
    _set_limit(resource.RLIMIT_AS, memory)
    _set_limit(resource.RLIMIT_CORE, 0)
    source, target = sys.stdin.buffer, sys.stdout.buffer

    def call(name: str) -> Callable[..., Any]:
        def ask(*arguments: Any) -> Any:
            _send(target, {"call": name, "arguments": as_json(list(arguments[1:]))})
            return _receive(source)

        return ask

    while (request := _receive(source)) is not None:
        _set_cpu_limit(seconds)
        if "module" in request:
            called = getattr(importlib.import_module(request["module"]), request["function"])
            _send(target, {"value": called(*request["arguments"])})
            continue
        try:
            context = {**request["values"], **{name: call(name) for name in request["functions"]}}
            value = as_json(compile_expression(request["source"], "the expression").execute(context))
            answer = json.dumps({"value": value})
            if len(answer) > longest:
                answer = json.dumps({"costly": f"it evaluates to more than {longest} bytes"})
        except KeyError as error:
            answer = json.dumps({"missing": str(error.args[0])})
        except MemoryError:
            os._exit(1)
        except (*FAILURES, RecursionError) as error:
            answer = json.dumps({"failed": str(error)[:1000]})
        _write(target, answer.encode())


def _set_limit(what: int, most: int) -> None:
    _, hard = resource.getrlimit(what)
    allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
    try:
        resource.setrlimit(what, (allowed, hard))
    except (OSError, ValueError):  # a system without this limit: the parent still limits the time
        return


def _set_cpu_limit(seconds: float) -> None:
    """Give this request so much CPU time: the limit ends this process even if its parent has died."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _set_limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime + seconds) + 2)


def _send(target: BinaryIO, answer: object) -> None:
    _write(target, json.dumps(answer).encode())


def _write(target: BinaryIO, data: bytes) -> None:
    target.write(LENGTH.pack(len(data)))
    target.write(data)
    target.flush()


def _receive(source: BinaryIO) -> Any:
    """Return the next request, or the answer to a call; None when the parent has closed the pipe."""
    head = source.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    return pickle.loads(source.read(length))


if __name__ == "__main__":
    main()
