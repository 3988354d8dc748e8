"""Spark's Python daemon, from which workers are forked, with two additions for a server that serves many sessions.

    python -m bayou.pipeline.daemon pyspark.worker|nursery

Every session has a daemon of its own, so that no worker ever serves two callers; Spark never ends one before the
server itself. This one ends when it has had no worker for a while, and Spark starts another if the session goes on.
And it loads what every worker needs before it forks the first; or has another process fork it, which has (`nursery`).
"""

from __future__ import annotations

import gc
import importlib
import os
import pkgutil
import signal
import sys
from pathlib import Path

from bayou.pipeline import nursery
from bayou.pipeline.server.environment import NURSERY, PLACE
from bayou.pipeline.server.place import Place

LONELY_S = 60.0


def end_when_lonely(seconds: float) -> None:
    """End this process once it is found without a child twice, `seconds` apart. Forked workers are not concerned.

    Nobody waits for the workers: Spark's daemon ignores SIGCHLD, so one that has ended is no child any more.
    """
    alone = False

    def look(*_: object) -> None:
        nonlocal alone
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            if alone:
                signal.setitimer(signal.ITIMER_REAL, 0)  # another alarm on the way out would kill
                raise SystemExit(0) from None
            alone = True
        else:
            alone = False

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)  # timers do not survive a fork


def main() -> None:
    place = Place(Path(os.environ[PLACE])) if PLACE in os.environ else None
    founding = sys.argv[1:] == [NURSERY]
    if place is not None and not founding and nursery.delegate(place):
        return
    _load()
    gc.freeze()  # a worker collects garbage after every task, and would look through all of this: 40 ms each time
    gc.set_threshold(50_000, 20, 100)  # as in a command: records are no cycles
    if place is not None:
        nursery.found(place, serve)
    if not founding:
        serve()


def serve() -> None:
    """Be a daemon, in a process that has loaded everything."""
    from pyspark import daemon  # noqa: PLC0415

    end_when_lonely(LONELY_S)
    daemon.manager()


def _load() -> None:
    """Load what workers need."""
    import pandas  # noqa: F401, PLC0415
    import pyarrow  # noqa: F401, PLC0415
    from pyspark import worker  # noqa: F401, PLC0415

    from bayou.pipeline import kernels  # noqa: PLC0415

    for module in pkgutil.iter_modules(kernels.__path__, f"{kernels.__name__}."):
        importlib.import_module(module.name)
    for name in ("bayou.pipeline.sources.said", "bayou.store.remote"):
        importlib.import_module(name)


if __name__ == "__main__":
    main()
