"""Spark's Python daemon, from which workers are forked, with two additions for a server that serves many sessions.

    python -m bayou.pipeline.daemon pyspark.worker

Every session has a daemon of its own, so that no worker ever serves two callers; Spark never ends one before the
server itself. This one ends when it has had no worker for a while, and Spark starts another if the session goes on.
And it loads what every worker needs before it forks the first.
"""

from __future__ import annotations

import gc
import os
import signal

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
    import pandas  # noqa: F401, PLC0415
    import pyarrow  # noqa: F401, PLC0415
    from pyspark import daemon, worker  # noqa: F401, PLC0415

    import bayou.pipeline.stores  # noqa: F401, PLC0415

    gc.freeze()  # a worker collects garbage after every task, and would look through all of this: 40 ms each time
    end_when_lonely(LONELY_S)
    daemon.manager()


if __name__ == "__main__":
    main()
